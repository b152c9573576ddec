//! The thread on which a machine runs, with its listening socket and its clocks.
//!
//! Everything runs on one thread. Each connection is a task (`connection.rs`) that reads frames
//! and sends the machine's messages. The machine is called from one place, one event at a time.
//! The store, a file, is called from there as well; a slow disk delays control messages of servers,
//! never their clients.
//!
//! Invariants:
//! - Memory is bounded by limits on connections, queued events and bytes queued for sending.
//!   Readers wait for queued events; a receiver that is too slow is disconnected.
//! - A connection that does not prove the cluster key is closed, and the machine never learns of
//!   it.
//! - The number and the duration of unproven connections are limited.

use crate::clock::ShellClock;
use crate::connection::{self, Host, Outgoing};
use coordinator::{
    Coordinator, CoordinatorEvent, CoordinatorSettings, Drawn, Effect, Effects, LinkId, MetaStore,
    Moment, Rebuilding, SERVERS_MAX, Stopped, Verdict, holds_cluster,
};
use handshake::Credentials;
use links::{UNPROVEN_MAX, UnprovenConnections};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use types::{ClusterId, Instant};

/// Most proven connections: every server, and some operators.
const CONNECTIONS_MAX: usize = SERVERS_MAX + 256;
/// Most events queued for the machine. The value is arbitrary; readers wait above it.
const EVENTS_MAX: usize = 256;
/// Longest time between two calls of the machine.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Pause after a failure to accept a connection, for instance for lack of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Pause before a store that has failed is opened again.
const OPEN_AGAIN: Duration = Duration::from_millis(200);
/// Longest time for sending the remaining messages when the coordinator stops.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The reason why a coordinator is not running.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The machine cannot continue.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The operating system refused a request.
    #[error("the coordinator's sockets or threads failed: {0}")]
    Io(#[from] io::Error),
}

