//! One connection: handshake, incoming and outgoing frames, keep-alives and limits.
//!
//! It ends when the peer closes it, violates the protocol or is silent for too long. It also ends
//! when the machine has closed it and all earlier messages have been sent.

use coordinator::{Caller, CoordinatorEvent, LinkId};
use handshake::{
    Accepting, Credentials, Handshake, HandshakeStep, ProvenPeer, SERVED_BY_COORDINATORS,
};
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use types::ClusterId;
use wire::Corrupt;
use wire::control::{ALIVE_AGAIN, FromCoordinator, SILENCE_MAX, ToCoordinator};
use wire::frame::{self, HEADER_BYTES, Header, MESSAGE_BYTES_MAX};
use wire::handshake::{ConnectionPurpose, HANDSHAKE_BYTES_MAX, HANDSHAKE_MAX, HandshakeMessage};

/// Most bytes queued for sending: several of the largest maps.
const WAITING_BYTES_MAX: usize = 16 * MESSAGE_BYTES_MAX;
/// Longest time for one write before the peer is disconnected.
const SEND_MAX: Duration = Duration::from_secs(5);

/// The coordinator's side of a handshake.
pub(crate) struct Host {
    pub(crate) credentials: Credentials,
    pub(crate) cluster: Option<ClusterId>,
}

/// Queue of outgoing frames. Dropping it closes the connection once they are sent.
pub(crate) struct Outgoing {
    frames: UnboundedSender<Vec<u8>>,
    waiting_bytes: Rc<Cell<usize>>,
}

impl Outgoing {
    /// Queues a message.
    ///
    /// A connection that is too slow for its messages will be closed, because it must not skip
    /// one and continue. A message too large for a frame is dropped: messages are bounded at
    /// their origin, so this is a bug here, and no reason to disconnect the server.
    pub(crate) fn push(&self, message: &FromCoordinator) {
        let mut bytes = Vec::new();
        if let Err(error) = frame::encode(message, 0, &mut bytes) {
            tracing::error!(%error, "message to a server dropped, please report this bug");
            return;
        }
        let waiting = self.waiting_bytes.get() + bytes.len();
        self.waiting_bytes.set(waiting);
        if waiting <= WAITING_BYTES_MAX {
            // An ended connection accepts nothing; the machine will receive its end as an event.
            let _ = self.frames.send(bytes);
        }
    }
}

/// Starts a connection's task. Its events begin with [`CoordinatorEvent::Opened`] after the
/// handshake, and end with [`CoordinatorEvent::Closed`].
pub(crate) fn start(
    connection: LinkId,
    stream: TcpStream,
    host: Host,
    events: Sender<CoordinatorEvent>,
) -> Outgoing {
    let (frames, queue) = unbounded_channel();
    let waiting_bytes = Rc::new(Cell::new(0));
    let outgoing = Outgoing { frames, waiting_bytes: waiting_bytes.clone() };
    tokio::task::spawn_local(async move {
        let peer = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
        let queue = OutgoingFrames { queue, waiting_bytes };
        match prove(stream, &host, queue).await {
            Ok(proven) => {
                if let Err(error) = converse(connection, proven, &events).await {
                    tracing::info!(%connection, %error, "server connection closed");
                }
            }
            // A port probe: the peer closed the connection without sending anything.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => tracing::warn!(%peer, %error, "connection rejected"),
        }
        // The receiver may be gone.
        let _ = events.send(CoordinatorEvent::Closed { connection }).await;
    });
    outgoing
}

/// The connection's end of the queue of outgoing frames.
struct OutgoingFrames {
    queue: UnboundedReceiver<Vec<u8>>,
    waiting_bytes: Rc<Cell<usize>>,
}

/// A connection whose peer is proven.
struct ProvenConnection {
    caller: Caller,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    frames: OutgoingFrames,
}

