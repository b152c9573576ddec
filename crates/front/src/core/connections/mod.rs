//! The front end of one reactor: client connections, and the order in which requests are executed
//! and answered.
//!
//! A request is executed as soon as it is parsed, and its reply goes straight into the connection's
//! output. Only if the store cannot serve it now, the request is copied into the connection's
//! [`queue`] and parked under a waiter id in [`waits`]. Later requests on other keys continue, and
//! their replies queue behind it.
//!
//! The front end does not know sockets: bytes come in, bytes go out into a buffer.

mod admission;
mod blocking;
mod client;
mod http;
mod prefetch;
mod queue;
mod scope;
mod turn;
mod waiter;
mod waits;

pub(crate) use client::{ConnectionAction, RedisClient};
pub(crate) use prefetch::prefetch_clients;
pub(crate) use turn::ConnectionTurn;
pub(crate) use waiter::WaiterId;
pub(crate) use waits::Waits;
