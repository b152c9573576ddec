//! One connection of a server: frames in, frames out, signs of life, limits.
//!
//! It ends when the peer ends it, breaks a rule or is silent for too long, and when the machine has
//! closed it and everything before that has been sent.

use crate::outbox::{ConnectionId, Event};
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use wire::Corrupt;
use wire::control::{ALIVE_AGAIN, FromCoordinator, SILENCE_MAX, ToCoordinator};
use wire::frame::{self, HEADER_BYTES, Header, MESSAGE_BYTES_MAX};

/// Longest first message: a join names a host and some numbers.
const JOIN_BYTES_MAX: usize = 1024;
/// Bytes that may wait to be sent: some of the largest maps.
const WAITING_BYTES_MAX: usize = 16 * MESSAGE_BYTES_MAX;
/// A peer that takes nothing for so long is cut off.
const SEND_MAX: Duration = Duration::from_secs(5);

/// Frames that wait to be sent. Dropping it ends the connection behind them.
pub(super) struct Outgoing {
    frames: UnboundedSender<Vec<u8>>,
    waiting_bytes: Rc<Cell<usize>>,
}

impl Outgoing {
    /// Adds a message. A connection that is too slow for what it has to hear will end instead: it
    /// must not miss a message and go on. A message that no frame can carry is left out: its size is
    /// bounded where it is made, so this is a fault of ours, and no reason to part with the server.
    pub(super) fn push(&self, message: &FromCoordinator) {
        let mut bytes = Vec::new();
        if let Err(error) = frame::encode(message, 0, &mut bytes) {
            tracing::error!(%error, "a message to a server was dropped: please report this");
            return;
        }
        let waiting = self.waiting_bytes.get() + bytes.len();
        self.waiting_bytes.set(waiting);
        if waiting <= WAITING_BYTES_MAX {
            // A connection that has ended takes nothing; its end is on its way to the machine.
            let _ = self.frames.send(bytes);
        }
    }
}

/// Starts a connection's task. Its events end with [`Event::Closed`].
pub(super) fn start(
    connection: ConnectionId,
    stream: TcpStream,
    events: Sender<Event>,
) -> Outgoing {
    let (frames, queue) = unbounded_channel();
    let waiting_bytes = Rc::new(Cell::new(0));
    let outgoing = Outgoing { frames, waiting_bytes: waiting_bytes.clone() };
    tokio::task::spawn_local(async move {
        let result = converse(connection, stream, (queue, waiting_bytes), &events).await;
        if let Err(error) = result {
            tracing::info!(%connection, %error, "a connection of a server has ended");
        }
        // Whoever receives may be gone.
        let _ = events.send(Event::Closed { connection }).await;
    });
    outgoing
}

/// Runs until one direction ends.
async fn converse(
    connection: ConnectionId,
    stream: TcpStream,
    (queue, waiting_bytes): (UnboundedReceiver<Vec<u8>>, Rc<Cell<usize>>),
    events: &Sender<Event>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    tokio::select! {
        result = receive(connection, reader, events) => result,
        result = send(writer, queue, &waiting_bytes) => result,
    }
}

async fn receive(
    connection: ConnectionId,
    mut reader: OwnedReadHalf,
    events: &Sender<Event>,
) -> io::Result<()> {
    let mut bytes_max = JOIN_BYTES_MAX;
    loop {
        let read = read(&mut reader, bytes_max);
        let message = timeout(SILENCE_MAX, read).await.map_err(|_| silent())??;
        bytes_max = MESSAGE_BYTES_MAX;
        if let Some(message) = message
            && events.send(Event::Received { connection, message }).await.is_err()
        {
            return Ok(());
        }
    }
}

/// One frame; `None` is a sign of life.
async fn read(reader: &mut OwnedReadHalf, bytes_max: usize) -> io::Result<Option<ToCoordinator>> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await?;
    let header = Header::parse(&header).map_err(broken)?;
    if header.payload_bytes != 0 || header.message_bytes > bytes_max {
        return Err(broken(Corrupt::Invalid { what: "length of a frame for the coordinator" }));
    }
    let mut message = vec![0; header.message_bytes];
    reader.read_exact(&mut message).await?;
    if message.is_empty() {
        return header.message(&message).map(|()| None).map_err(broken);
    }
    header.message(&message).map(Some).map_err(broken)
}

/// Sends until the machine has closed the connection.
async fn send(
    mut writer: OwnedWriteHalf,
    mut queue: UnboundedReceiver<Vec<u8>>,
    waiting_bytes: &Cell<usize>,
) -> io::Result<()> {
    let mut alive = Vec::new();
    frame::encode(&(), 0, &mut alive).map_err(io::Error::other)?;
    loop {
        let bytes = match timeout(ALIVE_AGAIN, queue.recv()).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return writer.shutdown().await,
            Err(_) => {
                waiting_bytes.set(waiting_bytes.get() + alive.len());
                alive.clone()
            }
        };
        if waiting_bytes.get() > WAITING_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not keep up"));
        }
        timeout(SEND_MAX, writer.write_all(&bytes)).await.map_err(|_| silent())??;
        waiting_bytes.set(waiting_bytes.get() - bytes.len());
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing was heard for too long")
}

fn broken(error: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
