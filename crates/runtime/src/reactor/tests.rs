//! Tests of the order within a turn, with a scripted driver.

use super::*;
use crate::buffers::Buffers;
use crate::connection::{ConnectTag, Port};
use crate::input::Input;
use crate::mailbox::{Mailbox, Mailboxes, Waker};
use crate::output::Output;
use crate::socket::Listener;
use crossbeam_utils::CachePadded;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use types::{BackgroundDemand, LatencyTarget, PollPolicy, ReactorId, UnixMillis};

type Log = Rc<RefCell<Vec<String>>>;

/// A scripted driver: a network made of lists.
struct Script {
    log: Log,
    events: Vec<NetworkEvent>,
    inputs: BTreeMap<ConnectionId, Vec<u8>>,
    /// Bytes accepted by `send` before it blocks.
    takes: usize,
    sent: Vec<u8>,
}

impl Driver for Script {
    fn begin(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<NetworkEvent>,
    ) -> std::io::Result<()> {
        if timeout != Some(Duration::ZERO) {
            self.log.borrow_mut().push("wait".into());
        }
        events.append(&mut self.events);
        Ok(())
    }

    fn listen(&mut self, _listener: Listener) -> std::io::Result<()> {
        Ok(())
    }

    fn stop_listening(&mut self) {}

    fn adopt(
        &mut self,
        _connection: ConnectionId,
        _socket: OwnedFd,
        _class: Class,
    ) -> std::io::Result<()> {
        Ok(())
    }

    fn is_sending(&self, _connection: ConnectionId) -> bool {
        false
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        _address: SocketAddr,
        _class: Class,
    ) -> std::io::Result<()> {
        self.events.push(NetworkEvent::Connected(connection));
        Ok(())
    }

    fn receive(&mut self, connection: ConnectionId, room: &mut Vec<u8>) -> ReceiveResult {
        let Some(input) = self.inputs.get_mut(&connection) else { return ReceiveResult::Nothing };
        let count = input.len().min(room.capacity() - room.len());
        room.extend(input.drain(..count));
        match count {
            0 => ReceiveResult::Nothing,
            _ => ReceiveResult::Bytes { count, may_have_more: !input.is_empty() },
        }
    }

    fn send(
        &mut self,
        _connection: ConnectionId,
        output: &mut Output,
        buffers: &mut Buffers,
    ) -> SendResult {
        output.seal();
        let mut bytes = 0;
        while !output.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); crate::output::SLICES_MAX];
            let count = output.slices(&mut slices);
            let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            let taken = all.len().min(self.takes);
            self.takes -= taken;
            self.sent.extend_from_slice(&all[..taken]);
            output.advance(taken, buffers);
            bytes += taken;
            if taken < all.len() {
                return SendResult::Blocked { bytes };
            }
        }
        SendResult::All { bytes }
    }

    fn finish(&mut self, _connection: ConnectionId) {}

    fn close(&mut self, _connection: ConnectionId) {}
}

/// A service that logs every call.
struct Diary {
    log: Log,
    background: usize,
    demand: BackgroundDemand,
    connections: Vec<ConnectionId>,
}

impl Diary {
    fn write(&self, line: impl Into<String>) {
        self.log.borrow_mut().push(line.into());
    }
}

impl Service for Diary {
    type Mail = &'static str;

    fn begin_turn(&mut self, _now: Instant, _wall: UnixMillis) {}

    fn opened(&mut self, connection: ConnectionId, _how: Opened, _io: &mut Io) {
        self.connections.push(connection);
    }

    fn connect_failed(
        &mut self,
        _connection: ConnectionId,
        _tag: ConnectTag,
        _error: std::io::Error,
        _io: &mut Io,
    ) {
    }

    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io) {
        self.write(format!("input {}", String::from_utf8_lossy(input.bytes())));
        io.output(connection).extend_from_slice(input.bytes());
        input.consume(input.len());
    }

    fn closed(&mut self, _connection: ConnectionId, why: Closed, _io: &mut Io) {
        self.write(format!("closed {why:?}"));
    }

    fn mail(&mut self, mail: &'static str, io: &mut Io) {
        self.write(format!("mail {mail}"));
        if mail == "connect" {
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            io.connect(address, ConnectTag(0), Class::Bus);
        }
    }

    fn end_of_input(&mut self, _io: &mut Io) {
        self.write("end of input");
    }

    fn tick(&mut self, _now: Instant, _io: &mut Io) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn has_background(&self) -> bool {
        self.background > 0
    }

    fn quantum(&mut self, _now: Instant, _io: &mut Io) -> bool {
        self.background -= 1;
        self.write("quantum");
        true
    }

    fn background_demand(&self) -> BackgroundDemand {
        self.demand
    }

    fn sleep(&mut self) {
        self.write("sleep");
    }

    fn wake(&mut self) {
        self.write("wake");
    }
}

