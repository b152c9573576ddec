//! The sockets of a reactor, as its core and its bus use them.

use super::addresses::AddressBook;
use bus::ReceivedBytes;
use front::core::Connections;
use runtime::{Class, ConnectTag, Input, Io};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::ConnectionId;
use wire::control::ServerInfo;
use wire::handshake::Nonce;

/// The sockets of clients.
pub(super) struct ClientSockets<'i>(pub(super) &'i mut Io);

impl Connections for ClientSockets<'_> {
    #[inline]
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.0.output(connection)
    }

    fn resume_reading(&mut self, connection: ConnectionId) {
        self.0.resume_reading(connection);
    }

    fn pause_reading(&mut self, connection: ConnectionId) {
        self.0.pause_reading(connection);
    }

    fn close_after_flush(&mut self, connection: ConnectionId) {
        self.0.close_after_flush(connection);
    }

    fn close(&mut self, connection: ConnectionId) {
        self.0.close(connection);
    }

    fn backlog(&self, connection: ConnectionId) -> usize {
        self.0.output_backlog(connection)
    }
}

/// The sockets to other servers, and their addresses.
pub(super) struct BusSockets<'i> {
    pub(super) io: &'i mut Io,
    pub(super) addresses: &'i Arc<AddressBook>,
}

impl bus::Sockets for BusSockets<'_> {
    fn connect(&mut self, to: &ServerInfo, is_priority: bool) -> Option<(ConnectionId, IpAddr)> {
        let address = self.addresses.look_up(&to.host)?;
        let class = if is_priority { Class::Priority } else { Class::Bus };
        let to = SocketAddr::new(address, to.bus_port);
        Some((self.io.connect(to, ConnectTag(0), class), address))
    }

    fn avoid(&mut self, server: &ServerInfo, address: IpAddr) {
        self.addresses.failed(&server.host, address);
    }

    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.io.output(connection)
    }

    fn send_payload(&mut self, connection: ConnectionId, payload: Vec<u8>) {
        self.io.send_owned(connection, payload);
    }

    fn backlog(&self, connection: ConnectionId) -> usize {
        self.io.output_backlog(connection)
    }

    fn prioritize(&mut self, connection: ConnectionId) {
        self.io.set_class(connection, Class::Priority);
    }

    fn close(&mut self, connection: ConnectionId) {
        self.io.close(connection);
    }

    fn close_after_flush(&mut self, connection: ConnectionId) {
        self.io.close_after_flush(connection);
    }

    fn draw_nonce(&mut self) -> Option<Nonce> {
        handshake::new_nonce()
            .inspect_err(|error: &io::Error| {
                tracing::error!(%error, "cannot read random bytes from the system");
            })
            .ok()
    }
}

/// The input of a connection to another server.
pub(super) struct BusInput<'i>(pub(super) &'i mut Input);

impl ReceivedBytes for BusInput<'_> {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn want(&mut self, bytes: usize) {
        self.0.want(bytes);
    }

    fn consume(&mut self, bytes: usize) {
        self.0.consume(bytes);
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        self.0.take(bytes)
    }
}
