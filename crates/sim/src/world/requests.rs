//! Clients' operations on their way to servers and back.

use super::{Next, Part, World};
use crate::failure::Rule;
use crate::history::Action;
use crate::reactor::{Inbound, Reply, Request};
use crate::servers::server_at;

impl World {
    pub(super) fn think(&mut self, client: usize) {
        // Its pause may have lasted from one part of the run into the next.
        if self.clients.is_busy(client) {
            return;
        }
        let (register, action) = match &mut self.part {
            Part::Working => loop {
                let (register, action) = self.workload.next(&mut self.rng);
                if !self.is_avoided(register) {
                    break (register, action);
                }
            },
            Part::Resting => return,
            Part::Reading(next) => loop {
                if *next == self.workload.registers.len() {
                    return;
                }
                *next += 1;
                if self.losses.is_worth_reading(*next - 1) {
                    break (*next - 1, Action::Read);
                }
            },
        };
        self.clients.begin(self.now, client, register, action);
        self.request(Request { client, register, action });
    }

    /// Sends an operation to where the client believes its register to be; now and then elsewhere.
    fn request(&mut self, request: Request) {
        let slot = self.workload.registers[request.register].slot();
        let known = self.clients.owner(request.client, slot);
        let is_lost = self.part == Part::Working && self.rng.u32(..30) == 0;
        let place = known.filter(|_| !is_lost).unwrap_or_else(|| self.some_server());
        self.trace.note(self.now, format_args!("to {} {request:?}", self.servers[place].id));
        self.clients.note_sent(request.client, place);
        if self.is_refused(request, place) {
            return;
        }
        let reactor = self.rng.usize(..self.servers[place].reactors.len());
        let delay = self.weather.delay(&mut self.rng);
        self.plan_in(delay, Next::Arrive(place, reactor, Inbound::Request(request)));
    }

    /// Where nobody listens, that is what the client is told.
    fn is_refused(&mut self, request: Request, place: usize) -> bool {
        if self.servers[place].is_dead {
            let slot = self.workload.registers[request.register].slot();
            self.clients.forget_owner(request.client, slot);
            let delay = self.weather.delay(&mut self.rng);
            self.plan_in(delay, Next::Answer(request, Reply::Refused));
        }
        self.servers[place].is_dead
    }

    pub(super) fn answered(&mut self, request: Request, reply: Reply) {
        self.trace.note(self.now, format_args!("{request:?} = {reply:?}"));
        match reply {
            Reply::Outcome(outcome) => {
                self.clients.end(self.now, request.client, outcome);
                let pause = self.micros(1..300);
                self.plan_in(pause, Next::Think(request.client));
            }
            Reply::Refused => {
                if let Some(failure) = self.check_refused(request.register) {
                    self.failure = Some(failure);
                }
                self.clients.refuse(self.now, request.client);
                let pause = self.micros(100..3_000);
                self.plan_in(pause, Next::Think(request.client));
            }
            Reply::Moved(port) => {
                let slot = self.workload.registers[request.register].slot();
                if self.clients.redirect(request.client, slot, server_at(port)) {
                    self.request(request);
                } else {
                    self.failure = Some(Rule::NoCircles.broken(format!("{request:?}")));
                }
            }
            Reply::Torn => self.failure = Some(Rule::WholePairs.broken(format!("{request:?}"))),
        }
    }
}
