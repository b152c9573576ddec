//! The only crate that meets the operating system on the data path: reactors, drivers, sockets,
//! the clock.
//!
//! A reactor is one thread with its own connections. It runs a [`Service`] to completion, turn by
//! turn: input, mail, timers, output, then at most one quantum of background work. What is served
//! first, when background work is due and when to wait is the product; see "Reactor" in
//! `docs/design/reactor.md`.
//!
//! Start at [`Service`], then [`Io`] and [`Input`].
//!
//! **Invariant:** no byte and no behaviour of a peer can make this crate panic.
//! **Invariant:** knows no protocol: neither Redis's nor the bus's.

mod buffers;
mod connection;
mod input;
mod io;
mod mailbox;
mod output;
mod reactor;
mod service;
mod sync;

pub use connection::{Class, ConnectTag, ConnectionId, Port};
pub use input::Input;
pub use io::Io;
pub use mailbox::{Mailbox, Mailboxes};
pub use service::{Closed, Opened, Service};
