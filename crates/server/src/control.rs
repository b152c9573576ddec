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
//! [`Link`] decides about the connection, [`Backoff`] about the next one. This module moves bytes
//! and joins.

use handshake::{Credentials, Opening};
use links::{AttemptOutcome, Backoff, Link, LinkEffect, LinkEffects, LinkEnd, LinkEvent, encoded};
use node::ReactorLiveness;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use types::Instant;
use wire::control::{
    ClockQuestion, ClockReading, ClusterMap, Description, FromCoordinator, HistoryMark, Holdings,
    Join, JoinReply, LivenessRequest, LivenessUpdate, ToCoordinator,
};
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
    pub fn start(
        coordinator: String,
        credentials: Credentials,
        join: Join,
        remembered: Option<(ClusterMap, Holdings)>,
        on_message: impl FnMut(FromCoordinator) + Send + 'static,
    ) -> io::Result<ControlLink> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (messages, receiver) = channel(WAITING_MAX);
        let is_connected = Arc::new(AtomicBool::new(false));
        let liveness = SharedLiveness::default();
        let trouble = Arc::<Mutex<Option<String>>>::default();
        let link = ControlConnection {
            coordinator,
            credentials,
            trouble: trouble.clone(),
            join,
            remembered,
            has_joined: false,
            on_message,
            receiver,
            is_connected: is_connected.clone(),
            liveness: liveness.clone(),
            clock: runtime::Clock::new(),
        };
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || runtime.block_on(link.run()))?;
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

