//! What a reactor runs: the one trait between this crate and the server.
//!
//! The reactor calls, the service answers by changing its own state and by asking [`Io`] for
//! effects; no call blocks. Order within a turn: `begin_turn`, `opened` / `received` /
//! `input_ended` (priority connections first, then the others), `mail`, `end_of_input`, `tick` if
//! a deadline has passed, then at most one `quantum`. Output is sent after `tick`, and once more
//! after the quantum.
//!
//! Invariants:
//! - a connection that was `opened` is `closed` exactly once, whoever ended it; afterwards its id
//!   names nothing and is not given again while the service could still hold it;
//! - a connection asked for by [`Io::connect`] ends in exactly one of `opened`, `connect_failed`,
//!   or, if the service closes it before either, `closed`;
//! - `sleep` and `wake` alternate, and nothing is called between them.

use crate::connection::{ConnectTag, ConnectionId, Port};
use crate::input::Input;
use crate::io::Io;
use std::io;
use std::net::SocketAddr;
use types::{Instant, UnixMillis};

/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Somebody connected to one of our listeners.
    Accepted {
        /// Which listener.
        port: Port,
        /// Who connected.
        peer: SocketAddr,
    },
    /// A connection that [`Io::connect`] asked for is established.
    Connected {
        /// The tag given to `connect`.
        tag: ConnectTag,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The service asked for it.
    ByService,
    /// The peer reset the connection, or it failed.
    ByPeer,
    /// The peer did not take the last output in time (see [`Io::close_after_flush`]).
    TooSlow,
    /// More unconsumed input than the runtime keeps for one connection.
    InputTooLarge,
    /// The reactors are stopping.
    Stopping,
}

/// A program for one reactor. It lives on the reactor's thread and never leaves it.
pub trait Service {
    /// What other threads send to it, through its [`Mailbox`](crate::Mailbox).
    type Mail: Send + 'static;

    /// A turn begins. `now` and `wall` are the time for the whole turn.
    fn begin_turn(&mut self, now: Instant, wall: UnixMillis);

    /// A connection is there and may be written to. Input follows in `received`.
    fn opened(&mut self, connection: ConnectionId, how: Opened, io: &mut Io);

    /// A connection could not be established; its id names nothing afterwards.
    fn connect_failed(
        &mut self,
        connection: ConnectionId,
        tag: ConnectTag,
        error: io::Error,
        io: &mut Io,
    );

    /// Clients' input that is about to be given, each one's by itself and perhaps not all of it: the
    /// time to fetch memory for several of them at once. A hint; nothing may be changed by it.
    fn foresee(&mut self, _inputs: &mut dyn Iterator<Item = &[u8]>) {}

    /// There is input: at least as many bytes as [`Input::want`] asked for. What is not consumed
    /// is given again, with what comes after it, or when reading is resumed.
    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io);

    /// The peer will send nothing more, but may still read. Called after everything it sent was
    /// given to `received`. A service with unfinished requests closes when they are answered.
    fn input_ended(&mut self, connection: ConnectionId, io: &mut Io) {
        io.close_after_flush(connection);
    }

    /// The connection is gone. The one place to forget what belonged to it.
    fn closed(&mut self, connection: ConnectionId, why: Closed, io: &mut Io);

    /// A message from another thread.
    fn mail(&mut self, mail: Self::Mail, io: &mut Io);

    /// All input of this turn has been given: the time for work done in batches.
    fn end_of_input(&mut self, io: &mut Io);

    /// The time told by `next_deadline` has come.
    fn tick(&mut self, now: Instant, io: &mut Io);

    /// When `tick` is to be called next. Asked once per turn.
    fn next_deadline(&self) -> Option<Instant>;

    /// Whether `quantum` would find work.
    fn has_background(&self) -> bool;

    /// Does background work for 20 to 50 us. False: there was nothing to do after all.
    fn quantum(&mut self, now: Instant, io: &mut Io) -> bool;

    /// The background's minimum share of this reactor's running time, in percent. 100: a quantum
    /// after every turn. Asked once per turn.
    fn background_share(&self) -> u8;

    /// The reactor is about to wait: this thread holds no reference into shared memory.
    fn sleep(&mut self);

    /// The reactor has stopped waiting.
    fn wake(&mut self);
}
