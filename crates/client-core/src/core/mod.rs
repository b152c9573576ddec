//! The client without sockets, clocks and threads: routing, pipelining, redirections, retries and
//! deadlines. Design: `docs/design/client.md`.
//!
//! [`ClientCore::handle`] and [`ClientCore::submit`] take what has happened and return effects. The
//! caller moves bytes: it opens a connection for [`ClientEffect::Connect`], passes what arrives as
//! [`ClientEvent::Received`], and writes [`ClientCore::take_output`]. Times are arguments.
//!
//! **Invariant:** each submitted request ends with exactly one [`ClientEffect::Finish`], unless it is
//! cancelled.
//! **Invariant:** a request whose second execution could change data again is handed to a transport
//! once, and again only after a server has refused it.
//! **Invariant:** no byte of a server causes a panic. Memory is bounded by the open requests, and by
//! the limits of servers, replies and unanswered requests per connection.

mod answers;
mod both_answers;
mod channel;
mod ids;
mod requests;
mod routes;
#[cfg(test)]
mod tests;
mod two_sided;

pub use ids::{ChannelId, RequestId};
pub use routes::ServerIndex;

use crate::error::{ClientError, FailureCause};
use crate::options::ClientOptions;
use crate::request::{PreparedRequest, RepeatRule, RequestRoute};
use both_answers::ReadSides;
use channel::{Channel, ChannelState, ControlRequest, OpenChannel, PipelineEntry, pause};
use planted::Bug;
use requests::{OpenRequest, OpenRequestPlace, RequestPart, RequestTable};
use resp::{RequestWriter, Value};
use routes::{SERVERS_MAX, SlotRoutes};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use types::{Instant, Slot};

/// The outcome of a request.
pub type RequestOutcome = Result<Value, ClientError>;

/// An event at the transport, or the passing of time.
#[derive(Debug)]
pub enum ClientEvent<'e, 'b> {
    /// The transport has connected.
    Connected(ChannelId),
    /// Bytes have arrived. The event takes complete replies off the front; the caller keeps the rest.
    Received(ChannelId, &'e mut &'b [u8]),
    /// The transport could not connect, or the connection has ended.
    Closed(ChannelId),
    /// The deadline [`ClientCore::next_deadline`] has been reached.
    Tick,
    /// The caller does not want the outcome of this request any more.
    Cancel(RequestId),
}

/// An effect that the caller carries out, in order.
#[derive(Debug)]
pub enum ClientEffect<T> {
    /// Connect to this address, and report `Connected` or `Closed`.
    Connect {
        /// Number for all events of the connection.
        channel: ChannelId,
        /// Address, as `host:port`.
        address: Arc<str>,
    },
    /// Close the connection, or give up connecting. Further events of the channel are ignored.
    Close {
        /// The connection.
        channel: ChannelId,
    },
    /// There is output to take.
    Write {
        /// The connection.
        channel: ChannelId,
    },
    /// A request has ended.
    Finish {
        /// The value that was submitted with the request.
        token: T,
        /// The reply, or the reason why there is none.
        outcome: RequestOutcome,
    },
}

/// A server that the client knows.
#[derive(Debug)]
struct KnownServer {
    address: Arc<str>,
    /// True for the addresses that the client was created with. They are never forgotten.
    is_seed: bool,
    /// True if the newest map or a redirection names the server.
    is_listed: bool,
    /// Time of the last doubt about the server's map, or of the last request for it.
    asked_at: Instant,
}

impl KnownServer {
    /// Returns whether requests may be sent to the server.
    fn is_usable(&self) -> bool {
        self.is_seed || self.is_listed
    }
}

/// The fetching of maps.
#[derive(Debug, Default)]
struct MapFetch {
    is_wanted: bool,
    is_in_flight: bool,
    /// True since a server has refused requests although it owns their slot by the present map. It
    /// may be cut off from the others and so have an old map itself.
    is_doubted: bool,
    /// Server to ask, if there is one that knows more than others.
    at: Option<ServerIndex>,
    /// Earliest time of the next fetch.
    not_before: Instant,
}

