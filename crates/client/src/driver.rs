//! The driver of the core: tasks that move bytes between connections and the core, and a timer.
//!
//! All state is behind one lock, which is held for the handling of one event and never across a
//! wait. Outcomes are passed to their callers after it is released.

use crate::transport::{ByteStream, Transport};
use client_core::{
    ChannelId, ClientCore, ClientEffect, ClientError, ClientEvent, ClientOptions, FailureCause,
    PreparedRequest, RequestId, RequestOutcome, RequestRoute, ServerIndex,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;
use types::Instant;

/// The part of a request's place in a queue that one permit stands for, in bytes.
const PERMIT_BYTES: usize = 256;
/// Smallest size of an input buffer in bytes; it grows for larger replies.
const INPUT_BYTES: usize = 16 << 10;

/// The caller of a request: gets its outcome. Holds its place in the queue.
#[derive(Debug)]
struct WaitingCaller {
    reply: oneshot::Sender<RequestOutcome>,
    _permit: OwnedSemaphorePermit,
}

/// The state that all tasks of a client share.
struct ClientDriver {
    state: Mutex<DriverState>,
    /// Notified when the timer must look at its deadline again.
    timer: Notify,
    transport: Box<dyn Transport>,
    runtime: Handle,
    started: tokio::time::Instant,
    /// Time after which a request fails.
    deadline: Duration,
    permits: usize,
}

struct DriverState {
    core: ClientCore<WaitingCaller>,
    /// Free places in the queue of each server, by its index.
    queues: Vec<Arc<Semaphore>>,
    /// The tasks of connections.
    tasks: HashMap<ChannelId, ChannelTask>,
    timer: Option<AbortHandle>,
    effects: Vec<ClientEffect<WaitingCaller>>,
    /// The deadline that the timer waits for.
    armed: Option<Instant>,
    is_closed: bool,
}

struct ChannelTask {
    task: AbortHandle,
    output_ready: Arc<Notify>,
}

/// The connections of all clones of a client. Dropping it ends the tasks.
pub(crate) struct ClientHandle(Arc<ClientDriver>);

impl ClientHandle {
    /// Starts the tasks of a client. Must be called within a runtime.
    pub(crate) fn start(
        seeds: &[String],
        options: ClientOptions,
        transport: Box<dyn Transport>,
    ) -> Arc<ClientHandle> {
        Arc::new(ClientHandle(ClientDriver::start(seeds, options, transport)))
    }

    /// Submits a request as soon as there is room in the queue of its server.
    pub(crate) async fn submit(&self, request: PreparedRequest) -> Result<Submitted, ClientError> {
        self.0.submit(request).await
    }

    /// Returns the number of reads that were sent to both sides of a migration.
    pub(crate) fn two_sided_reads(&self) -> u64 {
        self.0.state().core.two_sided_reads()
    }

    /// Returns the known servers of the cluster.
    pub(crate) fn servers(&self) -> Vec<(ServerIndex, Arc<str>)> {
        self.0.state().core.servers()
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHandle").finish_non_exhaustive()
    }
}

/// A submitted request. Dropping it gives up the request, which may be executed nevertheless.
pub(crate) struct Submitted {
    driver: Arc<ClientDriver>,
    id: RequestId,
    reply: oneshot::Receiver<RequestOutcome>,
    has_ended: bool,
}

impl Submitted {
    /// Waits for the outcome.
    pub(crate) async fn outcome(mut self) -> RequestOutcome {
        let outcome = (&mut self.reply).await;
        self.has_ended = true;
        // The sender disappears only with the client.
        outcome.unwrap_or(Err(ClientError::MaybeExecuted(FailureCause::Closed)))
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if !self.has_ended {
            self.driver.event(ClientEvent::Cancel(self.id));
        }
    }
}

impl ClientDriver {
    fn start(
        seeds: &[String],
        options: ClientOptions,
        transport: Box<dyn Transport>,
    ) -> Arc<ClientDriver> {
        let permits = (options.queue_bytes_max / PERMIT_BYTES).clamp(1, u32::MAX as usize >> 4);
        let deadline = options.deadline;
        let state = DriverState {
            core: ClientCore::new(seeds, options),
            queues: Vec::new(),
            tasks: HashMap::new(),
            timer: None,
            effects: Vec::new(),
            armed: None,
            is_closed: false,
        };
        let driver = Arc::new(ClientDriver {
            state: Mutex::new(state),
            timer: Notify::new(),
            transport,
            runtime: Handle::current(),
            started: tokio::time::Instant::now(),
            deadline,
            permits,
        });
        let timer = driver.runtime.spawn(keep_time(driver.clone())).abort_handle();
        driver.state().timer = Some(timer);
        driver
    }

    /// Ends all tasks. Requests without an outcome fail.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.timer.iter().for_each(AbortHandle::abort);
        state.tasks.drain().for_each(|(_, channel)| channel.task.abort());
    }

    /// Submits a request as soon as there is room in the queue of its server.
    async fn submit(
        self: &Arc<ClientDriver>,
        request: PreparedRequest,
    ) -> Result<Submitted, ClientError> {
        let deadline = self.now() + self.deadline;
        let cost = request.encoded_bytes().div_ceil(PERMIT_BYTES).clamp(1, self.permits) as u32;
        let queue = {
            let mut state = self.state();
            let queue = state.queue_of(request.route(), self.permits).clone();
            match queue.clone().try_acquire_many_owned(cost) {
                Ok(permit) => return Ok(self.enter(state, request, deadline, permit)),
                Err(_) => queue,
            }
        };
        let acquired = tokio::time::timeout(self.deadline, queue.acquire_many_owned(cost)).await;
        match acquired {
            Ok(Ok(permit)) => Ok(self.enter(self.state(), request, deadline, permit)),
            Ok(Err(_)) => Err(ClientError::NotExecuted(FailureCause::Closed)),
            Err(_) => Err(ClientError::NotExecuted(FailureCause::Deadline)),
        }
    }

    fn enter(
        self: &Arc<ClientDriver>,
        mut state: MutexGuard<'_, DriverState>,
        request: PreparedRequest,
        deadline: Instant,
        permit: OwnedSemaphorePermit,
    ) -> Submitted {
        let (sender, reply) = oneshot::channel();
        let token = WaitingCaller { reply: sender, _permit: permit };
        let mut effects = std::mem::take(&mut state.effects);
        let id = state.core.submit(self.now(), request, deadline, token, &mut effects);
        self.apply(state, effects);
        Submitted { driver: self.clone(), id, reply, has_ended: false }
    }

    /// Passes an event to the core.
    fn event(self: &Arc<ClientDriver>, event: ClientEvent<'_, '_>) {
        let mut state = self.state();
        let mut effects = std::mem::take(&mut state.effects);
        state.core.handle(self.now(), event, &mut effects);
        self.apply(state, effects);
    }

    fn take_output(&self, channel: ChannelId, output: &mut Vec<u8>) {
        let mut state = self.state();
        state.core.take_output(self.now(), channel, output);
        self.follow_timer(&state);
    }

    /// Carries out effects: outcomes after the lock is released, because they wake their callers.
    fn apply(
        self: &Arc<ClientDriver>,
        mut state: MutexGuard<'_, DriverState>,
        mut effects: Vec<ClientEffect<WaitingCaller>>,
    ) {
        let mut finished = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                ClientEffect::Connect { channel, address } => {
                    if state.is_closed {
                        continue;
                    }
                    let output_ready = Arc::new(Notify::new());
                    let task = run_channel(self.clone(), channel, address, output_ready.clone());
                    let task = self.runtime.spawn(task).abort_handle();
                    state.tasks.insert(channel, ChannelTask { task, output_ready });
                }
                ClientEffect::Close { channel } => {
                    if let Some(channel) = state.tasks.remove(&channel) {
                        channel.task.abort();
                    }
                }
                ClientEffect::Write { channel } => {
                    if let Some(channel) = state.tasks.get(&channel) {
                        channel.output_ready.notify_one();
                    }
                }
                ClientEffect::Finish { token, outcome } => finished.push((token, outcome)),
            }
        }
        state.effects = effects;
        self.follow_timer(&state);
        drop(state);
        for (WaitingCaller { reply, _permit }, outcome) in finished {
            // The caller may have gone away.
            drop(reply.send(outcome));
        }
    }

    /// Wakes the timer if the core's deadline comes before the one that it waits for.
    fn follow_timer(&self, state: &DriverState) {
        let is_earlier = |next: Instant| state.armed.is_none_or(|armed| next < armed);
        if state.core.next_deadline().is_some_and(is_earlier) {
            self.timer.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant(0) + self.started.elapsed()
    }
}

