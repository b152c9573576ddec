//! Clients that send large messages move to the epoll part, and stay there.
//!
//! What comes through provided buffers is copied into the buffer that a large message has of its
//! own; read by calls it comes straight into it, and a call is nothing beside the copy. A socket
//! moves when nothing of it is under way in the ring, so that no byte changes its place in the
//! order: those received before are taken first, the rest is in the socket still.

use super::{Intake, Operation, Uring, socket_at};
use crate::buffers::BUFFER_BYTES;
use crate::connection::Class;
use crate::driver::Driver;

/// Room for the rest of a message from which on it is large: for less, moving would not pay.
const LARGE_BYTES: usize = 2 * BUFFER_BYTES;

impl Uring {
    /// Begins the move if `room`, into which the next bytes go, is that of a large message, and goes
    /// on with one that has begun.
    pub(super) fn leave_for_large(&mut self, index: u32, room: &Vec<u8>) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        let is_large = room.capacity() - room.len() >= LARGE_BYTES && socket.end.is_none();
        if is_large && !socket.is_leaving {
            socket.is_leaving = true;
            if socket.intake == Intake::Running {
                socket.intake = Intake::Stopping;
                self.ring.cancel(Operation::Receive, index);
            }
            if socket.is_watched {
                self.ring.cancel(Operation::Watch, index);
            }
        }
        self.leave_if_done(index);
    }

    /// Moves a socket that is leaving once nothing of it is here any more.
    pub(super) fn leave_if_done(&mut self, index: u32) {
        let place = &mut self.sockets[index as usize];
        let is_done = place.as_ref().is_some_and(|socket| {
            let is_empty = socket.operations == 0 && socket.pending.is_empty();
            socket.is_leaving && !socket.is_closing && is_empty && socket.end.is_none()
        });
        let Some(socket) = place.take_if(|_| is_done) else { return };
        self.free.push(index);
        self.in_use -= 1;
        self.slots[socket.connection.slot()] = None;
        let adopted = self.others.adopt(socket.connection, socket.descriptor, Class::Client);
        match adopted {
            // What is in the socket already is told by the next look.
            Ok(()) => self.has_rung = true,
            Err(_) => self.lost.push(socket.connection),
        }
    }
}
