//! A small test service over loopback, with frames of {length u32, operation u8, body}.

#![allow(dead_code, reason = "each test file uses its part")]

use runtime::{
    Class, Closed, Config, ConnectTag, DriverKind, Input, Io, LARGE_MESSAGE_BYTES, Listener,
    Mailboxes, Opened, Port, Reactors, Service,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use types::{BackgroundDemand, ConnectionId, Instant, PollPolicy, ReactorId, UnixMillis};

/// Returns the frame.
pub(crate) const ECHO: u8 = b'e';
/// Returns as many bytes as the body specifies (u32).
pub(crate) const FLOOD: u8 = b'f';
/// Returns the frame and closes the connection.
pub(crate) const QUIT: u8 = b'q';
/// Closes the connection at once.
pub(crate) const DROP: u8 = b'x';
/// Stops reading the connection until `Mail::Resume`.
pub(crate) const PAUSE: u8 = b'p';
/// Returns the reactor's number.
pub(crate) const WHERE: u8 = b'w';

const HEADER_BYTES: usize = 5;

/// A report of the service to the test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Opened(ConnectionId, Opened),
    ConnectFailed(ConnectTag),
    Closed(ConnectionId, Closed),
    Paused(ConnectionId),
    Mail(u64),
}

pub(crate) enum Mail {
    Resume(ConnectionId),
    Connect(SocketAddr, ConnectTag),
    Say(ConnectionId, Vec<u8>),
    Number(u64),
}

pub(crate) struct Frames {
    reactor: ReactorId,
    tell: Sender<Notice>,
}

impl Frames {
    fn answer(&mut self, connection: ConnectionId, frame: Vec<u8>, io: &mut Io) {
        match frame[4] {
            ECHO if frame.len() > 4096 => io.send_owned(connection, frame),
            ECHO => io.output(connection).extend_from_slice(&frame),
            FLOOD => {
                let count = u32::from_le_bytes(frame[5..9].try_into().expect("four bytes"));
                io.send_owned(connection, vec![FLOOD; count as usize]);
            }
            QUIT => {
                io.output(connection).extend_from_slice(&frame);
                io.close_after_flush(connection);
            }
            DROP => io.close(connection),
            PAUSE => {
                io.pause_reading(connection);
                self.tell(Notice::Paused(connection));
            }
            WHERE => io.output(connection).extend_from_slice(&[self.reactor.0 as u8]),
            operation => panic!("the test sent operation {operation}"),
        }
    }

    fn tell(&self, told: Notice) {
        // The receiver is gone if the test has seen enough.
        let _ = self.tell.send(told);
    }
}

impl Service for Frames {
    type Mail = Mail;

    fn begin_turn(&mut self, _now: Instant, _wall: UnixMillis) {}

    fn opened(&mut self, connection: ConnectionId, how: Opened, _io: &mut Io) {
        self.tell(Notice::Opened(connection, how));
    }

    fn connect_failed(
        &mut self,
        _connection: ConnectionId,
        tag: ConnectTag,
        _error: std::io::Error,
        _io: &mut Io,
    ) {
        self.tell(Notice::ConnectFailed(tag));
    }

    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io) {
        while let Some(header) = input.bytes().first_chunk::<4>() {
            let length = u32::from_le_bytes(*header) as usize;
            if !(HEADER_BYTES..=64 << 20).contains(&length) {
                return io.close(connection);
            }
            if input.len() < length {
                return input.want(length);
            }
            if io.is_congested(connection) {
                return;
            }
            let is_pause = input.bytes()[4] == PAUSE;
            let frame = input.take(length);
            if length >= LARGE_MESSAGE_BYTES {
                input.expect_message(length);
            }
            self.answer(connection, frame, io);
            if is_pause {
                return;
            }
        }
    }

    fn closed(&mut self, connection: ConnectionId, why: Closed, _io: &mut Io) {
        self.tell(Notice::Closed(connection, why));
    }

    fn mail(&mut self, mail: Mail, io: &mut Io) {
        match mail {
            Mail::Resume(connection) => io.resume_reading(connection),
            Mail::Connect(address, tag) => {
                io.connect(address, tag, Class::Bus);
            }
            Mail::Say(connection, bytes) => io.output(connection).extend_from_slice(&bytes),
            Mail::Number(number) => self.tell(Notice::Mail(number)),
        }
    }

    fn end_of_input(&mut self, _io: &mut Io) {}
    fn tick(&mut self, _now: Instant, _io: &mut Io) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn has_background(&self) -> bool {
        false
    }
    fn quantum(&mut self, _now: Instant, _io: &mut Io) -> bool {
        false
    }
    fn background_demand(&self) -> BackgroundDemand {
        BackgroundDemand::default()
    }
    fn sleep(&mut self) {}
    fn wake(&mut self) {}
}

