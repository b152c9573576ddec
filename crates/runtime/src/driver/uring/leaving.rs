//! Moves clients that send large messages to the epoll part, where they stay: see "Large
//! messages" in `docs/design/io-uring.md`. A socket moves when the ring has no operation of it in
//! progress and the bytes received before are taken; the rest is still in the socket.

use super::{Intake, RingOperation, Uring, socket_at};
use crate::buffers::BUFFER_BYTES;
use crate::connection::Class;
use crate::driver::Driver;
use crate::input::LARGE_MESSAGE_BYTES;

/// Space for the rest of a message from which it counts as large; for less, moving does not pay.
const LARGE_BYTES: usize = LARGE_MESSAGE_BYTES - BUFFER_BYTES;

impl Uring {
    /// Starts the move if `room`, the space for the next bytes, is that of a large message.
    /// Continues a move that has started.
    pub(super) fn leave_for_large(&mut self, index: u32, room: &Vec<u8>) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        let is_large = room.capacity() - room.len() >= LARGE_BYTES && socket.end.is_none();
        if is_large && !socket.is_leaving {
            socket.is_leaving = true;
            if socket.intake == Intake::Running {
                socket.intake = Intake::Stopping;
                self.ring.cancel(RingOperation::Receive, index);
            }
            if socket.is_watched {
                self.ring.cancel(RingOperation::Watch, index);
            }
        }
        self.leave_if_done(index);
    }

    /// Moves a leaving socket once the ring has no operation and no bytes of it.
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
            // The next poll reports bytes that are already in the socket.
            Ok(()) => self.others_ready = true,
            Err(_) => self.lost.push(socket.connection),
        }
    }
}
