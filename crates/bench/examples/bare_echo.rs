//! Minimal server with epoll: waits, reads and answers without parsing the requests.
//!
//! cargo run --release -p bench --example bare_echo PORT
//!
//! Every `*` counts as the beginning of a request and is answered with a value of 100 bytes, so
//! that valkey-benchmark accepts the program as a server. It is a lower bound for the cost of a
//! server.

use anyhow::Context;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const VALUE_BYTES: usize = 100;

fn main() -> anyhow::Result<()> {
    let port = std::env::args().nth(1).context("which port?")?.parse::<u16>()?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(0), EventFlags::IN)?;
    // The number of a connection is its index plus one.
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let value = [b"$100\r\n", &[b'x'; VALUE_BYTES][..], b"\r\n"].concat();
    let mut events = Vec::with_capacity(256);
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == 0 {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                let data = EventData::new_u64(connections.len() as u64 + 1);
                epoll::add(&epoll, &stream, data, EventFlags::IN)?;
                connections.push(Some(stream));
                continue;
            }
            let place = &mut connections[number as usize - 1];
            if place.as_mut().is_some_and(|stream| answer(stream, &value).is_err()) {
                // Closing removes the connection from epoll.
                *place = None;
            }
        }
    }
}

fn answer(stream: &mut TcpStream, value: &[u8]) -> anyhow::Result<()> {
    let mut room = [0; 16 << 10];
    let count = stream.read(&mut room)?;
    anyhow::ensure!(count > 0, "the peer has closed");
    let requests = room[..count].iter().filter(|byte| **byte == b'*').count();
    match requests {
        0 => {}
        1 => stream.write_all(value)?,
        _ => stream.write_all(&value.repeat(requests))?,
    }
    Ok(())
}