impl DriverState {
    /// Returns the free places in the queue of the server that would get a request.
    fn queue_of(&mut self, route: RequestRoute, permits: usize) -> &Arc<Semaphore> {
        let at = self.core.server_of(route).map_or(0, ServerIndex::position);
        while self.queues.len() <= at {
            self.queues.push(Arc::new(Semaphore::new(permits)));
        }
        &self.queues[at]
    }
}

/// Passes the deadlines of the core to it.
async fn keep_time(driver: Arc<ClientDriver>) {
    loop {
        let next = {
            let mut state = driver.state();
            state.armed = state.core.next_deadline();
            state.armed
        };
        let notified = driver.timer.notified();
        match next {
            None => notified.await,
            Some(Instant(nanos)) => {
                let until = driver.started + Duration::from_nanos(nanos);
                tokio::select! {
                    () = notified => {}
                    () = tokio::time::sleep_until(until) => driver.event(ClientEvent::Tick),
                }
            }
        }
    }
}

/// Connects, moves bytes until the connection ends, and reports that.
async fn run_channel(
    driver: Arc<ClientDriver>,
    channel: ChannelId,
    address: Arc<str>,
    output_ready: Arc<Notify>,
) {
    if let Ok(stream) = driver.transport.connect(&address).await {
        let (reader, writer) = tokio::io::split(stream);
        driver.event(ClientEvent::Connected(channel));
        tokio::select! {
            () = receive(&driver, channel, reader) => {}
            () = send(&driver, channel, writer, &output_ready) => {}
        }
    }
    driver.event(ClientEvent::Closed(channel));
}