/// Shortest time between two fetches of the map.
const MAP_EVERY: Duration = Duration::from_millis(50);
/// Time without a reply after which the client asks other servers for a newer map.
const SUSPICION: Duration = Duration::from_secs(1);
/// Output that is taken at once, in bytes: enough that system calls do not count.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Shortest time limit of a connection.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// Failed attempts per server after which a client that never had a connection gives up.
const FIRST_ATTEMPTS: u32 = 3;

/// The state of a client. `T` is the caller's value for each request.
#[derive(Debug)]
pub struct ClientCore<T> {
    options: ClientOptions,
    servers: Vec<KnownServer>,
    /// Channels of all servers: those of one server are adjacent.
    channels: Vec<Channel>,
    routes: SlotRoutes,
    requests: RequestTable<T>,
    map: MapFetch,
    /// Number of reads that were sent to both sides of a migration.
    two_sided_reads: u64,
    /// Number of those whose value, or absence, came from the source.
    source_values: u64,
    /// True when any server has accepted the client once.
    is_proven: bool,
    /// Server at which the search for any server begins.
    next_any: usize,
    /// Time of the next tick.
    wake_at: Option<Instant>,
}

/// The end of a connection, or of an attempt.
#[derive(Debug)]
enum ChannelFailure {
    /// The transport has ended, is silent, or has sent bytes that are no reply.
    Lost,
    /// The server refuses the client: all of its requests end with this text.
    Refused(String),
}

impl<T> ClientCore<T> {
    /// Creates a client that begins at one of these addresses (`host:port`).
    pub fn new(seeds: &[String], options: ClientOptions) -> ClientCore<T> {
        let connect_timeout = options.connect_timeout.max(TIMEOUT_MIN);
        let silence_max = options.silence_max.max(TIMEOUT_MIN);
        let options = ClientOptions { connect_timeout, silence_max, ..options };
        let mut core = ClientCore {
            options,
            servers: Vec::new(),
            channels: Vec::new(),
            routes: SlotRoutes::new(),
            requests: RequestTable::new(),
            map: MapFetch::default(),
            two_sided_reads: 0,
            source_values: 0,
            is_proven: false,
            next_any: 0,
            wake_at: None,
        };
        for seed in seeds.iter().take(SERVERS_MAX) {
            if let Some(ServerIndex(at)) = core.intern(seed) {
                core.servers[usize::from(at)].is_seed = true;
            }
        }
        core
    }

    /// Returns the time of the next [`ClientEvent::Tick`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Returns the number of requests without an outcome.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Returns the servers of the cluster, as far as they are known.
    pub fn servers(&self) -> Vec<(ServerIndex, Arc<str>)> {
        let listed = self.servers.iter().enumerate().filter(|(_, server)| server.is_listed);
        listed.map(|(at, server)| (ServerIndex(at as u16), server.address.clone())).collect()
    }

    /// Returns the version of the map that the client uses, if it has one. Within a cluster it only
    /// rises.
    pub fn map_version(&self) -> Option<u64> {
        self.routes.version()
    }

    /// Returns the server that would get a request now. It is not certain to get it.
    pub fn server_of(&self, route: RequestRoute) -> Option<ServerIndex> {
        match route {
            RequestRoute::Slot(slot) => self.routes.owner(slot),
            RequestRoute::Any => None,
            RequestRoute::At(server) => Some(server),
        }
    }

    /// Begins a request. `token` comes back with its outcome.
    pub fn submit(
        &mut self,
        now: Instant,
        request: PreparedRequest,
        deadline: Instant,
        token: T,
        out: &mut Vec<ClientEffect<T>>,
    ) -> RequestId {
        let is_endless = planted::is(Bug::DeadlineForgotten);
        let deadline = if is_endless { Instant(u64::MAX) } else { deadline };
        self.wake_by(deadline);
        let id = self.requests.insert(OpenRequest {
            token,
            request,
            deadline,
            place: OpenRequestPlace::Waiting,
            attempts: 0,
            is_ambiguous: false,
            sides: ReadSides::One,
        });
        self.route(now, id, out);
        id
    }

    /// Returns the number of reads that were sent to both sides of a migration.
    pub fn two_sided_reads(&self) -> u64 {
        self.two_sided_reads
    }

    /// Returns the number of reads whose value, or absence, came from the source of a migration.
    pub fn source_values(&self) -> u64 {
        self.source_values
    }

