//! Simulated TCP between native clients and servers, byte by byte and in order, with the ways in
//! which a connection can end.
//!
//! | event | at the client | at the server |
//! | --- | --- | --- |
//! | the process of the server dies | told after the last replies, or at once without them, or (its machine has failed) never | dead |
//! | nobody listens | told, or never | |
//! | the server closes | told after the last replies | |
//! | the client closes | | told after the last requests |
//! | a connection breaks | told, replies in transit are lost | told later; requests in transit arrive, or are lost |
//! | the network drops a connection | never told | told, or never |
//! | the network stalls | everything arrives up to a second later | the same |
//!
//! A real driver ends the task of a closed connection, which may have an event under way. So for a
//! while events of closed connections still reach the core, which must ignore them.

use super::{NativeClients, NativeEvent, NativeFinish, event};
use crate::cluster::SimulatedCluster;
use crate::network::in_pieces;
use crate::reactor::Inbound;
use crate::servers::server_at;
use crate::timeline::{ReactorPlace, RunTimeline};
use client_core::{ChannelId, ClientEvent};
use std::time::Duration;
use types::{ConnectionId, Instant};

/// Numbers of native clients' connections at servers begin here, above those of plain clients.
const FIRST_CONNECTION: u64 = 1 << 48;

/// One piece in this many is late, and everything behind it waits.
const LATE_ONE_IN: u32 = 300;
const LATE_MICROS: std::ops::Range<u64> = 1_000..300_000;

/// Longest time for which events of a closed connection still reach the core.
const LINGERS_MICROS: u64 = 300_000;

/// One connection, with both ends.
#[derive(Debug)]
pub(super) struct NativeConnection {
    client: usize,
    channel: ChannelId,
    /// Place of the address; `None` if there is no such place.
    place: Option<usize>,
    reactor: usize,
    /// True while the server's process has its end open.
    has_server: bool,
    /// True while the core has its end open.
    is_open: bool,
    /// Time until which events still reach the core after it has closed the connection.
    lingers_until: Instant,
    /// True if requests in transit are lost.
    is_up_cut: bool,
    /// True if replies in transit are lost.
    is_down_cut: bool,
    /// Received bytes that the core has not taken.
    input: Vec<u8>,
    /// Arrival time of the last piece in each direction.
    up: Instant,
    down: Instant,
}

impl NativeConnection {
    fn reaches_core(&self, now: Instant) -> bool {
        self.is_open || now < self.lingers_until
    }

    fn reactor_place(&self) -> Option<ReactorPlace> {
        let server = self.place.filter(|_| self.has_server)?;
        Some(ReactorPlace { server, reactor: self.reactor })
    }
}

fn id_of(number: u64) -> ConnectionId {
    ConnectionId::from_number(FIRST_CONNECTION + number)
}

/// Returns the number of a native client's connection, if it is one.
pub(crate) fn native_connection(id: ConnectionId) -> Option<u64> {
    id.number().checked_sub(FIRST_CONNECTION)
}

/// The client's end.
impl NativeClients {
    /// Returns the number of the connection of a channel, if the core has it open.
    pub(super) fn number_of(&self, client: usize, channel: ChannelId) -> Option<u64> {
        let open = self.clients[client].connections.iter();
        open.rev().find(|(of, _)| *of == channel).map(|(_, number)| *number)
    }

    pub(super) fn connect(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        channel: ChannelId,
        address: &str,
    ) {
        self.last_connection += 1;
        let number = self.last_connection;
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let place = port.and_then(server_at);
        cluster.timeline.note(format_args!("n{client} connects {number} to {address}"));
        let connection = NativeConnection {
            client,
            channel,
            place,
            reactor: 0,
            has_server: false,
            is_open: true,
            lingers_until: Instant(0),
            is_up_cut: false,
            is_down_cut: false,
            input: Vec::new(),
            up: Instant(0),
            down: Instant(0),
        };
        self.connections.insert(number, connection);
        self.clients[client].connections.push((channel, number));
        let delay = self.delay(cluster);
        cluster.timeline.plan_in(delay, event(NativeEvent::Knock(number)));
    }

    /// Closes a connection for the core, which wants no more of its events.
    pub(super) fn close(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        channel: ChannelId,
    ) {
        let Some(number) = self.number_of(client, channel) else { return };
        let lingers = if self.rng.u32(..4) != 0 { self.rng.u64(..LINGERS_MICROS) } else { 0 };
        let delay = self.delay(cluster);
        self.clients[client].connections.retain(|(_, open)| *open != number);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let now = cluster.timeline.now;
        connection.is_open = false;
        connection.lingers_until = now + Duration::from_micros(lingers);
        let at = connection.up.max(now + delay);
        cluster.timeline.plan_at(at, event(NativeEvent::HungUp(number)));
    }

