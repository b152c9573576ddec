//! Links between servers and coordinators.

use super::{Next, OWN_REQUEST, World};
use crate::planted::Planted;
use crate::servers::{self, Saved};
use coordinator::{ConnectionId, Effect, Event};
use protocols::migration::from_coordinator;
use types::{ClusterId, ServerId};
use wire::control::{Ask, FromCoordinator, Join, ToCoordinator};

impl World {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { message: FromCoordinator::Answer { request, answer }, .. }
                    if request == OWN_REQUEST =>
                {
                    self.note_answer(answer);
                }
                Effect::Send { connection, message } => self.send_down(connection, message),
                Effect::Close { connection } => {
                    if let Some(place) = self.place_of(connection) {
                        let at = self.servers[place].link.down.max(self.now);
                        self.plan_at(at, Next::Sever(place, connection));
                    }
                }
            }
        }
    }

    fn place_of(&self, connection: ConnectionId) -> Option<usize> {
        self.servers.iter().position(|server| server.link.connection == Some(connection))
    }

    fn send_down(&mut self, connection: ConnectionId, message: FromCoordinator) {
        let Some(place) = self.place_of(connection) else { return };
        let to = self.servers[place].id;
        self.trace.note(self.now, format_args!("c → {to} {}", from_coordinator(&message)));
        let delay = self.weather.delay(&mut self.rng);
        let link = &mut self.servers[place].link;
        link.down = link.down.max(self.now + delay);
        let at = link.down;
        self.plan_at(at, Next::Down(place, connection, Box::new(message)));
    }

    pub(super) fn rejoin(&mut self, place: usize) {
        if self.servers[place].link.connection.is_some() {
            return;
        }
        let server = &self.servers[place];
        let (rejoin, generation) = (Some((server.node.cluster(), server.id)), server.generation);
        let Some(connection) = self.open_connection(rejoin, Some(generation)) else {
            return self.plan_rejoin(place);
        };
        let saved = self.saved[place];
        let server = &mut self.servers[place];
        server.link.connection = Some(connection);
        server.node.set_linked(true);
        let message = ToCoordinator::Join(self.join(place, rejoin, saved));
        let effects = self.coordinate(connection, Event::Received { connection, message });
        self.carry_out(effects);
        self.note_linked(place, connection);
    }

    /// Returns the first message of a server on a connection.
    pub(super) fn join(
        &self,
        place: usize,
        rejoin: Option<(ClusterId, ServerId)>,
        saved: Option<Saved>,
    ) -> Join {
        let mut join = servers::join(place, rejoin, self.replicas(), saved.as_ref());
        if self.settings.planted == Some(Planted::OldStoreTrusted) {
            join.mark = None;
        }
        join
    }

    /// Sends a question of the world itself to the leading coordinator, without network delay but
    /// over a server's link. Returns `false` if no server has a link.
    pub(super) fn ask(&mut self, ask: Ask) -> bool {
        let mut connections = self.servers.iter().filter_map(|server| server.link.connection);
        let connection = connections.find(|&connection| self.leaders.is_current(connection));
        let Some(connection) = connection else { return false };
        let message = ToCoordinator::Ask { request: OWN_REQUEST, ask };
        let effects = self.coordinate(connection, Event::Received { connection, message });
        let is_answered = effects.iter().any(|effect| {
            matches!(effect, Effect::Send { message: FromCoordinator::Answer { .. }, .. })
        });
        self.carry_out(effects);
        is_answered
    }
}