    /// Changes the state after an event.
    pub fn handle(
        &mut self,
        now: Instant,
        event: ClientEvent<'_, '_>,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        match event {
            ClientEvent::Connected(id) => self.connected(now, id, out),
            ClientEvent::Received(id, input) => self.received(now, id, input, out),
            ClientEvent::Closed(id) => {
                if let Some(at) = self.current(id) {
                    self.fail(now, at, ChannelFailure::Lost, out);
                }
            }
            ClientEvent::Tick => self.tick(now, out),
            ClientEvent::Cancel(id) => drop(self.requests.remove(id)),
        }
    }

    /// Appends bytes to write on a connection. From then on, their requests may be executed. The
    /// caller writes them, and calls again until nothing is appended.
    pub fn take_output(&mut self, now: Instant, id: ChannelId, output: &mut Vec<u8>) {
        let Some(at) = self.current(id) else { return };
        let Channel { state, waiting, .. } = &mut self.channels[at];
        let ChannelState::Open(open) = state else { return };
        let is_owed = !open.pipeline.is_empty();
        for control in std::mem::take(&mut open.control) {
            write_control(control, &self.options, |entry| open.expect_reply(entry, now), output);
        }
        while open.has_room() && output.len() < OUTPUT_BYTES_MAX {
            let Some(next) = waiting.pop_front() else { break };
            // The request may have ended while it waited.
            let Some(request) = self.requests.get_mut(next.request()) else { continue };
            if let RequestPart::Copy(next) = next {
                if request.write_copy(output) {
                    open.expect_reply(PipelineEntry::Copy(next), now);
                }
                continue;
            }
            assert_eq!(request.place, OpenRequestPlace::Waiting, "a queued request was not sent");
            request.place = OpenRequestPlace::Sent(id);
            request.write(&mut self.two_sided_reads, output);
            open.expect_reply(PipelineEntry::Request(next.request()), now);
        }
        if !is_owed && !open.pipeline.is_empty() {
            self.wake_by(now + SUSPICION);
        }
    }

    /// Returns the position of a channel, if the number is that of its present attempt.
    fn current(&self, id: ChannelId) -> Option<usize> {
        let at = id.channel as usize;
        let channel = self.channels.get(at)?;
        let is_present = channel.attempt == id.attempt || planted::is(Bug::EarlierConnectionHeard);
        (is_present && !channel.is_idle()).then_some(at)
    }

    fn id_of(&self, at: usize) -> ChannelId {
        ChannelId { channel: at as u32, attempt: self.channels[at].attempt }
    }

    fn lanes(&self) -> usize {
        usize::from(self.options.connections_per_server.max(1))
    }

    fn server_at(&self, channel: usize) -> &KnownServer {
        &self.servers[channel / self.lanes()]
    }

    /// Makes sure that a tick comes at this time or before.
    fn wake_by(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    /// Returns the server with this address, and adds it if it is new. Returns `None` if there are
    /// too many servers.
    fn intern(&mut self, address: &str) -> Option<ServerIndex> {
        if let Some(at) = self.servers.iter().position(|known| &*known.address == address) {
            self.servers[at].is_listed = true;
            return Some(ServerIndex(at as u16));
        }
        let server = KnownServer {
            address: address.into(),
            is_seed: false,
            is_listed: true,
            asked_at: Instant(0),
        };
        let lanes = self.lanes();
        if self.servers.len() < SERVERS_MAX {
            self.servers.push(server);
            self.channels.extend((0..lanes).map(|_| Channel::new()));
            return Some(ServerIndex((self.servers.len() - 1) as u16));
        }
        let is_unused = |at: usize, known: &KnownServer| {
            let mut channels = self.channels[at * lanes..(at + 1) * lanes].iter();
            let is_quiet = channels.all(|it| it.is_idle() && it.waiting.is_empty());
            let here = RequestRoute::At(ServerIndex(at as u16));
            let is_wanted = || self.requests.iter().any(|(_, it)| it.request.route == here);
            !known.is_seed && !known.is_listed && is_quiet && !is_wanted()
        };
        let mut places = self.servers.iter().enumerate();
        let at = places.position(|(at, known)| is_unused(at, known))?;
        self.servers[at] = server;
        self.channels[at * lanes..(at + 1) * lanes].iter_mut().for_each(|it| it.failures = 0);
        let index = ServerIndex(at as u16);
        self.routes.forget(index);
        Some(index)
    }

    /// Puts a request into the queue of its server.
    fn route(&mut self, now: Instant, id: RequestId, out: &mut Vec<ClientEffect<T>>) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.place = OpenRequestPlace::Waiting;
        let (route, is_ambiguous) = (request.request.route, request.is_ambiguous);
        self.ask_source(now, id, out);
        match self.channel_for(route) {
            Some(at) => self.enqueue(now, at, RequestPart::Main(id), out),
            None => {
                let cause = FailureCause::ServerGone;
                self.finish(id, Err(unfinished(is_ambiguous, cause)), out);
            }
        }
    }