struct ControlConnection<F> {
    coordinator: String,
    credentials: Credentials,
    trouble: Arc<Mutex<Option<String>>>,
    join: Join,
    remembered: Option<(ClusterMap, Holdings)>,
    /// True if this process has joined before.
    has_joined: bool,
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
    /// The coordinator has asked for the map and holdings.
    is_described: bool,
    is_joined: bool,
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
    Rejected,
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
        let (cluster, server) = self.join.rejoin.unzip();
        let opening =
            Opening { purpose: ConnectionPurpose::Control, cluster, server, expected: None };
        let link = Link::open(self.clock.now(), self.credentials.clone(), opening);
        let effects = LinkEffects::new();
        let mut attempt = JoinAttempt { link, effects, is_described: false, is_joined: false };
        let error = match self.exchange(&mut attempt).await {
            Ok(()) => return AttemptOutcome::Joined,
            Err(AttemptEnd::Rejected) => return AttemptOutcome::Refused,
            Err(AttemptEnd::Broken(error)) => error,
        };
        if attempt.is_joined {
            tracing::info!(%error, "connection to the coordinator closed");
            return AttemptOutcome::Joined;
        }
        self.record_trouble(&error);
        // Report a wrong cluster key at once to the operator who starts the server.
        if error.kind() == io::ErrorKind::PermissionDenied && !self.has_joined {
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

    /// Connects, joins and exchanges messages until the owner drops the link.
    async fn exchange(&mut self, attempt: &mut JoinAttempt) -> Result<(), AttemptEnd> {
        let connecting = timeout(self.time_left(attempt), TcpStream::connect(&self.coordinator));
        let stream = connecting.await.map_err(|_| LinkEnd::NotConnected)??;
        stream.set_nodelay(true)?;
        runtime::limit_unacknowledged(&stream)?;
        let (mut reader, mut writer) = stream.into_split();
        let nonce = handshake::new_nonce()?;
        self.handle(attempt, LinkEvent::Connected(nonce));
        let mut input = Vec::with_capacity(INPUT_BYTES);
        let mut frame = io::Cursor::new(Vec::new());
        loop {
            while let Some(effect) = attempt.effects.pop_front() {
                match effect {
                    LinkEffect::Write(bytes) => frame = io::Cursor::new(bytes),
                    LinkEffect::Proven(_) => {
                        let join = ToCoordinator::Join(self.join.clone());
                        attempt.send(self.clock.now(), &join)?;
                        self.handle(attempt, LinkEvent::Delivered);
                    }
                    LinkEffect::Deliver(message) => {
                        self.receive(attempt, message)?;
                        self.handle(attempt, LinkEvent::Delivered);
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

    /// Handles a message of the coordinator.
    fn receive(
        &mut self,
        attempt: &mut JoinAttempt,
        message: FromCoordinator,
    ) -> Result<(), AttemptEnd> {
        if !attempt.is_joined {
            return self.join(attempt, message);
        }
        let now = self.clock.now();
        match &message {
            FromCoordinator::Mark(mark) => raise(&mut self.join.mark, *mark),
            FromCoordinator::Liveness(LivenessRequest::Ping) => {
                return Ok(attempt.send(now, &pong(&self.liveness))?);
            }
            // The reactors need the reference clock too.
            FromCoordinator::Clock(question) => {
                attempt.send(now, &reading(&self.liveness, *question))?;
            }
            _ => {}
        }
        (self.on_message)(message);
        Ok(())
    }

    /// Handles a message of a coordinator that has not admitted this server yet.
    fn join(
        &mut self,
        attempt: &mut JoinAttempt,
        message: FromCoordinator,
    ) -> Result<(), AttemptEnd> {
        match message {
            FromCoordinator::Mark(mark) => raise(&mut self.join.mark, mark),
            // The coordinator checks this server's clock before it accepts the join.
            FromCoordinator::Clock(question) => {
                attempt.send(self.clock.now(), &reading(&self.liveness, question))?;
            }
            FromCoordinator::Join(reply) => return self.join_answered(attempt, reply),
            other => {
                let text = format!("unexpected first message of the coordinator: {other:?}");
                return Err(io::Error::other(text).into());
            }
        }
        Ok(())
    }

    /// Handles the reply to the join.
    fn join_answered(
        &mut self,
        attempt: &mut JoinAttempt,
        reply: JoinReply,
    ) -> Result<(), AttemptEnd> {
        match reply {
            // This may take long: report the reason to the caller that waits for the welcome.
            JoinReply::Waiting { .. } if !self.has_joined => (self.on_message)(reply.into()),
            JoinReply::Waiting { .. } => {}
            JoinReply::Describe => {
                attempt.is_described = true;
                self.describe(attempt)?;
            }
            JoinReply::Welcome { server, cluster, .. } => {
                let number = (cluster, server);
                if self.join.rejoin.is_some_and(|known| known != number) {
                    return Err(io::Error::other("coordinator returned another server id").into());
                }
                self.is_connected.store(true, Ordering::Relaxed);
                self.join.rejoin = Some(number);
                attempt.is_joined = true;
                self.handle(attempt, LinkEvent::Accepted);
                if !std::mem::replace(&mut self.has_joined, true) {
                    (self.on_message)(reply.into());
                }
                if let Some(mark) = self.join.mark {
                    (self.on_message)(mark.into());
                }
            }
            // An operator will act soon: reconnect, and send the description again until then.
            JoinReply::Rejected { reason, .. } if attempt.is_described => {
                if !self.has_joined {
                    (self.on_message)(JoinReply::Waiting { reason: reason.clone() }.into());
                }
                return Err(io::Error::other(reason).into());
            }
            JoinReply::Rejected { ref reason, .. } => {
                tracing::error!(reason, "coordinator rejected this server");
                (self.on_message)(reply.into());
                return Err(AttemptEnd::Rejected);
            }
        }
        Ok(())
    }

    /// Sends the known map and holdings to a coordinator that has lost its file.
    fn describe(&self, attempt: &mut JoinAttempt) -> io::Result<()> {
        let known = described(&self.liveness).or_else(|| self.remembered.clone());
        let (map, holdings) = known.ok_or_else(|| {
            io::Error::other("coordinator asks for a map and holdings, and this server has neither")
        })?;
        attempt.send(self.clock.now(), &Description::KnownMap(Box::new(map)).into())?;
        attempt.send(self.clock.now(), &Description::Holds(Box::new(holdings)).into())
    }
}

/// Keeps the highest mark. The server presents it to the next coordinator that it joins.
fn raise(highest: &mut Option<HistoryMark>, mark: HistoryMark) {
    if highest.is_none_or(|known| mark.is_after(&known)) {
        *highest = Some(mark);
    }
}

/// Returns the state for a coordinator that has lost its file.
fn described(liveness: &Mutex<Option<ReactorLiveness>>) -> Option<(ClusterMap, Holdings)> {
    let liveness = liveness.lock().unwrap_or_else(PoisonError::into_inner);
    let (map, holdings) = liveness.as_ref().map(ReactorLiveness::holdings)?;
    Some((ClusterMap::clone(&map), holdings))
}

/// Returns the answer to a ping.
fn pong(liveness: &Mutex<Option<ReactorLiveness>>) -> ToCoordinator {
    let mut liveness = liveness.lock().unwrap_or_else(PoisonError::into_inner);
    let is_stalled = liveness.as_mut().is_some_and(ReactorLiveness::is_stalled);
    LivenessUpdate::Pong { is_stalled }.into()
}

/// Returns the answer to a clock question.
fn reading(liveness: &Mutex<Option<ReactorLiveness>>, question: ClockQuestion) -> ToCoordinator {
    let liveness = liveness.lock().unwrap_or_else(PoisonError::into_inner);
    let mut clock = runtime::Clock::new();
    let now = clock.now();
    let expiry = liveness.as_ref().and_then(|liveness| liveness.clock(now));
    let asked = question.asked;
    ToCoordinator::Clock(ClockReading { asked, wall: clock.wall(now), expiry })
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
    use wire::control::MigrationUpdate;
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
        let address = listener.local_addr().unwrap().to_string();
        let link = ControlLink::start(address, credentials(), join, None, on_message).unwrap();
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