struct Nobody;

impl Waker for Nobody {
    fn wake(&self) {}
}

struct World {
    reactor: Reactor<Diary, Script>,
    mailbox: Mailbox<&'static str>,
    log: Log,
}

impl World {
    fn new() -> World {
        let log = Log::default();
        let queue = MessageQueue::new(Box::new(Nobody));
        let mailbox = Mailbox::new(Arc::clone(&queue));
        let loads = vec![CachePadded::default()].into();
        let mailboxes = Mailboxes::new(vec![mailbox.clone()]);
        let (connections, demand) = (Vec::new(), BackgroundDemand::default());
        let reactor = Reactor::new(Parts {
            service: Diary { log: log.clone(), background: 0, demand, connections },
            driver: Script {
                log: log.clone(),
                events: Vec::new(),
                inputs: BTreeMap::new(),
                takes: usize::MAX,
                sent: Vec::new(),
            },
            queue,
            placement: ConnectionPlacement::new(ReactorId(0), loads, mailboxes),
            counters: Arc::default(),
            turns: Turns::new(PollPolicy::Sleep, false),
            processors: Processors::of_this_thread(None, Vec::new(), false),
        });
        World { reactor, mailbox, log }
    }

    fn connection(&mut self, class: Class) -> ConnectionId {
        let (peer, port) = (SocketAddr::from(([127, 0, 0, 1], 1)), Port(0));
        let socket =
            crate::socket::connect(peer, Class::Client).expect("a socket, connected or not");
        self.reactor.driver.events.push(NetworkEvent::Accepted(Accepted {
            socket,
            port,
            class,
            peer,
        }));
        self.turn();
        *self.reactor.service.connections.last().expect("it was opened")
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.reactor.driver.inputs.entry(connection).or_default().extend_from_slice(bytes);
        self.reactor.driver.events.push(NetworkEvent::Readable(connection));
    }

    /// Runs one turn, and returns the logged calls.
    fn turn(&mut self) -> Vec<String> {
        self.log.borrow_mut().clear();
        self.reactor.turn();
        self.log.borrow().clone()
    }
}

#[test]
fn a_turn_serves_priority_then_bus_then_clients_then_mail_then_background() {
    let mut world = World::new();
    let client = world.connection(Class::Client);
    let bus = world.connection(Class::Bus);
    let priority = world.connection(Class::Priority);
    world.send(client, b"client");
    world.send(bus, b"bus");
    world.send(priority, b"priority");
    world.mailbox.send("message");
    world.reactor.service.background = 2;
    world.reactor.service.demand.share = 100;
    let expected =
        ["input priority", "input bus", "input client", "mail message", "end of input", "quantum"];
    assert_eq!(world.turn(), expected);
}

#[test]
fn without_clients_there_is_one_quantum_per_turn_and_no_waiting() {
    let mut world = World::new();
    world.reactor.service.background = 3;
    for _ in 0..3 {
        assert_eq!(world.turn(), ["end of input", "quantum"]);
    }
    assert_eq!(world.turn(), ["sleep", "wait", "wake", "end of input"]);
}

#[test]
fn bulk_from_servers_does_not_hold_up_background_work_but_clients_do() {
    let mut world = World::new();
    let client = world.connection(Class::Client);
    let bus = world.connection(Class::Bus);
    world.reactor.service.background = 2;
    world.send(bus, b"pull");
    assert_eq!(world.turn(), ["input pull", "end of input", "quantum"]);
    world.send(client, b"get");
    assert_eq!(world.turn(), ["input get", "end of input"], "the share is 0");
}

#[test]
fn mail_sent_before_the_reactor_waits_keeps_it_from_waiting() {
    let mut world = World::new();
    world.mailbox.send("early");
    assert_eq!(world.turn(), ["sleep", "wake", "mail early", "end of input"]);
}

#[test]
fn many_clients_are_served_in_order_over_several_turns_and_priority_comes_between() {
    let mut world = World::new();
    let clients: Vec<_> = (0..40).map(|_| world.connection(Class::Client)).collect();
    let priority = world.connection(Class::Priority);
    for (number, &client) in clients.iter().enumerate() {
        world.send(client, number.to_string().as_bytes());
    }
    let mut first = world.turn();
    first.retain(|line| line.starts_with("input"));
    assert_eq!(first.len(), CONNECTIONS_PER_TURN_MAX);
    assert_eq!(first[31], "input 31");
    world.send(priority, b"first");
    let second = world.turn();
    assert_eq!(second[..2], ["input first", "input 32"]);
    assert_eq!(second[8], "input 39");
}

