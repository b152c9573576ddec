//! A process without free descriptors refuses new connections, and serves existing ones.
//!
//! This test has its own file because the limit holds for the whole process.

mod common;

use common::{ECHO, Notice, expect, frame, send, server_on};
use runtime::DriverKind;
use rustix::net::{self, AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;
use types::PollPolicy;

const DRIVER: DriverKind = DriverKind::Epoll;
const WAITING: usize = 20;

#[test]
fn without_descriptors_new_clients_are_refused_and_old_ones_served() {
    for driver in [DriverKind::Epoll, DriverKind::Uring] {
        refuse_and_serve(driver);
    }
}

fn refuse_and_serve(driver: DriverKind) {
    let server = server_on(driver, 1, PollPolicy::Sleep);
    let mut steady = server.client();
    server.opened();
    let sockets: Vec<_> = (0..WAITING)
        .map(|_| net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket"))
        .collect();
    let before = getrlimit(Resource::Nofile);
    let highest = sockets.iter().map(|socket| socket.as_raw_fd()).max().expect("some sockets");
    let room_for_three = Rlimit { current: Some(highest as u64 + 4), ..before };
    setrlimit(Resource::Nofile, room_for_three).expect("a limit may be lowered");

    let mut clients = Vec::new();
    for socket in sockets {
        net::connect(&socket, &server.clients).expect("the system takes it");
        clients.push(TcpStream::from(socket));
    }
    let served = clients.iter_mut().map(is_served).filter(|served| *served).count();
    assert!((1..=5).contains(&served), "{served} served");
    let request = frame(ECHO, b"still here");
    send(&mut steady, &request);
    expect(&mut steady, &request);

    // With free descriptors, new connections are served again.
    setrlimit(Resource::Nofile, before).expect("a limit may be raised again");
    for _ in 0..served {
        assert!(matches!(server.next(), Notice::Opened(..)));
    }
    assert!(is_served(&mut server.client()));
    server.reactors.stop();
}

/// Returns whether the client is answered. If not, the server has closed the connection.
fn is_served(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let request = frame(ECHO, b"?");
    let mut answer = vec![0; request.len()];
    let outcome = client.write_all(&request).and_then(|()| client.read_exact(&mut answer));
    match outcome.map_err(|error| error.kind()) {
        Ok(()) => true,
        Err(ErrorKind::WouldBlock) => panic!("neither served nor refused"),
        Err(_) => false,
    }
}
