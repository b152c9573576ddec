//! Writes and reads a key: `cargo run -p ballast-client --example hello -- 127.0.0.1:6379`.

use ballast_client::{Client, ClientError, ClientOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".into());
    let client = Client::connect(&[address], ClientOptions::default()).await?;
    client.set("greeting", "hello").await?;
    let value = client.get("greeting").await?.unwrap_or_default();
    println!("{}", String::from_utf8_lossy(&value));
    Ok(())
}