    pub(super) fn connected(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
    ) -> Vec<NativeFinish> {
        let Some(connection) = self.connections.get(&number) else { return Vec::new() };
        if !connection.reaches_core(cluster.timeline.now) {
            return Vec::new();
        }
        let (client, channel) = (connection.client, connection.channel);
        self.step(cluster, client, ClientEvent::Connected(channel), None)
    }

    pub(super) fn ended(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
    ) -> Vec<NativeFinish> {
        let Some(connection) = self.connections.get_mut(&number) else { return Vec::new() };
        if !connection.reaches_core(cluster.timeline.now) {
            return Vec::new();
        }
        (connection.is_open, connection.lingers_until) = (false, Instant(0));
        let (client, channel) = (connection.client, connection.channel);
        cluster.timeline.note(format_args!("n{client} loses {number}"));
        self.clients[client].connections.retain(|(_, open)| *open != number);
        self.step(cluster, client, ClientEvent::Closed(channel), None)
    }

    /// Takes the core's output for a connection, and sends it.
    pub(super) fn flush(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        loop {
            let open = self.connections.get(&number).filter(|connection| connection.is_open);
            let Some(&NativeConnection { client, channel, .. }) = open else { return };
            let mut output = Vec::new();
            let now = cluster.timeline.now;
            self.clients[client].core.take_output(now, channel, &mut output);
            self.arm(client, &mut cluster.timeline);
            if output.is_empty() {
                return;
            }
            let line = format_args!("n{client} sends {} bytes on {number}", output.len());
            cluster.timeline.note_bytes(&[client as u64, number], &output, line);
            for piece in in_pieces(output, &mut self.rng) {
                let delay = self.delay(cluster);
                let Some(connection) = self.connections.get_mut(&number) else { return };
                connection.up = connection.up.max(now + delay);
                let at = connection.up;
                cluster.timeline.plan_at(at, event(NativeEvent::Up(number, piece)));
                self.pieces_up += 1;
            }
        }
    }

    /// Passes bytes of a server to the core.
    pub(super) fn receive(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
        bytes: Vec<u8>,
    ) -> Vec<NativeFinish> {
        let now = cluster.timeline.now;
        let Some(connection) = self.connections.get_mut(&number) else { return Vec::new() };
        if connection.is_down_cut || !connection.reaches_core(now) {
            return Vec::new();
        }
        let (client, channel, place) = (connection.client, connection.channel, connection.place);
        let line = format_args!("{number} delivers {} bytes to n{client}", bytes.len());
        cluster.timeline.note_bytes(&[number], &bytes, line);
        let mut input = std::mem::take(&mut connection.input);
        input.extend_from_slice(&bytes);
        let mut rest = &input[..];
        let received = ClientEvent::Received(channel, &mut rest);
        let finished = self.step(cluster, client, received, place);
        let consumed = input.len() - rest.len();
        input.drain(..consumed);
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.input = input;
        }
        finished
    }

    fn delay(&mut self, cluster: &SimulatedCluster) -> Duration {
        let usual = cluster.network.delay(&mut self.rng);
        let is_late = self.rng.u32(..LATE_ONE_IN) == 0 && cluster.timeline.is_working();
        let late = if is_late { self.rng.u64(LATE_MICROS) } else { 0 };
        usual + Duration::from_micros(late)
    }
}

/// The server's end.
impl NativeClients {
    /// Lets an attempt to connect reach its address.
    pub(super) fn knock(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        let delay = self.delay(cluster);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.is_open {
            return;
        }
        let listens = |place: usize| cluster.servers.get(place).is_some_and(|it| !it.is_dead);
        let back = match connection.place.filter(|place| listens(*place)) {
            Some(place) => {
                let reactors = cluster.servers[place].reactors.len();
                connection.reactor = self.rng.usize(..reactors);
                connection.has_server = true;
                let at = ReactorPlace { server: place, reactor: connection.reactor };
                let opened = Inbound::Opened(id_of(number));
                cluster.servers.deliver(at, opened, &mut cluster.timeline);
                NativeEvent::Connected(number)
            }
            // A machine without power does not answer.
            None if self.rng.u32(..4) == 0 => return,
            None => NativeEvent::Ended(number),
        };
        connection.down = cluster.timeline.now + delay;
        cluster.timeline.plan_at(connection.down, event(back));
    }

    /// Delivers bytes to a server. If another process has started at the address, it resets the
    /// connection.
    pub(super) fn reach_server(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
        bytes: Vec<u8>,
    ) {
        let delay = self.delay(cluster);
        assert!(self.pieces_up > 0, "each piece arrives once");
        self.pieces_up -= 1;
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.is_up_cut {
            return;
        }
        let listens = |place: usize| cluster.servers.get(place).is_some_and(|it| !it.is_dead);
        match connection.reactor_place() {
            Some(at) => {
                let inbound = Inbound::Bytes(id_of(number), bytes);
                cluster.servers.deliver(at, inbound, &mut cluster.timeline);
            }
            None if connection.place.is_some_and(listens) => {
                cluster.timeline.plan_in(delay, event(NativeEvent::Ended(number)));
            }
            None => {}
        }
    }

