//! The task of one connection: moves bytes and timers of a [`Link`].
//!
//! It ends when the peer closes the connection, or when the link does: the peer violates the
//! protocol or is silent for too long, or the machine has closed the connection and all earlier
//! messages have been sent.

use crate::clock::ShellClock;
use coordinator::{Caller, CoordinatorEvent, LinkId};
use handshake::{Accepting, Credentials, ProvenPeer, SERVED_BY_COORDINATORS};
use links::{Link, LinkEffect, LinkEffects, LinkEnd, LinkEvent, encoded};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use types::ClusterId;
use wire::control::{FromCoordinator, ToCoordinator};
use wire::handshake::ConnectionPurpose;

// The segments listed to a recovery master in a second leave as much room for everything else.
const _: () = assert!(2 * coordinator::LISTED_BYTES_MAX <= links::QUEUE_BYTES_MAX);

/// Bytes read from a connection at a time.
const INPUT_BYTES: usize = 8 << 10;

/// The coordinator's side of a handshake.
pub(crate) struct Host {
    pub(crate) credentials: Credentials,
    pub(crate) cluster: Option<ClusterId>,
}

/// The sending side of a connection. Dropping it closes the connection once everything is sent.
pub(crate) struct Outgoing {
    shared: Rc<SharedLink>,
}

impl Outgoing {
    /// Queues a message.
    ///
    /// A message too large for a frame is dropped: messages are bounded at their origin, so this is
    /// a bug here, and no reason to disconnect the server.
    pub(crate) fn push(&self, message: &FromCoordinator) {
        match encoded(message) {
            Ok(frame) => self.shared.handle(LinkEvent::Send(frame)),
            Err(error) => {
                tracing::error!(%error, "message to a server dropped, please report this bug");
            }
        }
        self.shared.changed.notify_one();
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.shared.handle(LinkEvent::Finish);
        self.shared.changed.notify_one();
    }
}

/// A link that its task and the sender of its messages share.
struct SharedLink {
    link: RefCell<(Link<ToCoordinator>, LinkEffects<ToCoordinator>)>,
    /// Wakes the task after an event of the sender.
    changed: Notify,
    clock: ShellClock,
}

impl SharedLink {
    fn handle(&self, event: LinkEvent<'_>) {
        let (link, effects) = &mut *self.link.borrow_mut();
        link.handle(self.clock.now(), event, effects);
    }

    fn next_effect(&self) -> Option<LinkEffect<ToCoordinator>> {
        self.link.borrow_mut().1.pop_front()
    }

    fn wants_input(&self) -> bool {
        self.link.borrow().0.wants_input()
    }

    /// Returns the time until the next deadline.
    fn time_left(&self) -> Duration {
        let deadline = self.link.borrow().0.next_deadline();
        deadline.map_or(Duration::MAX, |deadline| deadline.since(self.clock.now()))
    }
}

/// Starts a connection's task. Its events begin with [`CoordinatorEvent::Opened`] after the
/// handshake, and end with [`CoordinatorEvent::Closed`].
///
/// # Errors
/// The system has no random bytes.
pub(crate) fn start(
    connection: LinkId,
    stream: TcpStream,
    host: &Host,
    clock: ShellClock,
    events: Sender<CoordinatorEvent>,
) -> io::Result<Outgoing> {
    let nonce = handshake::new_nonce()?;
    let here = Accepting { purposes: SERVED_BY_COORDINATORS, cluster: host.cluster, server: None };
    let link = Link::accept(clock.now(), &host.credentials, here, nonce);
    let link = RefCell::new((link, LinkEffects::new()));
    let shared = Rc::new(SharedLink { link, changed: Notify::new(), clock });
    let outgoing = Outgoing { shared: shared.clone() };
    let frame = io::Cursor::new(Vec::new());
    let mut task =
        ConnectionTask { connection, shared, frame, event: None, events, is_proven: false };
    tokio::task::spawn_local(async move {
        let peer = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
        match task.run(stream).await {
            Ok(()) => {}
            Err(error) if task.is_proven => {
                tracing::info!(%connection, %error, "server connection closed");
            }
            // A port probe: the peer closed the connection without sending anything.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => tracing::warn!(%peer, %error, "connection rejected"),
        }
        // The receiver may be gone.
        let _ = task.events.send(CoordinatorEvent::Closed { connection }).await;
    });
    Ok(outgoing)
}

struct ConnectionTask {
    connection: LinkId,
    shared: Rc<SharedLink>,
    /// The frame that is being written; nothing is left of it otherwise.
    frame: io::Cursor<Vec<u8>>,
    /// The event that waits for room in the queue of events.
    event: Option<CoordinatorEvent>,
    events: Sender<CoordinatorEvent>,
    is_proven: bool,
}

impl ConnectionTask {
    /// Moves bytes until one side closes the connection.
    async fn run(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut reader, mut writer) = stream.into_split();
        let mut input = Vec::with_capacity(INPUT_BYTES);
        loop {
            while let Some(effect) = self.shared.next_effect() {
                if let Some(end) = self.execute(effect) {
                    // The peer may have closed the connection already.
                    let _ = writer.shutdown().await;
                    let is_orderly = end == LinkEnd::Finished && self.is_proven;
                    return if is_orderly { Ok(()) } else { Err(end.into()) };
                }
            }
            let is_writing = self.frame.position() < self.frame.get_ref().len() as u64;
            let time_left = self.shared.time_left();
            // The timer comes last: it counts only if nothing has arrived.
            tokio::select! {
                biased;
                written = writer.write_all_buf(&mut self.frame), if is_writing => {
                    written?;
                    self.shared.handle(LinkEvent::Written);
                }
                permit = self.events.reserve(), if self.event.is_some() => {
                    // The coordinator has stopped.
                    let Ok(permit) = permit else { return Ok(()) };
                    if let Some(event) = self.event.take() {
                        permit.send(event);
                    }
                    self.shared.handle(LinkEvent::Delivered);
                }
                read = reader.read_buf(&mut input), if self.shared.wants_input() => {
                    if read? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.shared.handle(LinkEvent::Received(&input));
                    input.clear();
                }
                () = self.shared.changed.notified() => {}
                () = tokio::time::sleep(time_left) => self.shared.handle(LinkEvent::Tick),
            }
        }
    }

    /// Executes an effect. Returns the reason if the connection shall be closed.
    fn execute(&mut self, effect: LinkEffect<ToCoordinator>) -> Option<LinkEnd> {
        let connection = self.connection;
        match effect {
            LinkEffect::Write(frame) => self.frame = io::Cursor::new(frame),
            LinkEffect::Proven(peer) => {
                self.is_proven = true;
                self.shared.handle(LinkEvent::Accepted);
                let caller = caller(&peer);
                self.event = Some(CoordinatorEvent::Opened { connection, caller });
            }
            LinkEffect::Deliver(message) => {
                self.event = Some(CoordinatorEvent::Received { connection, message });
            }
            LinkEffect::Close(end) => return Some(end),
        }
        None
    }
}

/// Returns the process at the other end of a proven connection.
fn caller(peer: &ProvenPeer) -> Caller {
    match peer.purpose {
        ConnectionPurpose::Control => Caller::Server {
            number: peer.party.cluster.zip(peer.party.server),
            generation: peer.party.generation,
        },
        ConnectionPurpose::Operator => Caller::Operator,
        ConnectionPurpose::Bus | ConnectionPurpose::Priority => {
            unreachable!("coordinators do not serve these")
        }
    }
}