    fn enqueue(
        &mut self,
        now: Instant,
        at: usize,
        part: RequestPart,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        let requests = &self.requests;
        let channel = &mut self.channels[at];
        // Numbers of requests that have ended are skipped when the queue moves. If it does not move,
        // their number is bounded here.
        if channel.waiting.len() > 64 + 2 * requests.len() {
            channel.waiting.retain(|waiting| requests.is_open(waiting.request()));
        }
        channel.waiting.push_back(part);
        let is_first = channel.waiting.len() == 1;
        match &channel.state {
            ChannelState::Open(open) if open.has_room() && is_first => {
                out.push(ClientEffect::Write { channel: self.id_of(at) });
            }
            ChannelState::Open(_) | ChannelState::Connecting { .. } => {}
            ChannelState::Idle { .. } => self.connect(now, at, out),
        }
    }

    /// Begins to connect, or remembers to do so after a pause.
    fn connect(&mut self, now: Instant, at: usize, out: &mut Vec<ClientEffect<T>>) {
        let channel = &mut self.channels[at];
        let ChannelState::Idle { not_before } = channel.state else { return };
        if not_before > now {
            return self.wake_by(not_before);
        }
        let until = now + self.options.connect_timeout;
        channel.attempt = channel.attempt.wrapping_add(1);
        channel.state = ChannelState::Connecting { until };
        let address = self.server_at(at).address.clone();
        out.push(ClientEffect::Connect { channel: self.id_of(at), address });
        self.wake_by(until);
    }

    /// Returns the channel for a request; `None` if its server has left the cluster.
    fn channel_for(&mut self, route: RequestRoute) -> Option<usize> {
        let lanes = self.lanes();
        let first_of = |server: ServerIndex| usize::from(server.0) * lanes;
        match route {
            RequestRoute::Slot(slot) => match self.routes.owner(slot) {
                Some(owner) => self.lane_of(owner, slot),
                None => self.any_channel(),
            },
            RequestRoute::At(server) => {
                let known = self.servers.get(usize::from(server.0));
                known.filter(|known| known.is_listed).map(|_| first_of(server))
            }
            RequestRoute::Any => self.any_channel(),
        }
    }

    /// Returns the channel to a server that requests of this slot use.
    fn lane_of(&self, server: ServerIndex, slot: Slot) -> Option<usize> {
        let lanes = self.lanes();
        let at = usize::from(server.0) * lanes + usize::from(slot.0) % lanes;
        (at < self.channels.len()).then_some(at)
    }

    /// Returns a channel of any server: if possible a connected one that answers, else the one that
    /// may connect first.
    fn any_channel(&mut self) -> Option<usize> {
        let (lanes, count) = (self.lanes(), self.servers.len());
        self.next_any = self.next_any.wrapping_add(1);
        let first = self.next_any;
        let order = (0..count).map(|step| (first + step) % count);
        let usable = order.filter(|at| self.servers[*at].is_usable());
        usable.map(|server| server * lanes).min_by_key(|at| match &self.channels[*at].state {
            ChannelState::Open(open) if open.is_ready && !open.is_suspect => (0, Instant(0)),
            ChannelState::Open(open) if !open.is_ready => (1, Instant(0)),
            ChannelState::Connecting { .. } => (1, Instant(0)),
            ChannelState::Idle { not_before } => (2, *not_before),
            ChannelState::Open(_) => (3, Instant(0)),
        })
    }

    fn connected(&mut self, now: Instant, id: ChannelId, out: &mut Vec<ClientEffect<T>>) {
        let Some(at) = self.current(id) else { return };
        let channel = &mut self.channels[at];
        if matches!(channel.state, ChannelState::Open(_)) {
            return;
        }
        channel.state = ChannelState::Open(OpenChannel::new(now, self.options.reply_bytes_max));
        self.wake_by(now + self.options.connect_timeout);
        out.push(ClientEffect::Write { channel: id });
    }

