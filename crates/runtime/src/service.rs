//! The interface between this crate and the server: the program that a reactor runs.
//!
//! The reactor calls the service. The service changes its own state and requests effects through
//! [`Io`]; no call blocks. The order within a turn is: `begin_turn`; `opened` / `received` /
//! `input_ended` (priority connections first); `mail`; `end_of_input`; `tick` if a deadline has
//! passed; at most one `quantum`. Output is sent after `tick`, and again after the quantum.
//!
//! Invariants:
//! - A connection that was `opened` is `closed` exactly once, by whichever side. Afterwards its
//!   id is invalid, and is not reused while the service could still hold it.
//! - A connection requested by [`Io::connect`] ends in exactly one of `opened`, `connect_failed`,
//!   or, if the service closes it before, `closed`.
//! - `sleep` and `wake` alternate, and no other method is called between them.

use crate::connection::{Closed, ConnectTag, Opened};
use crate::input::Input;
use crate::io::Io;
use std::io;
use types::ConnectionId;
use types::{BackgroundDemand, Instant, UnixMillis};

/// The program of one reactor. It lives on the reactor's thread and never leaves it.
pub trait Service {
    /// Messages from other threads, sent through the service's [`Mailbox`](crate::Mailbox).
    type Mail: Send + 'static;

    /// Begins a turn. `now` and `wall` are the time for the whole turn.
    fn begin_turn(&mut self, now: Instant, wall: UnixMillis);

    /// Announces a connection that may be written to. Its input follows in `received`.
    fn opened(&mut self, connection: ConnectionId, how: Opened, io: &mut Io);

    /// Announces that a connection could not be established. Its id is now invalid.
    fn connect_failed(
        &mut self,
        connection: ConnectionId,
        tag: ConnectTag,
        error: io::Error,
        io: &mut Io,
    );

    /// Shows the beginnings of clients' inputs shortly before they are processed, so that memory
    /// for several of them can be prefetched at once. A hint; the service must not change state.
    fn prefetch(&mut self, _inputs: &mut dyn Iterator<Item = &[u8]>) {}

    /// Processes input: at least as many bytes as [`Input::want`] asked for. Unconsumed bytes are
    /// passed again together with later ones, or when reading is resumed.
    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io);

    /// Announces that the peer will send nothing more, but may still read. All earlier input has
    /// been passed to `received`. A service with unfinished requests closes once they are answered.
    fn input_ended(&mut self, connection: ConnectionId, io: &mut Io) {
        io.close_after_flush(connection);
    }

    /// Announces that the connection is gone. The only place to release its state.
    fn closed(&mut self, connection: ConnectionId, why: Closed, io: &mut Io);

    /// Processes a message from another thread.
    fn mail(&mut self, mail: Self::Mail, io: &mut Io);

    /// Announces that all input of this turn has been passed. Batched work belongs here.
    fn end_of_input(&mut self, io: &mut Io);

    /// Announces that the time returned by `next_deadline` has come.
    fn tick(&mut self, now: Instant, io: &mut Io);

    /// Returns when `tick` is to be called next. Called once per turn.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns whether `quantum` would find work.
    fn has_background(&self) -> bool;

    /// Does background work for 20 to 50 us. Returns `false` if there was none after all.
    fn quantum(&mut self, now: Instant, io: &mut Io) -> bool;

    /// Returns the demand of background work on this reactor's time. Called once per turn.
    fn background_demand(&self) -> BackgroundDemand;

    /// Announces that the reactor is about to wait: this thread holds no reference into shared
    /// memory.
    fn sleep(&mut self);

    /// Announces that the reactor has stopped waiting.
    fn wake(&mut self);
}