/// Performs the handshake within its time limit.
async fn prove(
    stream: TcpStream,
    host: &Host,
    mut frames: OutgoingFrames,
) -> io::Result<ProvenConnection> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.into_split();
    let proven = tokio::select! {
        proven = timeout(HANDSHAKE_MAX, shake_hands(&mut reader, &mut writer, host)) => {
            proven.map_err(|_| late())??
        }
        // Nothing is queued before the handshake is over: the connection was closed.
        _ = frames.queue.recv() => {
            return Err(io::Error::other("closed before the handshake ended"));
        }
    };
    let caller = match proven.purpose {
        ConnectionPurpose::Control => Caller::Server {
            number: proven.party.cluster.zip(proven.party.server),
            generation: proven.party.generation,
        },
        ConnectionPurpose::Operator => Caller::Operator,
        ConnectionPurpose::Bus | ConnectionPurpose::Priority => {
            unreachable!("coordinators do not serve these")
        }
    };
    Ok(ProvenConnection { caller, reader, writer, frames })
}

async fn shake_hands(
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
    host: &Host,
) -> io::Result<ProvenPeer> {
    let purposes = SERVED_BY_COORDINATORS;
    let here = Accepting { purposes, cluster: host.cluster, server: None };
    let nonce = handshake::new_nonce()?;
    let mut handshake = Handshake::accept(&host.credentials, here, nonce);
    loop {
        let message: Option<HandshakeMessage> = read(reader, HANDSHAKE_BYTES_MAX).await?;
        // Keep-alives are not part of a handshake.
        let message = message.ok_or_else(late)?;
        match handshake.handle(message) {
            HandshakeStep::Reply(reply) => say(writer, &reply).await?,
            HandshakeStep::Proven { peer, last } => {
                if let Some(last) = last {
                    say(writer, &last).await?;
                }
                return Ok(peer);
            }
            HandshakeStep::Refused { error, refusal } => {
                if let Some(refusal) = refusal {
                    say(writer, &refusal).await?;
                    writer.shutdown().await?;
                }
                return Err(error.into());
            }
        }
    }
}

async fn say(writer: &mut OwnedWriteHalf, message: &HandshakeMessage) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).map_err(io::Error::other)?;
    writer.write_all(&bytes).await
}

/// Receives and sends until one direction ends.
async fn converse(
    connection: LinkId,
    proven: ProvenConnection,
    events: &Sender<CoordinatorEvent>,
) -> io::Result<()> {
    let ProvenConnection { caller, reader, writer, frames } = proven;
    if events.send(CoordinatorEvent::Opened { connection, caller }).await.is_err() {
        return Ok(());
    }
    tokio::select! {
        result = receive(connection, reader, events) => result,
        result = send(writer, frames) => result,
    }
}

async fn receive(
    connection: LinkId,
    mut reader: OwnedReadHalf,
    events: &Sender<CoordinatorEvent>,
) -> io::Result<()> {
    loop {
        let read = read(&mut reader, MESSAGE_BYTES_MAX);
        let message: Option<ToCoordinator> =
            timeout(SILENCE_MAX, read).await.map_err(|_| silent())??;
        if let Some(message) = message
            && events.send(CoordinatorEvent::Received { connection, message }).await.is_err()
        {
            return Ok(());
        }
    }
}

/// Reads one frame; `None` is a keep-alive.
async fn read<M: DeserializeOwned>(
    reader: &mut OwnedReadHalf,
    bytes_max: usize,
) -> io::Result<Option<M>> {
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

/// Sends queued frames and keep-alives until the machine closes the connection.
async fn send(mut writer: OwnedWriteHalf, frames: OutgoingFrames) -> io::Result<()> {
    let OutgoingFrames { mut queue, waiting_bytes } = frames;
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
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server reads too slowly"));
        }
        timeout(SEND_MAX, writer.write_all(&bytes)).await.map_err(|_| silent())??;
        let waiting = waiting_bytes.get();
        assert!(bytes.len() <= waiting, "more bytes were sent than were queued");
        waiting_bytes.set(waiting - bytes.len());
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake timed out")
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the connection timed out")
}

fn broken(error: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