    /// Ends a connection or an attempt, and decides about each of its requests.
    fn fail(
        &mut self,
        now: Instant,
        at: usize,
        failure: ChannelFailure,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        out.push(ClientEffect::Close { channel: self.id_of(at) });
        let channel = &mut self.channels[at];
        channel.failures = channel.failures.saturating_add(1);
        let idle = ChannelState::Idle { not_before: now + pause(channel.failures) };
        let before = std::mem::replace(&mut channel.state, idle);
        let waiting = std::mem::take(&mut channel.waiting);
        if let ChannelState::Open(open) = before {
            let owes_map = open.pipeline.contains(&PipelineEntry::Map);
            if owes_map || open.control.contains(&ControlRequest::Map) {
                self.map.is_in_flight = false;
            }
            for entry in open.pipeline {
                match entry {
                    PipelineEntry::Request(id) => self.lost(now, id, out),
                    PipelineEntry::Copy(id) => self.copied(now, id, None, out),
                    PipelineEntry::Login | PipelineEntry::Map => {}
                }
            }
        }
        match failure {
            ChannelFailure::Refused(text) => {
                for part in waiting {
                    match part {
                        RequestPart::Main(id) => self.refuse(id, text.clone(), out),
                        RequestPart::Copy(id) => self.copied(now, id, None, out),
                    }
                }
            }
            ChannelFailure::Lost if self.is_hopeless() => self.give_up(waiting, out),
            ChannelFailure::Lost => {
                for part in waiting {
                    match part {
                        RequestPart::Main(id) => self.route(now, id, out),
                        RequestPart::Copy(id) => self.copied(now, id, None, out),
                    }
                }
            }
        }
        self.want_map(now, out);
    }

    /// Returns whether no server has ever accepted the client, and all have failed several times.
    fn is_hopeless(&self) -> bool {
        let mut channels = self.channels.iter().step_by(self.lanes());
        let has_failed = |it: &Channel| it.is_idle() && it.failures >= FIRST_ATTEMPTS;
        !self.is_proven && channels.all(has_failed)
    }

    fn give_up(&mut self, waiting: VecDeque<RequestPart>, out: &mut Vec<ClientEffect<T>>) {
        let channels = self.channels.iter_mut();
        let others: Vec<_> = channels.flat_map(|it| std::mem::take(&mut it.waiting)).collect();
        for part in waiting.into_iter().chain(others) {
            let error = ClientError::NotExecuted(FailureCause::Unreachable);
            self.finish(part.request(), Err(error), out);
        }
    }

    /// Decides about a request whose connection ended before it replied.
    fn lost(&mut self, now: Instant, id: RequestId, out: &mut Vec<ClientEffect<T>>) {
        let Some(request) = self.requests.get_mut(id) else { return };
        match request.request.repeat {
            RepeatRule::Harmless => self.delay(now, id),
            RepeatRule::Never if planted::is(Bug::LostWriteRepeated) => self.delay(now, id),
            RepeatRule::Conditional => {
                request.is_ambiguous = !planted::is(Bug::AmbiguityForgotten);
                self.delay(now, id);
            }
            RepeatRule::Never => {
                let error = ClientError::MaybeExecuted(FailureCause::ConnectionLost);
                self.finish(id, Err(error), out);
            }
        }
    }

