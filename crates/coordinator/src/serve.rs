//! The coordinator's shell: sockets, clocks and random numbers around the machine.
//!
//! Runs on one thread. Every connection has two tasks: one reads frames and hands them to the
//! machine, one sends what the machine has for the connection. The machine itself is called from
//! one place, one event at a time.
//!
//! A connection that sends anything but control messages, or too much, is closed; the machine
//! never sees it.

use crate::outbox::{ConnectionId, Effect, Event, Moment, Outbox};
use crate::{Coordinator, Identity, MetaStore, Settings};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use types::{Instant, UnixMillis};
use wire::Corrupt;
use wire::control::{FromCoordinator, ToCoordinator};
use wire::frame::{self, HEADER_BYTES, Header};

/// How long the machine waits at most when it names no deadline.
const IDLE: Duration = Duration::from_secs(1);

/// A silent connection is closed by the operating system's keep-alive; one that does not say who
/// it is has this long.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until the process ends or the store fails.
pub fn serve<S: MetaStore>(
    listener: TcpListener,
    store: S,
    fresh: Identity,
    settings: Settings,
) -> io::Result<()> {
    let clock = Clock::start();
    let coordinator = Coordinator::open(store, fresh, settings, clock.moment().now)
        .map_err(|stopped| io::Error::other(stopped.to_string()))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (events, inbox) = unbounded_channel();
        let connections = BTreeMap::new();
        let shell = Shell { coordinator, clock, events, inbox, connections, next: 1 };
        tokio::task::LocalSet::new().run_until(shell.run(listener)).await
    })
}

/// The clocks, which only the shell reads.
struct Clock {
    start: std::time::Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the shell brings time in")]
    fn start() -> Clock {
        Clock { start: std::time::Instant::now() }
    }

    #[expect(clippy::disallowed_methods, reason = "the shell brings time in")]
    fn moment(&self) -> Moment {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Moment { now: Instant(now), wall: UnixMillis(wall) }
    }
}

struct Shell<S> {
    coordinator: Coordinator<S>,
    clock: Clock,
    events: UnboundedSender<Event>,
    inbox: UnboundedReceiver<Event>,
    /// Where each connection's messages wait to be sent; dropping it ends the connection.
    connections: BTreeMap<ConnectionId, UnboundedSender<FromCoordinator>>,
    next: u64,
}

impl<S: MetaStore> Shell<S> {
    async fn run(mut self, listener: tokio::net::TcpListener) -> io::Result<()> {
        loop {
            let now = self.clock.moment().now;
            let wait = self.coordinator.next_deadline().map_or(IDLE, |at| at.since(now).min(IDLE));
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.open(stream)?,
                    Err(error) => tracing::warn!(%error, "a connection cannot be accepted"),
                },
                event = self.inbox.recv() => {
                    if let Some(event) = event {
                        self.handle(event)?;
                    }
                }
                () = tokio::time::sleep(wait) => self.handle(Event::Tick)?,
            }
        }
    }

    fn open(&mut self, stream: TcpStream) -> io::Result<()> {
        let connection = ConnectionId(self.next);
        self.next += 1;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "a connection ended before it began");
            return Ok(());
        }
        let (reader, writer) = stream.into_split();
        let (sender, receiver) = unbounded_channel();
        self.connections.insert(connection, sender);
        tokio::task::spawn_local(receive(connection, reader, self.events.clone()));
        tokio::task::spawn_local(send(connection, writer, receiver, self.events.clone()));
        self.handle(Event::Opened { connection })
    }

    fn handle(&mut self, event: Event) -> io::Result<()> {
        if let Event::Closed { connection } = &event
            && self.connections.remove(connection).is_none()
        {
            return Ok(());
        }
        tracing::debug!(%event);
        let mut outbox = Outbox::new();
        let handled = self.coordinator.handle(self.clock.moment(), event, &mut outbox);
        for effect in outbox.drain() {
            tracing::debug!(%effect);
            match effect {
                Effect::Send { connection, message } => {
                    if let Some(sender) = self.connections.get(&connection) {
                        // The task that sends is gone if the connection is; its end is on its way.
                        let _ = sender.send(message);
                    }
                }
                Effect::Close { connection } => {
                    self.connections.remove(&connection);
                }
            }
        }
        handled.map_err(|stopped| io::Error::other(stopped.to_string()))
    }
}

/// Reads one connection to its end.
async fn receive(connection: ConnectionId, mut reader: OwnedReadHalf, events: UnboundedSender<Event>) {
    let first = tokio::time::timeout(GREETING_TIMEOUT, read(&mut reader)).await;
    let mut message = first.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    loop {
        match message {
            Ok(message) => {
                if events.send(Event::Received { connection, message }).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%connection, %error, "a connection has ended");
                break;
            }
        }
        message = read(&mut reader).await;
    }
    let _ = events.send(Event::Closed { connection });
}

async fn read(reader: &mut OwnedReadHalf) -> io::Result<ToCoordinator> {
    let broken = |error: Corrupt| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await?;
    let header = Header::parse(&header).map_err(broken)?;
    if header.payload_bytes != 0 {
        return Err(broken(Corrupt::Invalid { what: "payload on a control connection" }));
    }
    let mut message = vec![0; header.message_bytes];
    reader.read_exact(&mut message).await?;
    header.message(&message).map_err(broken)
}

/// Sends what the machine has for one connection, until it is closed.
async fn send(
    connection: ConnectionId,
    mut writer: OwnedWriteHalf,
    mut messages: UnboundedReceiver<FromCoordinator>,
    events: UnboundedSender<Event>,
) {
    while let Some(message) = messages.recv().await {
        let mut bytes = Vec::new();
        frame::encode(&message, 0, &mut bytes);
        if writer.write_all(&bytes).await.is_err() {
            let _ = events.send(Event::Closed { connection });
            return;
        }
    }
}