#[test]
fn a_deep_pipeline_is_served_one_bite_per_turn() {
    let mut world = World::new();
    let greedy = world.connection(Class::Client);
    let modest = world.connection(Class::Client);
    world.send(greedy, &[b'g'; 120_000]);
    world.send(modest, b"me too");
    for _ in 0..5 {
        world.turn();
    }
    let received = world.reactor.counters.read().bytes_in as usize;
    assert_eq!(received, 5 * crate::buffers::BUFFER_BYTES + b"me too".len());
    world.turn();
    assert_eq!(world.turn()[0], "sleep", "everything has been read");
    assert_eq!(world.reactor.counters.read().bytes_in, 120_006);
}

#[test]
fn output_that_did_not_fit_goes_on_when_the_socket_takes_more() {
    let mut world = World::new();
    let client = world.connection(Class::Client);
    world.reactor.driver.takes = 4;
    world.send(client, b"one two three");
    world.turn();
    assert_eq!(world.reactor.driver.sent, b"one ");
    assert_eq!(world.turn()[..2], ["sleep", "wait"], "a blocked socket is no work");
    world.send(client, b" four");
    world.turn();
    assert_eq!(world.reactor.driver.sent, b"one ");
    world.reactor.driver.takes = 100;
    world.reactor.driver.events.push(NetworkEvent::Writable(client));
    world.turn();
    assert_eq!(world.reactor.driver.sent, b"one two three four");
    assert_eq!(world.reactor.io.output_backlog(client), 0);
}

#[test]
fn asking_for_a_connection_is_answered_in_a_later_turn() {
    let mut world = World::new();
    world.mailbox.send("connect");
    world.turn();
    assert!(world.reactor.service.connections.is_empty());
    world.turn();
    assert_eq!(world.reactor.service.connections.len(), 1);
}

#[test]
fn stopping_closes_everything_and_ends_the_turns() {
    let mut world = World::new();
    world.connection(Class::Client);
    world.connection(Class::Bus);
    world.mailbox.post(ReactorMessage::Stop);
    let closed = "closed Stopping";
    assert_eq!(world.turn(), ["sleep", "wake", "end of input", closed, closed]);
    assert!(world.reactor.has_stopped());
}

/// The demand of a move that may not use more than the least share.
fn least_share(p99: Duration) -> BackgroundDemand {
    let target = Some(LatencyTarget { p99, share_max: 2 });
    BackgroundDemand { share: 0, target, is_urgent: false }
}

#[test]
fn background_work_with_a_latency_target_leaves_idle_time_unused_and_goes_on() {
    let mut world = World::new();
    world.reactor.service.background = usize::MAX;
    world.reactor.service.demand = least_share(Duration::from_secs(1));
    let (mut waits, mut quanta) = (0, 0);
    while waits < 10 || quanta < 10 {
        let calls = world.turn();
        waits += usize::from(calls.iter().any(|call| call == "wait"));
        quanta += usize::from(calls.iter().any(|call| call == "quantum"));
    }
    assert_eq!(world.reactor.counters.read().steered_share, 2);
    world.reactor.service.demand.is_urgent = true;
    world.turn();
    for _ in 0..100 {
        assert_eq!(world.turn(), ["end of input", "quantum"], "urgent work does not rest");
    }
    world.reactor.service.demand = BackgroundDemand::default();
    assert_eq!(world.turn(), ["end of input", "quantum"], "nor does work without a target");
    assert_eq!(world.reactor.counters.read().steered_share, 0);
}

#[test]
fn late_clients_halve_the_share_to_its_minimum() {
    let mut world = World::new();
    let client = world.connection(Class::Client);
    world.reactor.service.background = usize::MAX;
    let target = LatencyTarget { p99: Duration::from_nanos(1), share_max: 100 };
    world.reactor.service.demand.target = Some(target);
    let mut shares = Vec::new();
    while shares.last() != Some(&2) {
        world.send(client, b"get");
        world.turn();
        let counts = world.reactor.counters.read();
        if shares.last() != Some(&counts.steered_share) {
            shares.push(counts.steered_share);
        }
    }
    assert_eq!(shares, [10, 5, 2]);
    assert!(world.reactor.counters.read().seen_p99_ns > 0);
}
