//! Traffic of reactors on their streams: what they ask of the network, and what arrives.

use super::Streams;
use crate::fleet::ServerFleet;
use crate::losses::Losses;
use crate::network::Network;
use crate::reactor::Inbound;
use crate::reactor_bus::{StreamInput, StreamRequest};
use crate::timeline::{ReactorPlace, RunTimeline};
use node::{Sending, To};
use protocols::migration::peer;
use types::ConnectionId;

/// Components of a cluster that traffic on streams concerns.
pub(crate) struct TrafficContext<'c> {
    pub(crate) servers: &'c mut ServerFleet,
    pub(crate) network: &'c Network,
    pub(crate) losses: &'c mut Losses,
    pub(crate) timeline: &'c mut RunTimeline,
}

impl Streams {
    /// Returns the place of the server that a message is for, if it lives.
    pub(crate) fn receiver(&self, to: To, servers: &ServerFleet) -> Option<usize> {
        match to {
            To::Server(id) => servers.place(id),
            To::Back(route) => self.place_at_other_end(ConnectionId::from_number(route.0)),
        }
    }

    /// Passes a message of a reactor to its bus. [`Streams::flush`] sends it.
    pub(crate) fn pass_to_bus(
        &self,
        from: ReactorPlace,
        sending: Sending,
        context: &mut TrafficContext<'_>,
    ) {
        let TrafficContext { servers, timeline, .. } = context;
        let to = self.receiver(sending.to, servers);
        let (sender, receiver) = (servers[from.server].id, to.map(|to| servers[to].id));
        timeline.show(format_args!("{sender} → {receiver:?} {}", peer(&sending.message)));
        let server = &mut servers[from.server];
        if let Some(bus) = &mut server.reactors[from.reactor].bus {
            bus.send(timeline.now, sending, &server.node);
        }
    }

    /// Carries out what a reactor's bus wants of the network, and sends its output.
    pub(crate) fn flush(&mut self, at: ReactorPlace, context: &mut TrafficContext<'_>) {
        let TrafficContext { servers, network, losses, timeline } = context;
        let Some(bus) = &mut servers[at.server].reactors[at.reactor].bus else { return };
        for (connection, wanted) in bus.with_output() {
            let bytes = bus.take_output(connection, self.room(connection, wanted));
            if !bytes.is_empty() {
                let numbers = [at.server as u64, connection.number()];
                let line = format_args!("{} bytes on {connection}", bytes.len());
                timeline.note_bytes(&numbers, &bytes, line);
                self.send(connection, bytes, network, losses, timeline);
            }
        }
        for request in bus.take_requests() {
            match request {
                StreamRequest::Connect(connection, place) => {
                    let server = servers.get(place).filter(|server| !server.is_dead);
                    let reactors = server.map(|server| server.reactors.len());
                    self.connect(at, connection, place, reactors, network, timeline);
                }
                StreamRequest::Taken(connection, bytes) => {
                    self.record_read(connection, bytes, timeline);
                }
                StreamRequest::Close(connection) => self.close(connection, network, timeline),
            }
        }
    }

    /// Handles an event at one end of a stream.
    pub(crate) fn arrive(
        &mut self,
        at: ReactorPlace,
        end: ConnectionId,
        input: StreamInput,
        context: &mut TrafficContext<'_>,
    ) {
        if self.arrives(end, &input) {
            context.servers.deliver(at, Inbound::Stream(end, input), context.timeline);
        }
    }

    /// Lets a reactor send more, since there is room in one of its streams. A paused process sends
    /// the rest in its next turn.
    pub(crate) fn resume(&mut self, at: ReactorPlace, context: &mut TrafficContext<'_>) {
        if context.servers[at.server].paused_until <= context.timeline.now {
            self.flush(at, context);
        }
    }
}
