//! Moves money between two accounts in one record, guarded by its version, from many tasks at the
//! same time: `cargo run -p ballast-client --example account -- 127.0.0.1:6379`.

use ballast_client::{Client, ClientError, ClientOptions, WriteOutcome};

const TASKS: usize = 20;
const PAYMENTS: usize = 50;

/// Pays one unit from the first account to the second. Returns the number of attempts.
async fn pay(client: &Client) -> Result<usize, ClientError> {
    for attempt in 1.. {
        let before = client.get_versioned("accounts").await?;
        let text = before.value.unwrap_or_else(|| b"1000 0".to_vec());
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut balances = text.split(' ').map(|number| number.parse().unwrap_or(0));
        let (from, to): (i64, i64) = (balances.next().unwrap_or(0), balances.next().unwrap_or(0));
        let after = format!("{} {}", from - 1, to + 1);
        match client.set_if("accounts", after, before.version).await? {
            WriteOutcome::Written { .. } => return Ok(attempt),
            // Another task was faster.
            WriteOutcome::Conflict { .. } => {}
        }
    }
    unreachable!("the loop ends by returning")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".into());
    let client = Client::connect(&[address], ClientOptions::default()).await?;
    client.delete("accounts").await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let mut attempts = 0;
            for _ in 0..PAYMENTS {
                attempts += pay(&client).await?;
            }
            Ok::<usize, ClientError>(attempts)
        });
    }
    let mut attempts = 0;
    while let Some(ended) = tasks.join_next().await {
        attempts += ended.unwrap_or(Ok(0))?;
    }
    let value = client.get("accounts").await?.unwrap_or_default();
    let payments = TASKS * PAYMENTS;
    println!("{payments} payments, {attempts} attempts: {}", String::from_utf8_lossy(&value));
    Ok(())
}
