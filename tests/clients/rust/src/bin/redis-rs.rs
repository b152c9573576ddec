//! redis-rs: tasks that share one connection per node; ten at once are ten unfinished calls.
//!
//! Usage: `redis-rs SECONDS HOST:PORT...`

#![forbid(unsafe_code)]

use anyhow::Result;
use clients::{CommandLine, Store};
use redis::AsyncCommands;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;

#[derive(Clone)]
struct RedisRs(ClusterConnection);

#[tokio::main]
async fn main() -> Result<()> {
    let CommandLine { duration, addresses } = CommandLine::read()?;
    let nodes = addresses.iter().map(|address| format!("redis://{address}"));
    let connection = ClusterClient::new(nodes)?.get_async_connection().await?;
    clients::run("redis-rs", RedisRs(connection), duration).await
}

impl Store for RedisRs {
    async fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.0.clone().get(key).await?)
    }

    async fn set(&self, key: &str, value: &str) -> Result<String> {
        Ok(self.0.clone().set(key, value).await?)
    }

    async fn set_for(&self, key: &str, value: &str, seconds: i64) -> Result<String> {
        Ok(self.0.clone().set_ex(key, value, seconds.try_into()?).await?)
    }

    async fn ttl(&self, key: &str) -> Result<i64> {
        Ok(redis::cmd("TTL").arg(key).query_async(&mut self.0.clone()).await?)
    }

    async fn delete(&self, key: &str) -> Result<i64> {
        Ok(self.0.clone().del(key).await?)
    }

    async fn expire(&self, key: &str, seconds: i64) -> Result<i64> {
        Ok(self.0.clone().expire(key, seconds).await?)
    }

    async fn increment(&self, key: &str) -> Result<i64> {
        Ok(self.0.clone().incr(key, 1).await?)
    }

    async fn set_both(&self, [left, right]: [&str; 2], value: &str) -> Result<String> {
        Ok(self.0.clone().mset(&[(left, value), (right, value)]).await?)
    }

    async fn get_both(&self, keys: [&str; 2]) -> Result<Vec<Option<String>>> {
        Ok(self.0.clone().mget(&keys).await?)
    }
}
