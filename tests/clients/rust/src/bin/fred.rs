//! fred: tasks that share one client, which pipelines on its own; ten at once are ten unfinished calls.
//!
//! Usage: `fred SECONDS HOST:PORT...`

#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clients::{CommandLine, Store};
use fred::prelude::{Client, ClientLike, Config, Expiration, KeysInterface, ServerConfig};

#[derive(Clone)]
struct Fred(Client);

#[tokio::main]
async fn main() -> Result<()> {
    let CommandLine { duration, addresses } = CommandLine::read()?;
    let hosts = addresses.iter().map(|address| server(address)).collect::<Result<Vec<_>>>()?;
    let server = ServerConfig::new_clustered(hosts);
    let client = Client::new(Config { server, ..Config::default() }, None, None, None);
    client.init().await?;
    clients::run("fred", Fred(client), duration).await
}

fn server(address: &str) -> Result<(String, u16)> {
    let (host, port) = address.rsplit_once(':').context("an address is HOST:PORT")?;
    Ok((host.to_owned(), port.parse()?))
}

impl Store for Fred {
    async fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.0.get(key).await?)
    }

    async fn set(&self, key: &str, value: &str) -> Result<String> {
        Ok(self.0.set(key, value, None, None, false).await?)
    }

    async fn set_for(&self, key: &str, value: &str, seconds: i64) -> Result<String> {
        Ok(self.0.set(key, value, Some(Expiration::EX(seconds)), None, false).await?)
    }

    async fn ttl(&self, key: &str) -> Result<i64> {
        Ok(self.0.ttl(key).await?)
    }

    async fn delete(&self, key: &str) -> Result<i64> {
        Ok(self.0.del(key).await?)
    }

    async fn expire(&self, key: &str, seconds: i64) -> Result<i64> {
        Ok(self.0.expire(key, seconds, None).await?)
    }

    async fn increment(&self, key: &str) -> Result<i64> {
        Ok(self.0.incr(key).await?)
    }

    async fn set_both(&self, [left, right]: [&str; 2], value: &str) -> Result<String> {
        // It shows nothing of an answer that is not an error.
        let () = self.0.mset(vec![(left, value), (right, value)]).await?;
        Ok("OK".into())
    }

    async fn get_both(&self, keys: [&str; 2]) -> Result<Vec<Option<String>>> {
        Ok(self.0.mget(keys.to_vec()).await?)
    }
}
