//! The server's link to its coordinator: one connection on a thread of its own, reopened when it
//! ends.
//!
//! The link proves the cluster key, joins the cluster, delivers the coordinator's messages and
//! sends the server's messages. After a disconnect, it joins again under the server's first number.
//! Messages sent meanwhile are dropped, since both sides repeat the messages that matter. Only an
//! `Ask` must be repeated by the caller that waits for its answer.
//!
//! This thread answers pings and clock questions itself, so that no command and no disk delays the
//! answer. The answer includes the liveness of the reactors, taken from [`ReactorLiveness`].
//!
//! The data path does not use this link: a server without coordinator continues to serve.
//!
//! [`Link`] decides about the connection, [`Backoff`] about the next one, [`AddressBook`] about its
//! address, and [`ClusterMembership`] about the join and the answers. This module moves bytes and
//! messages.

use crate::shell::AddressBook;
use handshake::{Credentials, Opening};
use links::{AttemptOutcome, Backoff, Link, LinkEffect, LinkEffects, LinkEnd, LinkEvent, encoded};
use node::{
    ClusterMembership, MembershipContext, MembershipEffect, MembershipEffects, MembershipEnd,
    MembershipEvent, ReactorLiveness,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use types::Instant;
use wire::control::{ClusterMap, FromCoordinator, Holdings, Join, JoinReply, ToCoordinator};
use wire::handshake::ConnectionPurpose;

/// Most messages that wait to be sent: far more than a server sends in one second.
const WAITING_MAX: usize = 65_536;
/// Bytes read from the connection at a time.
const INPUT_BYTES: usize = 8 << 10;

/// The link of a server to its coordinator. Dropping this value ends the link.
pub struct ControlLink {
    messages: Sender<ToCoordinator>,
    is_connected: Arc<AtomicBool>,
    liveness: SharedLiveness,
    trouble: Arc<Mutex<Option<String>>>,
}

/// The liveness monitor of the reactors; `None` until the reactors exist.
type SharedLiveness = Arc<Mutex<Option<ReactorLiveness>>>;

impl ControlLink {
    /// Connects to `coordinator` (as `host:port`) and joins. The link's thread calls `on_message`
    /// with each message of the coordinator, first the welcome. Later connections omit the welcome.
    ///
    /// If the coordinator refuses the first join, or either side refuses the first handshake, the
    /// link ends and drops `on_message`. Before that, it delivers the refusal as a message. If the
    /// coordinator refuses a later join, the link tries again and the owner decides. A server that
    /// was declared dead must stop, because another server now serves its ranges.
    ///
    /// `remembered` is the cluster state found on disk. It is sent to a coordinator that has lost
    /// its file and asks before the reactors exist.
    ///
    /// # Errors
    /// If `coordinator` is no `host:port`, or the system refuses a thread.
    pub fn start(
        coordinator: &str,
        addresses: Arc<AddressBook>,
        credentials: Credentials,
        join: Join,
        remembered: Option<(ClusterMap, Holdings)>,
        on_message: impl FnMut(FromCoordinator) + Send + 'static,
    ) -> io::Result<ControlLink> {
        let coordinator = CoordinatorPlace::parse(coordinator, addresses)?;
        let tokio =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (messages, receiver) = channel(WAITING_MAX);
        let is_connected = Arc::new(AtomicBool::new(false));
        let liveness = SharedLiveness::default();
        let trouble = Arc::<Mutex<Option<String>>>::default();
        let link = ControlConnection {
            coordinator,
            credentials,
            trouble: trouble.clone(),
            membership: ClusterMembership::new(join, remembered),
            on_message,
            receiver,
            is_connected: is_connected.clone(),
            liveness: liveness.clone(),
            clock: runtime::Clock::new(),
        };
        runtime::spawn_vital("control", move || tokio.block_on(link.run()))?;
        Ok(ControlLink { messages, is_connected, liveness, trouble })
    }

    /// Returns the error of the last failed attempt to join, as text for operators.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the liveness monitor. From then on, answers to pings report stalled reactors.
    pub fn watch(&self, liveness: ReactorLiveness) {
        *self.liveness.lock().unwrap_or_else(PoisonError::into_inner) = Some(liveness);
    }

    /// Sends a message, if the coordinator is connected.
    pub fn send(&self, message: ToCoordinator) {
        if self.is_connected() && self.messages.try_send(message).is_err() {
            tracing::warn!("message to the coordinator dropped");
        }
    }

    /// Returns whether the coordinator is connected.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Returns the flag behind [`ControlLink::is_connected`], for readers without the link.
    pub fn connected(&self) -> Arc<AtomicBool> {
        self.is_connected.clone()
    }
}

/// The coordinator's name and port.
struct CoordinatorPlace {
    host: String,
    port: u16,
    addresses: Arc<AddressBook>,
}

impl CoordinatorPlace {
    fn parse(text: &str, addresses: Arc<AddressBook>) -> io::Result<CoordinatorPlace> {
        let numeric = text.parse::<SocketAddr>().ok();
        let numeric = numeric.map(|address| (address.ip().to_string(), address.port()));
        let named = || {
            let (host, port) = text.rsplit_once(':')?;
            let is_name = !host.is_empty() && !host.contains(':');
            is_name.then_some((host.to_owned(), port.parse().ok()?))
        };
        let Some((host, port)) = numeric.or_else(named) else {
            let wrong = format!("'{text}' is no address of a coordinator (expected HOST:PORT)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
        };
        Ok(CoordinatorPlace { host, port, addresses })
    }

    /// Returns the address to try.
    ///
    /// # Errors
    /// If none is known yet. A resolver is being asked then.
    fn address(&self) -> io::Result<IpAddr> {
        self.addresses.look_up(&self.host).ok_or_else(|| {
            let missing = format!("the address of {} is not known yet", self.host);
            io::Error::new(io::ErrorKind::NotFound, missing)
        })
    }
}

struct ControlConnection<F> {
    coordinator: CoordinatorPlace,
    credentials: Credentials,
    trouble: Arc<Mutex<Option<String>>>,
    membership: ClusterMembership,
    on_message: F,
    /// Closed when the owner drops the link.
    receiver: Receiver<ToCoordinator>,
    is_connected: Arc<AtomicBool>,
    liveness: SharedLiveness,
    clock: runtime::Clock,
}

/// One connection to the coordinator.
struct JoinAttempt {
    link: Link<FromCoordinator>,
    effects: LinkEffects<FromCoordinator>,
}

impl JoinAttempt {
    fn send(&mut self, now: Instant, message: &ToCoordinator) -> io::Result<()> {
        let frame = encoded(message).map_err(io::Error::other)?;
        self.link.handle(now, LinkEvent::Send(frame), &mut self.effects);
        Ok(())
    }
}

/// The reason why an attempt has ended.
enum AttemptEnd {
    /// The coordinator has refused this server.
    Refused,
    /// The connection has ended, or the coordinator did not follow the protocol.
    Broken(io::Error),
}

impl From<io::Error> for AttemptEnd {
    fn from(error: io::Error) -> AttemptEnd {
        AttemptEnd::Broken(error)
    }
}

impl From<LinkEnd> for AttemptEnd {
    fn from(end: LinkEnd) -> AttemptEnd {
        AttemptEnd::Broken(end.into())
    }
}

impl From<MembershipEnd> for AttemptEnd {
    fn from(end: MembershipEnd) -> AttemptEnd {
        match end {
            MembershipEnd::Refused => AttemptEnd::Refused,
            MembershipEnd::Failed(reason) => AttemptEnd::Broken(io::Error::other(reason)),
        }
    }
}

impl<F: FnMut(FromCoordinator)> ControlConnection<F> {
    async fn run(mut self) {
        let mut backoff = Backoff::new();
        while !self.receiver.is_closed() {
            let outcome = self.attempt().await;
            self.is_connected.store(false, Ordering::Relaxed);
            let Some(pause) = backoff.handle(outcome) else { return };
            // Drop messages during the pause. The end of the link also ends the pause.
            let dropping = async { while self.receiver.recv().await.is_some() {} };
            let _ = timeout(pause, dropping).await;
        }
    }

    /// Runs one connection from beginning to end.
    async fn attempt(&mut self) -> AttemptOutcome {
        let (cluster, server) = self.membership.number().unzip();
        let opening =
            Opening { purpose: ConnectionPurpose::Control, cluster, server, expected: None };
        let link = Link::open(self.clock.now(), self.credentials.clone(), opening);
        let mut attempt = JoinAttempt { link, effects: LinkEffects::new() };
        let end = self.exchange(&mut attempt).await;
        let was_welcomed = self.is_connected.load(Ordering::Relaxed);
        let error = match end {
            Ok(()) => return AttemptOutcome::Joined,
            Err(AttemptEnd::Refused) => return AttemptOutcome::Refused,
            Err(AttemptEnd::Broken(error)) => error,
        };
        if was_welcomed {
            tracing::info!(%error, "connection to the coordinator closed");
            return AttemptOutcome::Joined;
        }
        self.record_trouble(&error);
        // Report a wrong cluster key at once to the operator who starts the server.
        if error.kind() == io::ErrorKind::PermissionDenied && !self.membership.has_joined() {
            let reason = error.to_string();
            (self.on_message)(JoinReply::Rejected { reason, is_fenced: false }.into());
            return AttemptOutcome::Refused;
        }
        AttemptOutcome::Failed
    }

    /// Records why an attempt failed. A refusal needs an operator, so it is logged once.
    fn record_trouble(&self, error: &io::Error) {
        let text = Some(error.to_string());
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if error.kind() == io::ErrorKind::PermissionDenied && *trouble != text {
            tracing::warn!(%error, "cannot join the cluster");
        } else {
            tracing::debug!(%error, "cannot reach the coordinator");
        }
        *trouble = text;
    }

    /// Connects to one address of the coordinator. After a failure, the next attempt tries the next
    /// one.
    async fn connect(&self, attempt: &JoinAttempt) -> io::Result<TcpStream> {
        let CoordinatorPlace { host, port, addresses } = &self.coordinator;
        let address = self.coordinator.address()?;
        let connecting = timeout(self.time_left(attempt), TcpStream::connect((address, *port)));
        let connected = connecting.await.unwrap_or_else(|_| Err(LinkEnd::NotConnected.into()));
        let stream = connected.inspect_err(|_| addresses.failed(host, address))?;
        stream.set_nodelay(true)?;
        runtime::limit_unacknowledged(&stream)?;
        Ok(stream)
    }

    /// Connects, joins and exchanges messages until the owner drops the link.
    async fn exchange(&mut self, attempt: &mut JoinAttempt) -> Result<(), AttemptEnd> {
        let stream = self.connect(attempt).await?;
        let (mut reader, mut writer) = stream.into_split();
        let nonce = handshake::new_nonce()?;
        self.handle(attempt, LinkEvent::Connected(nonce));
        let mut input = Vec::with_capacity(INPUT_BYTES);
        let mut frame = io::Cursor::new(Vec::new());
        loop {
            while let Some(effect) = attempt.effects.pop_front() {
                match effect {
                    LinkEffect::Write(bytes) => frame = io::Cursor::new(bytes),
                    LinkEffect::Proven(_) => self.advance(attempt, MembershipEvent::Connected)?,
                    LinkEffect::Deliver(message) => {
                        self.advance(attempt, MembershipEvent::Received(message))?;
                    }
                    LinkEffect::Close(end) => return Err(end.into()),
                }
            }
            let is_writing = frame.position() < frame.get_ref().len() as u64;
            let time_left = self.time_left(attempt);
            // The timer comes last: it counts only if nothing has arrived.
            tokio::select! {
                biased;
                written = writer.write_all_buf(&mut frame), if is_writing => {
                    written?;
                    self.handle(attempt, LinkEvent::Written);
                }
                read = reader.read_buf(&mut input), if attempt.link.wants_input() => {
                    if read? == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                    self.handle(attempt, LinkEvent::Received(&input));
                    input.clear();
                }
                message = self.receiver.recv(), if attempt.link.is_idle() => {
                    let Some(message) = message else { return Ok(()) };
                    // Message sizes are bounded where messages are built, so this is a bug here
                    // and no reason to close the connection.
                    if let Err(error) = attempt.send(self.clock.now(), &message) {
                        tracing::error!(%error, "message to the coordinator dropped, please report this");
                    }
                }
                () = tokio::time::sleep(time_left) => self.handle(attempt, LinkEvent::Tick),
            }
        }
    }

    fn handle(&self, attempt: &mut JoinAttempt, event: LinkEvent<'_>) {
        attempt.link.handle(self.clock.now(), event, &mut attempt.effects);
    }

    /// Returns the time until the next deadline of the link.
    fn time_left(&self, attempt: &JoinAttempt) -> Duration {
        let deadline = attempt.link.next_deadline();
        deadline.map_or(Duration::MAX, |deadline| deadline.since(self.clock.now()))
    }

    /// Passes the last effect of the link to the membership, and executes its effects.
    fn advance(
        &mut self,
        attempt: &mut JoinAttempt,
        event: MembershipEvent,
    ) -> Result<(), AttemptEnd> {
        // The coordinator compares this reading, so it must not come from a cache.
        let mut clock = runtime::Clock::new();
        let now = clock.now();
        let wall = clock.wall(now);
        let mut effects = MembershipEffects::new();
        {
            let mut liveness = self.liveness.lock().unwrap_or_else(PoisonError::into_inner);
            let mut context = MembershipContext { now, wall, liveness: liveness.as_mut() };
            self.membership.handle(&mut context, event, &mut effects);
        }
        for effect in effects {
            match effect {
                MembershipEffect::Send(message) => attempt.send(now, &message)?,
                MembershipEffect::Accepted => {
                    self.is_connected.store(true, Ordering::Relaxed);
                    self.handle(attempt, LinkEvent::Accepted);
                }
                MembershipEffect::Deliver(message) => {
                    if let FromCoordinator::Join(JoinReply::Rejected { reason, .. }) = &message {
                        tracing::error!(reason, "coordinator rejected this server");
                    }
                    (self.on_message)(message);
                }
                MembershipEffect::Close(end) => return Err(end.into()),
            }
        }
        self.handle(attempt, LinkEvent::Delivered);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handshake::{
        Accepting, ClusterKeys, Handshake, HandshakeError, HandshakeStep, SERVED_BY_COORDINATORS,
    };
    use serde::de::DeserializeOwned;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use types::{ClusterId, Generation, ServerId};
    use wire::control::{HistoryMark, LivenessRequest, LivenessUpdate, MigrationUpdate};
    use wire::frame::{self, HEADER_BYTES, Header};
    use wire::handshake::{HandshakeMessage, HandshakeRefusal};

    const CLUSTER: ClusterId = ClusterId(7);
    const NUMBER: ServerId = ServerId(3);

    /// The coordinator's end of a connection.
    struct Accepted(TcpStream);

    fn credentials() -> Credentials {
        let key = ClusterKeys::parse(&"07".repeat(32)).unwrap();
        Credentials::new(Generation(1), Some(key))
    }

    impl Accepted {
        fn from(listener: &TcpListener) -> Accepted {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut accepted = Accepted(stream);
            accepted.prove();
            accepted
        }

        fn prove(&mut self) {
            let purposes = SERVED_BY_COORDINATORS;
            let here = Accepting { purposes, cluster: Some(CLUSTER), server: None };
            let nonce = handshake::new_nonce().unwrap();
            let mut handshake = Handshake::accept(&credentials(), here, nonce);
            loop {
                match handshake.handle(self.hear_any().unwrap()) {
                    HandshakeStep::Reply(reply) => {
                        self.0.write_all(&encoded(&reply).unwrap()).unwrap()
                    }
                    HandshakeStep::Proven { .. } => return,
                    HandshakeStep::Refused { error, .. } => panic!("{error}"),
                }
            }
        }

        /// Returns the next message that is not a keep-alive; `None` at the end.
        fn hear(&mut self) -> Option<ToCoordinator> {
            self.hear_any()
        }

        fn hear_any<M: DeserializeOwned>(&mut self) -> Option<M> {
            loop {
                let mut header = [0; HEADER_BYTES];
                self.0.read_exact(&mut header).ok()?;
                let header = Header::parse(&header).unwrap();
                let mut message = vec![0; header.message_bytes];
                self.0.read_exact(&mut message).unwrap();
                if !message.is_empty() {
                    return Some(header.message(&message).unwrap());
                }
            }
        }

        fn say(&mut self, message: &FromCoordinator) {
            let mut bytes = Vec::new();
            frame::encode(message, 0, &mut bytes).unwrap();
            self.0.write_all(&bytes).unwrap();
        }

        fn welcome(&mut self) -> Join {
            let Some(ToCoordinator::Join(join)) = self.hear() else { panic!("no join") };
            let (server, cluster) = (NUMBER, CLUSTER);
            self.say(&JoinReply::Welcome { server, cluster, seed: 1 }.into());
            join
        }
    }

    fn start() -> (TcpListener, ControlLink, mpsc::Receiver<FromCoordinator>) {
        start_at("127.0.0.1", AddressBook::of_system())
    }

    /// Starts a link to a listener at 127.0.0.1, which the link knows as `host`.
    fn start_at(
        host: &str,
        addresses: Arc<AddressBook>,
    ) -> (TcpListener, ControlLink, mpsc::Receiver<FromCoordinator>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let join = Join {
            host: "here".into(),
            client_port: 1,
            bus_port: 2,
            rejoin: None,
            replicas: 0,
            rack: String::new(),
            disk: None,
            former: None,
            mark: None,
        };
        let (sender, receiver) = mpsc::channel();
        let on_message = move |message| drop(sender.send(message));
        let address = format!("{host}:{}", listener.local_addr().unwrap().port());
        let link =
            ControlLink::start(&address, addresses, credentials(), join, None, on_message).unwrap();
        (listener, link, receiver)
    }

    fn map(version: u64) -> FromCoordinator {
        FromCoordinator::Map(ClusterMap {
            version,
            cluster: CLUSTER,
            servers: vec![],
            tablets: vec![],
            moving: vec![],
        })
    }

    const MESSAGE: ToCoordinator =
        ToCoordinator::Migration(MigrationUpdate::Flipped { migration: types::MigrationId(1) });

    #[test]
    fn a_link_waits_for_a_slow_resolver_and_passes_over_an_address_that_is_dead() {
        let (answer, answers) = mpsc::channel::<Vec<IpAddr>>();
        let answers = Mutex::new(answers);
        let book = AddressBook::new(move |host| {
            assert_eq!(host, "coordinator.example");
            Ok(answers.lock().unwrap().recv().unwrap_or_default())
        });
        let (listener, link, _messages) = start_at("coordinator.example", book);
        while link.trouble().is_none_or(|trouble| !trouble.contains("is not known yet")) {
            std::thread::yield_now();
        }
        // Nobody listens at the first address.
        let resolved = vec![[127, 0, 0, 2].into(), [127, 0, 0, 1].into()];
        answer.send(resolved).unwrap();
        let mut coordinator = Accepted::from(&listener);
        coordinator.welcome();
    }

    #[test]
    fn the_place_of_a_coordinator_is_a_host_and_a_port() {
        let book = AddressBook::of_system();
        for (text, host) in [
            ("10.0.0.1:7000", "10.0.0.1"),
            ("[::1]:7000", "::1"),
            ("name.example:7000", "name.example"),
        ] {
            let place = CoordinatorPlace::parse(text, Arc::clone(&book)).unwrap();
            assert_eq!((&*place.host, place.port), (host, 7000));
        }
        for wrong in ["", "7000", "name.example", "name.example:", "name.example:x", "::1"] {
            assert!(CoordinatorPlace::parse(wrong, Arc::clone(&book)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_highest_mark_that_was_heard_is_told_on_the_next_connection() {
        let (listener, _link, messages) = start();
        let mark = |term, transaction| HistoryMark { term, term_id: 7, transaction };
        let mut coordinator = Accepted::from(&listener);
        coordinator.welcome();
        for told in [mark(1, 3), mark(2, 9), mark(2, 8)] {
            coordinator.say(&FromCoordinator::Mark(told));
        }
        coordinator.say(&map(1));
        while messages.recv() != Ok(map(1)) {}
        drop(coordinator);
        assert_eq!(Accepted::from(&listener).welcome().mark, Some(mark(2, 9)));
    }

    #[test]
    fn a_link_joins_and_passes_messages_both_ways() {
        let (listener, link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        assert_eq!(coordinator.welcome().rejoin, None);
        assert!(matches!(
            messages.recv(),
            Ok(FromCoordinator::Join(JoinReply::Welcome { server: NUMBER, .. }))
        ));
        coordinator.say(&map(1));
        assert_eq!(messages.recv(), Ok(map(1)));
        assert!(link.is_connected());
        link.send(MESSAGE);
        assert_eq!(coordinator.hear(), Some(MESSAGE));
    }

    #[test]
    fn a_link_answers_pings_itself() {
        let (listener, _link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        coordinator.welcome();
        for _ in 0..3 {
            coordinator.say(&FromCoordinator::Liveness(LivenessRequest::Ping));
            assert_eq!(coordinator.hear(), Some(LivenessUpdate::Pong { is_stalled: false }.into()));
        }
        coordinator.say(&map(1));
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Join(JoinReply::Welcome { .. }))));
        assert_eq!(messages.recv(), Ok(map(1)), "nobody else hears of them");
    }

    #[test]
    fn a_link_that_breaks_comes_back_under_its_number() {
        let (listener, link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        coordinator.welcome();
        // The connection ends cleanly, in the middle of a frame, and with bytes that are no frame.
        for bytes in [&b""[..], b"BLST\x05\x00", &[0xff; 40]] {
            coordinator.0.write_all(bytes).unwrap();
            drop(coordinator);
            coordinator = Accepted::from(&listener);
            assert_eq!(coordinator.welcome().rejoin, Some((CLUSTER, NUMBER)));
        }
        coordinator.say(&map(2));
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Join(JoinReply::Welcome { .. }))));
        assert_eq!(messages.recv(), Ok(map(2)), "only the first welcome is passed on");
        link.send(MESSAGE);
        assert_eq!(coordinator.hear(), Some(MESSAGE));
    }

    #[test]
    fn what_is_said_while_the_coordinator_is_away_is_dropped() {
        let (listener, link, messages) = start();
        link.send(MESSAGE);
        let mut coordinator = Accepted::from(&listener);
        coordinator.welcome();
        coordinator.say(&map(1));
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Join(JoinReply::Welcome { .. }))));
        assert_eq!(messages.recv(), Ok(map(1)));
        let other: ToCoordinator =
            MigrationUpdate::Released { migration: types::MigrationId(2) }.into();
        link.send(other.clone());
        assert_eq!(coordinator.hear(), Some(other));
    }

    #[test]
    fn a_link_that_is_refused_at_first_ends() {
        let (listener, _link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        coordinator.hear();
        let refusal = JoinReply::Rejected { reason: "no".into(), is_fenced: false }.into();
        coordinator.say(&refusal);
        assert_eq!(messages.recv(), Ok(refusal));
        assert!(messages.recv().is_err(), "the callback is dropped");
        assert_eq!(coordinator.hear(), None);
    }

    #[test]
    fn a_link_whose_proof_is_refused_last_says_so() {
        let (listener, _link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        coordinator.hear();
        let refusal = HandshakeMessage::Refuse(HandshakeRefusal::WrongKey);
        let mut bytes = Vec::new();
        frame::encode(&refusal, 0, &mut bytes).unwrap();
        coordinator.0.write_all(&bytes).unwrap();
        let reason = HandshakeError::Theirs(HandshakeRefusal::WrongKey).to_string();
        let told = JoinReply::Rejected { reason, is_fenced: false }.into();
        assert_eq!(messages.recv(), Ok(told), "the reason, not that a message is not valid");
    }

    #[test]
    fn a_link_that_is_dropped_ends() {
        let (listener, link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        coordinator.welcome();
        assert!(messages.recv().is_ok());
        drop(link);
        assert_eq!(coordinator.hear(), None);
        assert!(messages.recv().is_err());
    }
}