/// Passes arriving bytes to the core until the connection ends.
async fn receive(
    driver: &Arc<ClientDriver>,
    channel: ChannelId,
    mut reader: ReadHalf<Box<dyn ByteStream>>,
) {
    let mut buffer = vec![0; INPUT_BYTES];
    let mut filled = 0;
    loop {
        match reader.read(&mut buffer[filled..]).await {
            Ok(0) | Err(_) => return,
            Ok(count) => filled += count,
        }
        let mut input = &buffer[..filled];
        driver.event(ClientEvent::Received(channel, &mut input));
        let taken = filled - input.len();
        buffer.copy_within(taken..filled, 0);
        filled -= taken;
        if filled == buffer.len() {
            // The parser ends the connection when a reply exceeds the limit.
            buffer.resize(2 * filled, 0);
        } else if filled == 0 && buffer.len() > INPUT_BYTES {
            buffer = vec![0; INPUT_BYTES];
        }
    }
}

/// Writes the core's output until the connection ends.
async fn send(
    driver: &Arc<ClientDriver>,
    channel: ChannelId,
    mut writer: WriteHalf<Box<dyn ByteStream>>,
    output_ready: &Notify,
) {
    let mut output = Vec::new();
    loop {
        output_ready.notified().await;
        loop {
            output.clear();
            driver.take_output(channel, &mut output);
            if output.is_empty() {
                break;
            }
            if writer.write_all(&output).await.is_err() {
                return;
            }
        }
        if writer.flush().await.is_err() {
            return;
        }
        // One large request must not keep its memory.
        output.shrink_to(INPUT_BYTES.max(1 << 16));
    }
}
