//! The decisions of a client of Ballast: routes, redirections, retries and deadlines.
//!
//! [`ClientCore`] has no socket, clock, thread or random number. The crate `ballast-client` drives
//! it with `tokio`, and the simulator with virtual time. Design: `docs/design/client.md`.
//!
//! Programs of users depend on `ballast-client`, which exports the types that they need.

#![warn(clippy::expect_used, clippy::unwrap_used)]

mod core;
mod error;
mod options;
mod request;

pub use self::core::{
    ChannelId, ClientCore, ClientEffect, ClientEvent, RequestId, RequestOutcome, ServerIndex,
};
pub use error::{ClientError, FailureCause};
pub use options::ClientOptions;
pub use request::{PreparedRequest, RepeatRule, Request, RequestRoute};
pub use resp::Value;