/// Running reactors with their addresses and the reports of their services.
pub(crate) struct Server {
    pub(crate) reactors: Reactors<Mail>,
    pub(crate) clients: SocketAddr,
    pub(crate) bus: SocketAddr,
    pub(crate) told: Receiver<Notice>,
}

pub(crate) const CLIENTS: Port = Port(1);
pub(crate) const BUS: Port = Port(2);

/// Starts reactors on the driver under test in this file.
pub(crate) fn server(reactors: u16, poll: PollPolicy) -> Server {
    server_on(crate::DRIVER, reactors, poll)
}

/// Starts reactors on a driver. If the system refuses io_uring, prints a line and uses epoll.
pub(crate) fn server_on(driver: DriverKind, reactors: u16, poll: PollPolicy) -> Server {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let clients = Listener::bind(any, CLIENTS, Class::Client).expect("a free port");
    let bus = Listener::bind(any, BUS, Class::Bus).expect("a free port");
    let (clients_at, bus_at) = (clients.address(), bus.address());
    let (tell, told) = channel();
    let wanted = Some(driver).filter(|driver| *driver == DriverKind::Epoll);
    let config = Config { reactors, poll, cores_shared: true, pin: false, driver: wanted };
    let make = move |reactor, _: Mailboxes<Mail>| Frames { reactor, tell: tell.clone() };
    let reactors = Reactors::start(&config, vec![clients, bus], make).expect("reactors start");
    if let Some(why) = reactors.why_not_uring() {
        eprintln!("SKIPPED on io_uring, which cannot be used here ({why}): run on epoll instead");
    }
    Server { reactors, clients: clients_at, bus: bus_at, told }
}

impl Server {
    /// Returns a blocking client. A reply that takes longer than ten seconds fails the test.
    pub(crate) fn client(&self) -> TcpStream {
        connect(self.clients)
    }

    pub(crate) fn next(&self) -> Notice {
        self.told.recv_timeout(Duration::from_secs(10)).expect("the service tells something")
    }

    /// Returns the next report that is not an opening.
    pub(crate) fn next_event(&self) -> Notice {
        loop {
            match self.next() {
                Notice::Opened(..) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn opened(&self) -> ConnectionId {
        match self.next() {
            Notice::Opened(connection, _) => connection,
            other => panic!("expected an opening, got {other:?}"),
        }
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.set_nodelay(true).expect("a TCP socket");
    stream
}

pub(crate) fn frame(operation: u8, body: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + body.len()) as u32;
    let mut frame = length.to_le_bytes().to_vec();
    frame.push(operation);
    frame.extend_from_slice(body);
    frame
}

pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("the server takes it");
}

pub(crate) fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).expect("the server answers");
    assert!(got == bytes, "the answer differs");
}

/// Checks that the server has closed the connection, and that no more bytes come.
pub(crate) fn expect_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let end = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{} bytes came before the end ({end:?})", rest.len());
    if let Err(error) = end {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}
