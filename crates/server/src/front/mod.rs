//! The front end of one reactor: client connections, and the order in which their requests are
//! executed and answered.
//!
//! A request is executed as soon as it has been read, and its reply goes straight into the
//! connection's output. Only if the store cannot serve it now does anything have to be remembered:
//! the request is copied into the connection's [`queue`] and waits, named by a ticket in
//! [`waits`]; later requests for other keys go on, and their replies queue up behind it.
//!
//! Knows nothing of sockets: bytes come in, bytes go out into a buffer.

mod client;
mod foresight;
mod gate;
mod http;
mod queue;
mod scope;
mod waits;

pub(crate) use client::{Client, Next, Turn};
pub(crate) use foresight::foresee_clients;
pub(crate) use waits::{Cause, Ticket, Waits};
