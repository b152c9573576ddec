//! Asynchronous client of Ballast, a durable in-memory key-value store.
//!
//! ```no_run
//! use ballast_client::{Client, ClientError, ClientOptions};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), ClientError> {
//!     let client = Client::connect(&["127.0.0.1:6379"], ClientOptions::default()).await?;
//!     client.set("greeting", "hello").await?;
//!     println!("{:?}", client.get("greeting").await?);
//!     Ok(())
//! }
//! ```
//!
//! # One client for all tasks
//!
//! [`Client`] is cheap to clone. All clones share one connection per server (or
//! [`ClientOptions::connections_per_server`]). The requests of all tasks go out in pipelines, and a
//! task that finds [`ClientOptions::queue_bytes_max`] used up waits.
//!
//! # Clusters
//!
//! The client sends each request to the owner of its key. When slots move, it follows the
//! redirections of the servers and fetches the new map (`BALLAST.MAP`). Methods on several keys
//! ([`Client::get_many`]) split them over the servers, and [`Client::scan`] covers all of them.
//!
//! # Errors, and what is repeated
//!
//! A request that a server has refused, and one that was not handed to a connection, have had no
//! effect. The client repeats them until the deadline if that can help. Once bytes were handed to a
//! connection that then fails, the request may have been executed. In this case reads are repeated,
//! and writes with a version as their condition ([`Client::set_if`]) as well. Every other write ends
//! with [`ClientError::MaybeExecuted`], because a second execution could change data again: the
//! caller decides.
//!
//! # Versions
//!
//! Each write gives its key a version that the key never has again. Read it with
//! [`Client::get_versioned`], and write with [`Client::set_if`], to change a value only if nobody
//! else has changed it:
//!
//! ```no_run
//! # use ballast_client::{Client, ClientError, WriteOutcome};
//! # async fn example(client: Client) -> Result<(), ClientError> {
//! loop {
//!     let before = client.get_versioned("stock").await?;
//!     let count: u64 = String::from_utf8_lossy(&before.value.unwrap_or_default()).parse().unwrap_or(0);
//!     match client.set_if("stock", (count + 10).to_string(), before.version).await? {
//!         WriteOutcome::Written { .. } => return Ok(()),
//!         WriteOutcome::Conflict { .. } => {}
//!     }
//! }
//! # }
//! ```
//!
//! # Encryption
//!
//! A [`Transport`] makes the connections. [`Client::connect_over`] takes any, for example one that
//! wraps TCP with TLS.
//!
//! # Structure
//!
//! [`core`] decides everything and needs no runtime, socket or clock; this crate moves bytes.

#![warn(clippy::expect_used, clippy::unwrap_used)]

/// Lets the documentation tests compile the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmePrograms;

mod client;
mod driver;
mod scan;
mod transport;
mod values;

pub use client::Client;
pub use client_core as core;
pub use client_core::{
    ClientError, ClientOptions, FailureCause, PreparedRequest, RepeatRule, Request, RequestRoute,
    Value,
};
pub use scan::{KeyScanOptions, Scan};
pub use transport::{ByteStream, Connecting, Tcp, Transport};
pub use values::{TimeToLive, Versioned, WriteOutcome};