    /// Leaves a request until a pause has passed.
    fn delay(&mut self, now: Instant, id: RequestId) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.attempts = request.attempts.saturating_add(1);
        let until = now + pause(request.attempts);
        request.place = OpenRequestPlace::Delayed(until);
        self.wake_by(until);
    }

    /// Ends a request that a server has refused.
    fn refuse(&mut self, id: RequestId, text: String, out: &mut Vec<ClientEffect<T>>) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let error = match request.is_ambiguous && !planted::is(Bug::AmbiguousTakenForRefused) {
            true => unfinished(true, FailureCause::ConnectionLost),
            false => ClientError::Refused(text),
        };
        self.finish(id, Err(error), out);
    }

    fn finish(&mut self, id: RequestId, outcome: RequestOutcome, out: &mut Vec<ClientEffect<T>>) {
        if let Some(OpenRequest { token, .. }) = self.requests.remove(id) {
            out.push(ClientEffect::Finish { token, outcome });
        }
    }

    fn want_map(&mut self, now: Instant, out: &mut Vec<ClientEffect<T>>) {
        self.map.is_wanted = true;
        self.fetch_map(now, out);
    }

    /// Requests the map, if it is wanted and may be requested now. A connection is opened for it only
    /// while there are requests.
    fn fetch_map(&mut self, now: Instant, out: &mut Vec<ClientEffect<T>>) {
        if !self.map.is_wanted || self.map.is_in_flight {
            return;
        }
        if now < self.map.not_before {
            return self.wake_by(self.map.not_before);
        }
        let lanes = self.lanes();
        let preferred = self.map.at.map(|server| usize::from(server.0) * lanes);
        let is_ready = |at: &usize| self.channels.get(*at).is_some_and(Channel::is_ready);
        let preferred = preferred.filter(is_ready);
        let other = if self.map.is_doubted { self.other_channel(now, out) } else { None };
        let at = other.or(preferred).or_else(|| self.any_channel());
        let Some(at) = at else { return };
        let channel = &mut self.channels[at];
        match channel.open().filter(|open| open.is_ready && !open.is_suspect) {
            Some(open) => {
                open.control.push(ControlRequest::Map);
                let not_before = now + MAP_EVERY;
                self.servers[at / lanes].asked_at = now;
                let is_doubted = self.map.is_doubted && self.awaits_other(at);
                self.map =
                    MapFetch { is_in_flight: true, is_doubted, not_before, ..MapFetch::default() };
                out.push(ClientEffect::Write { channel: self.id_of(at) });
            }
            // When the connection is ready, the map is requested.
            None if self.requests.len() > 0 => self.connect(now, at, out),
            None => {}
        }
    }

    /// Requests the map from other servers than one that refuses what it owns by the present map.
    fn doubt_map(&mut self, now: Instant, at: usize, out: &mut Vec<ClientEffect<T>>) {
        let server = at / self.lanes();
        self.servers[server].asked_at = now;
        self.map.is_doubted = true;
        self.want_map(now, out);
    }

    /// Returns the ready channel to the server whose map was requested least recently. A server that
    /// was asked before all of these is connected for the next request: all ready ones may be cut off
    /// from the others.
    fn other_channel(&mut self, now: Instant, out: &mut Vec<ClientEffect<T>>) -> Option<usize> {
        let lanes = self.lanes();
        let usable = self.servers.iter().enumerate().filter(|(_, server)| server.is_usable());
        let (mut ready, mut idle) = (None, None);
        for (place, server) in usable {
            let found = match &self.channels[place * lanes].state {
                ChannelState::Open(open) if open.is_ready && !open.is_suspect => &mut ready,
                ChannelState::Idle { not_before } if *not_before <= now => &mut idle,
                ChannelState::Open(_)
                | ChannelState::Connecting { .. }
                | ChannelState::Idle { .. } => {
                    continue;
                }
            };
            if found.is_none_or(|(asked_at, _)| server.asked_at < asked_at) {
                *found = Some((server.asked_at, place));
            }
        }
        let is_older = |(asked_at, _): &(Instant, usize)| ready.is_none_or(|it| *asked_at < it.0);
        if let Some((_, place)) = idle.filter(is_older).filter(|_| self.requests.len() > 0) {
            self.connect(now, place * lanes, out);
        }
        ready.map(|(_, place)| place * lanes)
    }

    /// Returns whether some server that was asked before this channel's is being connected.
    fn awaits_other(&self, at: usize) -> bool {
        let asked_at = self.server_at(at).asked_at;
        let channels = self.channels.iter().enumerate();
        let mut others = channels.filter(|(other, _)| self.server_at(*other).asked_at < asked_at);
        others.any(|(_, channel)| !channel.is_idle() && !channel.is_ready())
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<ClientEffect<T>>) {
        self.wake_at = None;
        let is_due = |request: &OpenRequest<T>| {
            request.deadline <= now || request.place.until().is_some_and(|until| until <= now)
        };
        let due = self.requests.iter().filter(|(_, request)| is_due(request));
        let due: Vec<_> = due.map(|(id, request)| (id, request.deadline <= now)).collect();
        for (id, is_expired) in due {
            match is_expired {
                true => self.expire(id, out),
                // A read that waits for the source is sent to the owner as well.
                false => self.route(now, id, out),
            }
        }
        (0..self.channels.len()).for_each(|at| self.check_channel(now, at, out));
        self.fetch_map(now, out);
        let next = self.requests.iter().map(|(_, request)| {
            request.place.until().map_or(request.deadline, |until| until.min(request.deadline))
        });
        if let Some(next) = next.min() {
            self.wake_by(next);
        }
        assert!(self.wake_at.is_none_or(|at| at > now), "a tick leaves nothing that is due");
    }

    fn expire(&mut self, id: RequestId, out: &mut Vec<ClientEffect<T>>) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let is_sent = matches!(request.place, OpenRequestPlace::Sent(_))
            && !planted::is(Bug::SentTakenForUnsent);
        let is_ambiguous = request.is_ambiguous && !planted::is(Bug::AmbiguousTakenForRefused);
        let may_have_run = is_ambiguous || is_sent;
        let may_matter = request.request.repeat != RepeatRule::Harmless;
        let error = unfinished(may_have_run && may_matter, FailureCause::Deadline);
        if planted::is(Bug::OverdueReplyNotExpected) {
            let open = self.channels.iter_mut().filter_map(Channel::open);
            open.for_each(|it| it.pipeline.retain(|entry| *entry != PipelineEntry::Request(id)));
        }
        self.finish(id, Err(error), out);
    }

    /// Acts on the time limits of a channel.
    fn check_channel(&mut self, now: Instant, at: usize, out: &mut Vec<ClientEffect<T>>) {
        let is_listed = self.server_at(at).is_listed;
        let (silence_max, connect_max) = (self.options.silence_max, self.options.connect_timeout);
        let channel = &mut self.channels[at];
        match &mut channel.state {
            ChannelState::Idle { .. } if channel.waiting.is_empty() => {}
            ChannelState::Idle { .. } => self.connect(now, at, out),
            ChannelState::Connecting { until } if *until <= now => {
                self.fail(now, at, ChannelFailure::Lost, out);
            }
            &mut ChannelState::Connecting { until } => self.wake_by(until),
            ChannelState::Open(open) => {
                let Some(since) = open.silent_since() else { return };
                let limit = if open.is_ready { silence_max } else { connect_max };
                let is_suspect = since + SUSPICION <= now;
                if since + limit <= now || (is_suspect && !is_listed) {
                    return self.fail(now, at, ChannelFailure::Lost, out);
                }
                if is_suspect {
                    open.is_suspect = true;
                    let has_map = open.pipeline.contains(&PipelineEntry::Map);
                    self.map.is_in_flight &= !has_map;
                    self.want_map(now, out);
                }
                let next = if is_suspect { now + SUSPICION } else { since + SUSPICION };
                self.wake_by(next.min(since + limit));
            }
        }
    }
}