    pub(super) fn hang_up(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Some(at) = connection.reactor_place() else { return };
        connection.has_server = false;
        let inbound = Inbound::HungUp(id_of(number));
        cluster.servers.deliver(at, inbound, &mut cluster.timeline);
    }

    /// Sends bytes from a server to a client.
    pub(crate) fn send_reply(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
        bytes: Vec<u8>,
    ) {
        for piece in in_pieces(bytes, &mut self.rng) {
            let delay = self.delay(cluster);
            let Some(connection) = self.connections.get_mut(&number) else { return };
            connection.down = connection.down.max(cluster.timeline.now + delay);
            let at = connection.down;
            cluster.timeline.plan_at(at, event(NativeEvent::Down(number, piece)));
        }
    }

    /// Handles a connection that its server has closed.
    pub(crate) fn closed_by_server(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        let delay = self.delay(cluster);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.has_server = false;
        let at = connection.down.max(cluster.timeline.now + delay);
        cluster.timeline.plan_at(at, event(NativeEvent::Ended(number)));
    }

    /// Ends the connections to a process that has died.
    pub(crate) fn server_died(&mut self, place: usize, loses_power: bool, time: &mut RunTimeline) {
        let here = self.connections.iter_mut();
        let here = here.filter(|(_, it)| it.has_server && it.place == Some(place));
        for (number, connection) in here {
            connection.has_server = false;
            // A connection that was cut before stays so.
            connection.is_down_cut |= self.rng.bool();
            let is_silent = self.rng.u32(..4) < if loses_power { 3 } else { 1 };
            let end = match connection.is_down_cut {
                true => time.now,
                false => connection.down.max(time.now),
            };
            if !is_silent {
                time.plan_at(end, event(NativeEvent::Ended(*number)));
            }
        }
    }

    /// Tells the clients which of their connections have no other end any more, as their systems do
    /// in time. Otherwise a request may wait for as long as its client tolerates silence.
    pub(crate) fn end_half_open(&mut self, timeline: &mut RunTimeline) {
        let is_half_open = |it: &NativeConnection| {
            it.is_open && (!it.has_server || it.is_up_cut || it.is_down_cut)
        };
        let half_open = self.connections.iter().filter(|(_, it)| is_half_open(it));
        for (number, connection) in half_open {
            let at = connection.down.max(timeline.now);
            timeline.plan_at(at, event(NativeEvent::Ended(*number)));
        }
    }

    /// Breaks some connection, and plans the next time.
    pub(super) fn break_one(&mut self, cluster: &mut SimulatedCluster) {
        if !cluster.timeline.is_working() {
            return;
        }
        let open = self.connections.iter().filter(|(_, it)| it.is_open && it.has_server);
        let open: Vec<u64> = open.map(|(number, _)| *number).collect();
        if let Some(number) = self.rng.choice(open) {
            let (delay, hangs_up) = (self.delay(cluster), self.rng.bool());
            let (kind, stall) = (self.rng.u32(..4), self.rng.u64(1_000..1_000_000));
            let Some(connection) = self.connections.get_mut(&number) else { return };
            let now = cluster.timeline.now;
            cluster.timeline.note(format_args!("connection {number} breaks ({kind})"));
            let ended = event(NativeEvent::Ended(number));
            let hung_up = event(NativeEvent::HungUp(number));
            match kind {
                // The client's end fails; requests in transit still arrive.
                0 => {
                    connection.is_down_cut = true;
                    cluster.timeline.plan_at(now, ended);
                    cluster.timeline.plan_at(connection.up.max(now + delay), hung_up);
                }
                // Both directions fail; the server may never learn of it.
                1 => {
                    (connection.is_up_cut, connection.is_down_cut) = (true, true);
                    cluster.timeline.plan_at(now, ended);
                    if hangs_up {
                        cluster.timeline.plan_in(delay, hung_up);
                    }
                }
                // The client is not told.
                2 => {
                    (connection.is_up_cut, connection.is_down_cut) = (hangs_up, true);
                    if hangs_up {
                        cluster.timeline.plan_in(delay, hung_up);
                    }
                }
                _ => {
                    let until = now + Duration::from_micros(stall);
                    connection.up = connection.up.max(until);
                    connection.down = connection.down.max(until);
                }
            }
        }
        let slowness = cluster.profile.slowness;
        self.plan_break(&mut cluster.timeline, slowness);
    }
}
