//! The coordinator, its links to servers, and what operators ask of it.

use super::{Next, OWN_REQUEST, Part, SERVERS, World};
use crate::servers::join;
use crate::workload::draw_policy;
use coordinator::{ConnectionId, Effect, Event, Moment, Outbox};
use protocols::migration::from_coordinator;
use types::ServerId;
use wire::control::{Answer, Ask, FromCoordinator, ToCoordinator};

impl World {
    pub(super) fn open_connection(&mut self) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let effects = self.coordinate(Event::Opened { connection });
        self.carry_out(effects);
        connection
    }

    pub(super) fn coordinate(&mut self, event: Event) -> Vec<Effect> {
        let at = Moment { now: self.now, wall: self.wall() };
        let mut out = Outbox::new();
        let result = self.coordinator.handle(at, event, &mut out);
        result.expect("a store in memory takes every transaction");
        let due = self.coordinator.next_deadline().map(|due| due.max(self.now));
        if due != self.coordinator_due {
            self.coordinator_due = due;
            if let Some(due) = due {
                self.plan_at(due, Next::Coordinator);
            }
        }
        out.drain().collect()
    }

    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { message: FromCoordinator::Answer { request, answer }, .. }
                    if request == OWN_REQUEST =>
                {
                    if let Answer::Migrations(reports) = answer {
                        self.migrations = reports;
                    }
                }
                Effect::Send { connection, message } => self.send_down(connection, message),
                Effect::Close { connection } => {
                    let closed = self.place_of(connection);
                    assert!(closed.is_none(), "a server of this run was thrown out");
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
        self.plan_at(at, Next::Down(place, connection, message));
    }

    pub(super) fn rejoin(&mut self, place: usize) {
        let connection = self.open_connection();
        let server = &mut self.servers[place];
        server.link.connection = Some(connection);
        server.node.set_linked(true);
        let rejoin = Some((server.node.cluster(), server.id));
        let message = ToCoordinator::Join(join(place, rejoin));
        let effects = self.coordinate(Event::Received { connection, message });
        self.carry_out(effects);
    }

    /// The world's own word with the coordinator, past all networks but not past broken links:
    /// `false` if no server has one.
    pub(super) fn ask(&mut self, ask: Ask) -> bool {
        let connection = self.servers.iter().find_map(|server| server.link.connection);
        let Some(connection) = connection else { return false };
        let message = ToCoordinator::Ask { request: OWN_REQUEST, ask };
        let effects = self.coordinate(Event::Received { connection, message });
        self.carry_out(effects);
        true
    }

    pub(super) fn ask_for_a_move(&mut self) {
        if self.part != Part::Working {
            return;
        }
        if self.rng.u32(..20) == 0 {
            self.ask(Ask::Cancel { source: None });
        } else {
            let target: ServerId = self.servers[self.rng.usize(..SERVERS)].id;
            let range = self.workload.draw_range(&mut self.rng);
            let policy = draw_policy(&mut self.rng);
            self.trace.note(self.now, format_args!("asked to move {range} to {target}"));
            self.ask(Ask::Migrate { ranges: vec![range], source: None, target, policy });
        }
        let pause = self.micros(500..30_000);
        self.plan_in(pause, Next::Move);
    }
}