/// Returns the error of a request that ends without a reply.
fn unfinished(may_have_run: bool, cause: FailureCause) -> ClientError {
    match may_have_run {
        true => ClientError::MaybeExecuted(cause),
        false => ClientError::NotExecuted(cause),
    }
}

/// Writes a command that the client sends for itself.
fn write_control(
    control: ControlRequest,
    options: &ClientOptions,
    mut expect: impl FnMut(PipelineEntry),
    output: &mut Vec<u8>,
) {
    match control {
        ControlRequest::Map => {
            RequestWriter::write(&[b"BALLAST.MAP"], output);
            expect(PipelineEntry::Map);
        }
        ControlRequest::Login => {
            let hello: [&[u8]; 2] = [b"HELLO", b"3"];
            match &options.password {
                None => RequestWriter::write(&hello, output),
                Some(password) => {
                    let user = options.username.as_deref().unwrap_or("default").as_bytes();
                    let login = [hello[0], hello[1], b"AUTH", user, password.as_bytes()];
                    RequestWriter::write(&login, output);
                }
            }
            expect(PipelineEntry::Login);
            if options.database != 0 {
                let database = i64::from(options.database);
                drop(RequestWriter::new(2, output).argument(b"SELECT").integer(database));
                expect(PipelineEntry::Login);
            }
        }
    }
}