/// A coordinator on a thread of its own. Stops when dropped.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    /// Starts a coordinator for the servers that connect to `listener`.
    pub fn start<S: MetaStore + Send + 'static>(
        listener: TcpListener,
        credentials: Credentials,
        store: S,
        drawn: Drawn,
        settings: CoordinatorSettings,
    ) -> io::Result<Running> {
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("coordinator".into()).spawn(move || {
            serve_until(ListeningSocket { listener, credentials }, store, drawn, settings, stopped)
        })?;
        Ok(Running { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the coordinator after all queued messages have been sent.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServeError> {
        if let Some(stop) = self.stop.take() {
            // The receiver is gone if the coordinator has already stopped.
            let _ = stop.send(());
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.end() {
            tracing::error!(%error, "coordinator stopped with an error");
        }
    }
}

/// Serves on this thread until the store fails.
pub fn serve<S: MetaStore>(
    listener: TcpListener,
    credentials: Credentials,
    store: S,
    drawn: Drawn,
    settings: CoordinatorSettings,
) -> Result<(), ServeError> {
    let (_stop, stopped) = oneshot::channel();
    serve_until(ListeningSocket { listener, credentials }, store, drawn, settings, stopped)
}

/// Serves on this thread as [`serve()`] does, with the store and the numbers that `open` returns.
/// When the store or the sockets fail, opens the store again after a pause and goes on: servers
/// connect again meanwhile. Returns only if the coordinator has nothing more to do.
#[expect(clippy::disallowed_methods, reason = "the thread has nothing to do but to try again")]
pub fn serve_reopening<S: MetaStore>(
    listener: &TcpListener,
    credentials: &Credentials,
    settings: CoordinatorSettings,
    mut open: impl FnMut() -> Result<(S, Drawn), Box<dyn Error>>,
) {
    let mut attempt = || -> Result<(), Box<dyn Error>> {
        let (store, drawn) = open()?;
        Ok(serve(listener.try_clone()?, credentials.clone(), store, drawn, settings)?)
    };
    let mut last_error = String::new();
    while let Err(error) = attempt() {
        let error = error.to_string();
        if error != last_error {
            tracing::error!(error, "coordinator stopped, opening its store again");
            last_error = error;
        }
        std::thread::sleep(OPEN_AGAIN);
    }
}

/// Rebuilds the cluster's file in the empty `store` from servers' reports and an operator's
/// decision, and then serves as [`serve()`] does.
pub fn serve_rebuild<S: MetaStore>(
    listener: TcpListener,
    credentials: Credentials,
    mut store: S,
    drawn: Drawn,
    settings: CoordinatorSettings,
) -> Result<(), ServeError> {
    if holds_cluster(&store)? {
        return Err(Stopped::NotEmpty.into());
    }
    let clock = ShellClock::start();
    let runtime = runtime()?;
    let again = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    let mut machine = Rebuilding::new();
    // No stop request can arrive: the sender is kept and never used.
    let (_stop, stopped) = oneshot::channel();
    let socket = ListeningSocket { listener, credentials: credentials.clone() };
    let core = Core { machine: &mut machine, store: &mut store };
    runtime.block_on(converse(socket, core, &clock, stopped))?;
    drop(runtime);
    tracing::warn!("the coordinator's file was rebuilt");
    serve(again, credentials, store, drawn, settings)
}

/// A listening socket, and the key that connecting processes must prove.
struct ListeningSocket {
    listener: TcpListener,
    credentials: Credentials,
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

fn serve_until<S: MetaStore>(
    socket: ListeningSocket,
    mut store: S,
    drawn: Drawn,
    settings: CoordinatorSettings,
    stop: oneshot::Receiver<()>,
) -> Result<(), ServeError> {
    let clock = ShellClock::start();
    let mut machine = Coordinator::open(&mut store, drawn, settings, clock.moment().now)?;
    socket.listener.set_nonblocking(true)?;
    let core = Core { machine: &mut machine, store: &mut store };
    runtime()?.block_on(converse(socket, core, &clock, stop))
}

/// Connects a machine with the processes that connect to `listener`.
async fn converse(
    socket: ListeningSocket,
    core: Core<'_, impl ControlMachine, impl MetaStore>,
    clock: &ShellClock,
    stop: oneshot::Receiver<()>,
) -> Result<(), ServeError> {
    let ListeningSocket { listener, credentials } = socket;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (events, inbox) = channel(EVENTS_MAX);
    let (connections, unproven) = (BTreeMap::new(), UnprovenConnections::new());
    let last = LinkId(0);
    let shell = Shell { core, clock: *clock, credentials, events, connections, unproven, last };
    tokio::task::LocalSet::new().run_until(shell.run(listener, inbox, stop)).await
}

/// A state machine that the shell can run.
trait ControlMachine {
    fn handle(
        &mut self,
        at: Moment,
        event: CoordinatorEvent,
        out: &mut Effects,
    ) -> Result<(), Stopped>;
    fn next_deadline(&self) -> Option<Instant>;
    /// Returns whether the machine has completed its task.
    fn is_done(&self) -> bool;
    /// Returns the cluster, if it is known yet.
    fn cluster(&self) -> Option<ClusterId>;
}

impl ControlMachine for Coordinator {
    fn handle(
        &mut self,
        at: Moment,
        event: CoordinatorEvent,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        Coordinator::handle(self, at, event, out)
    }

    fn next_deadline(&self) -> Option<Instant> {
        Coordinator::next_deadline(self)
    }

    fn is_done(&self) -> bool {
        false
    }

    fn cluster(&self) -> Option<ClusterId> {
        Some(self.identity().cluster)
    }
}

impl ControlMachine for Rebuilding {
    fn handle(
        &mut self,
        at: Moment,
        event: CoordinatorEvent,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        Rebuilding::handle(self, at, event, out)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn is_done(&self) -> bool {
        self.is_written()
    }

    fn cluster(&self) -> Option<ClusterId> {
        None
    }
}

/// A state machine and the store to which its transactions are applied.
struct Core<'c, M, S> {
    machine: &'c mut M,
    store: &'c mut S,
}

struct Shell<'c, M, S> {
    core: Core<'c, M, S>,
    clock: ShellClock,
    credentials: Credentials,
    events: Sender<CoordinatorEvent>,
    /// Queue of outgoing frames of each connection. Dropping it closes the connection once they
    /// are sent.
    connections: BTreeMap<LinkId, Outgoing>,
    /// Unproven connections, unknown to the machine.
    unproven: UnprovenConnections<LinkId>,
    last: LinkId,
}

impl<M: ControlMachine, S: MetaStore> Shell<'_, M, S> {
    async fn run(
        mut self,
        listener: tokio::net::TcpListener,
        mut inbox: Receiver<CoordinatorEvent>,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<(), ServeError> {
        // Only a message stops the coordinator. If the sender is gone, it runs without end.
        let mut may_stop = true;
        while !self.core.machine.is_done() {
            let now = self.clock.moment().now;
            let until = |at: Instant| at.since(now).min(IDLE_MAX);
            let wait = self.core.machine.next_deadline().map_or(IDLE_MAX, until);
            tokio::select! {
                word = &mut stop, if may_stop => match word {
                    Ok(()) => break,
                    Err(_) => may_stop = false,
                },
                Some(event) = inbox.recv() => self.handle(event)?,
                stream = accept(&listener) => self.open(stream),
                () = tokio::time::sleep(wait) => self.handle(CoordinatorEvent::Tick)?,
            }
        }
        self.say_farewell(inbox).await;
        Ok(())
    }

    fn open(&mut self, stream: TcpStream) {
        let unproven = self.unproven.count();
        assert!(unproven <= self.connections.len(), "an unproven connection is unknown");
        if self.connections.len() - unproven >= CONNECTIONS_MAX {
            tracing::warn!("more than {CONNECTIONS_MAX} connections, closing the newest");
            return;
        }
        let connection = LinkId(self.last.0 + 1);
        self.last = connection;
        let host =
            Host { credentials: self.credentials.clone(), cluster: self.core.machine.cluster() };
        let events = self.events.clone();
        let outgoing = match connection::start(connection, stream, &host, self.clock, events) {
            Ok(outgoing) => outgoing,
            Err(error) => return tracing::error!(%error, "closing the newest connection"),
        };
        let before = self.connections.insert(connection, outgoing);
        assert!(before.is_none(), "{connection} is assigned twice");
        if let Some(oldest) = self.unproven.add(connection) {
            tracing::warn!("{UNPROVEN_MAX} unauthenticated connections, closing the oldest");
            self.connections.remove(&oldest);
        }
    }

    fn handle(&mut self, event: CoordinatorEvent) -> Result<(), ServeError> {
        match &event {
            // Either the machine has closed it and expects no event, or the machine never knew it.
            CoordinatorEvent::Closed { connection } => {
                let is_known = !self.unproven.remove(*connection);
                if self.connections.remove(connection).is_none() || !is_known {
                    return Ok(());
                }
            }
            // The connection was displaced by a newer one.
            CoordinatorEvent::Opened { connection, .. } if !self.unproven.remove(*connection) => {
                return Ok(());
            }
            CoordinatorEvent::Received { connection, .. }
                if !self.connections.contains_key(connection) =>
            {
                return Ok(());
            }
            CoordinatorEvent::Opened { .. }
            | CoordinatorEvent::Received { .. }
            | CoordinatorEvent::Committed(_)
            | CoordinatorEvent::Tick => {}
        }
        let mut verdict = self.step(event)?;
        while let Some(committed) = verdict {
            verdict = self.step(CoordinatorEvent::Committed(committed))?;
        }
        Ok(())
    }

    /// Passes an event to the machine, and executes the effects. Returns the verdict of the store
    /// if there was a transaction. The machine has to learn of it before anything else, since the
    /// store answers at once.
    fn step(&mut self, event: CoordinatorEvent) -> Result<Option<Verdict>, Stopped> {
        tracing::debug!(%event);
        let mut outbox = Effects::new();
        self.core.machine.handle(self.clock.moment(), event, &mut outbox)?;
        let mut verdict = None;
        for effect in outbox.drain() {
            tracing::debug!(%effect);
            match effect {
                Effect::Commit(transaction) => {
                    assert!(verdict.is_none(), "one transaction is in flight at a time");
                    verdict = Some(self.core.store.transact(&transaction)?);
                }
                Effect::Send { connection, message } => {
                    if let Some(outgoing) = self.connections.get(&connection) {
                        outgoing.push(&message);
                    }
                }
                Effect::Close { connection } => {
                    self.connections.remove(&connection);
                }
            }
        }
        Ok(verdict)
    }

    /// Lets every connection send its queued messages and end.
    async fn say_farewell(self, mut inbox: Receiver<CoordinatorEvent>) {
        let Shell { connections, events, .. } = self;
        drop((connections, events));
        let all_ended = async { while inbox.recv().await.is_some() {} };
        if tokio::time::timeout(FAREWELL_MAX, all_ended).await.is_err() {
            tracing::warn!("server did not read its last messages in time");
        }
    }
}

async fn accept(listener: &tokio::net::TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => tracing::warn!(%error, "cannot accept a connection"),
        }
        tokio::time::sleep(ACCEPT_AGAIN).await;
    }
}
