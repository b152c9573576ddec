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

use handshake::{Credentials, Handshake, HandshakeError, HandshakeStep, Opening};
use node::ReactorLiveness;
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use wire::Corrupt;
use wire::control::{
    ALIVE_AGAIN, ClockQuestion, ClockReading, ClusterMap, FromCoordinator, HistoryMark, Holdings,
    Join, SILENCE_MAX, ToCoordinator,
};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::{ConnectionPurpose, HandshakeMessage};

/// Pause before the first reconnection attempt. Each further attempt doubles the pause.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause: well below the time after which the coordinator declares a server dead.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Pause after the coordinator has refused a known server. An operator has to act.
const PAUSE_REFUSED: Duration = Duration::from_secs(5);
/// Time limit for establishing the connection ...
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// ... and for connection, handshake and welcome together.
const JOIN_MAX: Duration = Duration::from_secs(2);
/// Most messages that wait to be sent: far more than a server sends in one second.
const WAITING_MAX: usize = 65_536;

/// The link of a server to its coordinator. Dropping this value ends the link.
pub struct ControlLink {
    messages: Sender<ToCoordinator>,
    is_connected: Arc<AtomicBool>,
    pulse: SharedPulse,
    trouble: Arc<Mutex<Option<String>>>,
}

/// The liveness monitor of the reactors; `None` until the reactors exist.
type SharedPulse = Arc<Mutex<Option<ReactorLiveness>>>;

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
        let pulse = SharedPulse::default();
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
            pulse: pulse.clone(),
        };
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || runtime.block_on(link.run()))?;
        Ok(ControlLink { messages, is_connected, pulse, trouble })
    }

    /// Returns the error of the last failed attempt to join, as text for operators.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the liveness monitor. From then on, answers to pings report stalled reactors.
    pub fn watch(&self, pulse: ReactorLiveness) {
        *self.pulse.lock().unwrap_or_else(PoisonError::into_inner) = Some(pulse);
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
    pulse: SharedPulse,
}

/// Outcome of one connection.
enum JoinOutcome {
    /// The coordinator had accepted this server.
    Joined,
    /// The coordinator was unreachable or did not follow the protocol.
    Failed,
    /// The coordinator refused this server.
    Refused,
}

impl<F: FnMut(FromCoordinator)> ControlConnection<F> {
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        while !self.receiver.is_closed() {
            let attempt = self.attempt().await;
            self.is_connected.store(false, Ordering::Relaxed);
            pause = match attempt {
                JoinOutcome::Joined => PAUSE_MIN,
                JoinOutcome::Failed => (pause * 2).min(PAUSE_MAX),
                JoinOutcome::Refused if !self.has_joined => return,
                JoinOutcome::Refused => PAUSE_REFUSED,
            };
            // Drop messages during the pause. The end of the link also ends the pause.
            let dropping = async { while self.receiver.recv().await.is_some() {} };
            let _ = timeout(pause, dropping).await;
        }
    }

    /// Runs one connection from beginning to end.
    async fn attempt(&mut self) -> JoinOutcome {
        let joined = timeout(JOIN_MAX, self.connect_and_join()).await;
        match joined.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((reader, writer, true)) => {
                if let Err(error) = self.exchange_messages(reader, writer).await {
                    tracing::info!(%error, "connection to the coordinator closed");
                }
                JoinOutcome::Joined
            }
            Ok((_, _, false)) => JoinOutcome::Refused,
            Err(error) => {
                self.record_trouble(&error);
                match error.kind() {
                    // Report a wrong cluster key at once to the operator who starts the server.
                    io::ErrorKind::PermissionDenied if !self.has_joined => {
                        let reason = error.to_string();
                        (self.on_message)(FromCoordinator::Rejected { reason, is_fenced: false });
                        JoinOutcome::Refused
                    }
                    _ => JoinOutcome::Failed,
                }
            }
        }
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

    /// Connects and joins. The returned flag is false if the coordinator has refused the join.
    async fn connect_and_join(&mut self) -> io::Result<(OwnedReadHalf, OwnedWriteHalf, bool)> {
        let stream = timeout(CONNECT_MAX, TcpStream::connect(&self.coordinator)).await??;
        stream.set_nodelay(true)?;
        runtime::limit_unacknowledged(&stream)?;
        let (mut reader, mut writer) = stream.into_split();
        self.authenticate(&mut reader, &mut writer).await?;
        writer.write_all(&encoded(&ToCoordinator::Join(self.join.clone()))?).await?;
        let mut is_described = false;
        let answer = loop {
            match read_before_welcome(&mut reader).await? {
                Some(FromCoordinator::Mark(mark)) => raise(&mut self.join.mark, mark),
                // This may take long: report the reason to the caller that waits for the welcome.
                Some(waiting @ FromCoordinator::Waiting { .. }) if !self.has_joined => {
                    (self.on_message)(waiting);
                }
                Some(FromCoordinator::Waiting { .. }) => {}
                Some(FromCoordinator::Describe) => {
                    is_described = true;
                    self.describe(&mut writer).await?;
                }
                // The coordinator checks this server's clock before it accepts the join.
                Some(FromCoordinator::Clock(question)) => {
                    writer.write_all(&encoded(&reading(&self.pulse, question))?).await?;
                }
                Some(message) => break message,
                None => {}
            }
        };
        match &answer {
            FromCoordinator::Welcome { server, cluster, .. } => {
                let number = (*cluster, *server);
                if self.join.rejoin.is_some_and(|known| known != number) {
                    return Err(io::Error::other("coordinator returned another server id"));
                }
                self.is_connected.store(true, Ordering::Relaxed);
                self.join.rejoin = Some(number);
            }
            // An operator will act soon: reconnect, and send the description again until then.
            FromCoordinator::Rejected { reason, .. } if is_described => {
                if !self.has_joined {
                    (self.on_message)(FromCoordinator::Waiting { reason: reason.clone() });
                }
                return Err(io::Error::other(reason.clone()));
            }
            FromCoordinator::Rejected { reason, .. } => {
                tracing::error!(reason, "coordinator rejected this server");
                (self.on_message)(answer);
                return Ok((reader, writer, false));
            }
            other => {
                return Err(io::Error::other(format!(
                    "unexpected first message of the coordinator: {other:?}"
                )));
            }
        };
        if !std::mem::replace(&mut self.has_joined, true) {
            (self.on_message)(answer);
        }
        if let Some(mark) = self.join.mark {
            (self.on_message)(FromCoordinator::Mark(mark));
        }
        Ok((reader, writer, true))
    }

    /// Sends the known map and holdings to a coordinator that has lost its file.
    async fn describe(&self, writer: &mut OwnedWriteHalf) -> io::Result<()> {
        let known = described(&self.pulse).or_else(|| self.remembered.clone());
        let (map, holdings) = known.ok_or_else(|| {
            io::Error::other("coordinator asks for a map and holdings, and this server has neither")
        })?;
        let messages =
            [ToCoordinator::KnownMap(Box::new(map)), ToCoordinator::Holds(Box::new(holdings))];
        for message in messages {
            writer.write_all(&encoded(&message)?).await?;
        }
        Ok(())
    }

    /// Runs the handshake to its end.
    async fn authenticate(
        &mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
    ) -> io::Result<()> {
        let (cluster, server) = self.join.rejoin.unzip();
        let opening =
            Opening { purpose: ConnectionPurpose::Control, cluster, server, expected: None };
        let (mut handshake, first) =
            Handshake::open(&self.credentials, opening, handshake::new_nonce()?);
        writer.write_all(&encoded(&first)?).await?;
        loop {
            let message: Option<HandshakeMessage> = read(reader).await?;
            // An empty frame (keep-alive) is not allowed within a handshake.
            let message = message.ok_or(io::ErrorKind::InvalidData)?;
            match handshake.handle(message) {
                HandshakeStep::Reply(reply) => writer.write_all(&encoded(&reply)?).await?,
                HandshakeStep::Proven { last, .. } => {
                    if let Some(last) = last {
                        writer.write_all(&encoded(&last)?).await?;
                    }
                    return Ok(());
                }
                HandshakeStep::Refused { error, refusal } => {
                    if let Some(refusal) = refusal {
                        writer.write_all(&encoded(&refusal)?).await?;
                    }
                    return Err(error.into());
                }
            }
        }
    }

    async fn exchange_messages(
        &mut self,
        reader: OwnedReadHalf,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<()> {
        let mut alive = Vec::new();
        frame::encode(&(), 0, &mut alive).map_err(io::Error::other)?;
        // Capacity 1 is enough: an answer describes the present, whichever ping caused it.
        let (pings, mut pinged) = channel(1);
        let (questions, mut asked) = channel(1);
        // A read cannot be cancelled within a frame, so this future lives until the end.
        let delivery = Delivery {
            on_message: &mut self.on_message,
            highest: &mut self.join.mark,
            pings,
            questions,
        };
        let mut receiving = std::pin::pin!(delivery.receive(reader));
        loop {
            tokio::select! {
                result = &mut receiving => return result,
                Some(()) = pinged.recv() => {
                    let pong = encoded(&pong(&self.pulse))?;
                    send(&mut writer, &pong).await?;
                }
                Some(question) = asked.recv() => {
                    let reading = encoded(&reading(&self.pulse, question))?;
                    send(&mut writer, &reading).await?;
                }
                message = timeout(ALIVE_AGAIN, self.receiver.recv()) => match message {
                    Ok(Some(message)) => send_message(&mut writer, &message).await?,
                    Ok(None) => return Ok(()),
                    Err(_) => send(&mut writer, &alive).await?,
                },
            }
        }
    }
}

/// The receivers of the coordinator's messages.
struct Delivery<'c, F> {
    on_message: &'c mut F,
    /// Highest mark received so far.
    highest: &'c mut Option<HistoryMark>,
    pings: Sender<()>,
    questions: Sender<ClockQuestion>,
}

impl<F: FnMut(FromCoordinator)> Delivery<'_, F> {
    /// Delivers each received message, until the connection ends or stays silent for too long.
    async fn receive(self, mut reader: OwnedReadHalf) -> io::Result<()> {
        loop {
            match timeout(SILENCE_MAX, read(&mut reader)).await?? {
                Some(FromCoordinator::Mark(mark)) => {
                    raise(self.highest, mark);
                    (self.on_message)(FromCoordinator::Mark(mark));
                }
                // If a ping is already waiting, its answer also answers this one.
                Some(FromCoordinator::Ping) => drop(self.pings.try_send(())),
                // The reactors need the reference clock too. A dropped question is harmless:
                // another one comes within a second.
                Some(message @ FromCoordinator::Clock(question)) => {
                    let _ = self.questions.try_send(question);
                    (self.on_message)(message);
                }
                Some(message) => (self.on_message)(message),
                None => {}
            }
        }
    }
}

/// Keeps the highest mark. The server presents it to the next coordinator that it joins.
fn raise(highest: &mut Option<HistoryMark>, mark: HistoryMark) {
    if highest.is_none_or(|known| mark.is_after(&known)) {
        *highest = Some(mark);
    }
}

/// Returns the state for a coordinator that has lost its file.
fn described(pulse: &Mutex<Option<ReactorLiveness>>) -> Option<(ClusterMap, Holdings)> {
    let pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    let (map, holdings) = pulse.as_ref().map(ReactorLiveness::holdings)?;
    Some((ClusterMap::clone(&map), holdings))
}

/// Returns the answer to a ping.
fn pong(pulse: &Mutex<Option<ReactorLiveness>>) -> ToCoordinator {
    let mut pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    ToCoordinator::Pong { is_stalled: pulse.as_mut().is_some_and(ReactorLiveness::is_stalled) }
}

/// Returns the answer to a clock question.
fn reading(pulse: &Mutex<Option<ReactorLiveness>>, question: ClockQuestion) -> ToCoordinator {
    let pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    let mut clock = runtime::Clock::new();
    let now = clock.now();
    let expiry = pulse.as_ref().and_then(|pulse| pulse.clock(now));
    let asked = question.asked;
    ToCoordinator::Clock(ClockReading { asked, wall: clock.wall(now), expiry })
}

/// Reads one frame before the join is accepted. The coordinator checks this server's proof after it
/// has sent its own, so a refusal may arrive after the handshake has ended on this side.
async fn read_before_welcome(reader: &mut OwnedReadHalf) -> io::Result<Option<FromCoordinator>> {
    let (header, message) = read_frame(reader).await?;
    if let Ok(HandshakeMessage::Refuse(refusal)) = header.message(&message) {
        return Err(HandshakeError::Theirs(refusal).into());
    }
    decoded(&header, &message)
}

/// Reads one frame. `None` is an empty frame (keep-alive).
async fn read<M: DeserializeOwned>(reader: &mut OwnedReadHalf) -> io::Result<Option<M>> {
    let (header, message) = read_frame(reader).await?;
    decoded(&header, &message)
}

async fn read_frame(reader: &mut OwnedReadHalf) -> io::Result<(Header, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await?;
    let header = Header::parse(&header).map_err(broken)?;
    if header.payload_bytes != 0 {
        return Err(broken(Corrupt::Invalid { what: "payload on a control connection" }));
    }
    let mut message = vec![0; header.message_bytes];
    reader.read_exact(&mut message).await?;
    Ok((header, message))
}

fn decoded<M: DeserializeOwned>(header: &Header, message: &[u8]) -> io::Result<Option<M>> {
    if message.is_empty() {
        return header.message(message).map(|()| None).map_err(broken);
    }
    header.message(message).map(Some).map_err(broken)
}

/// Sends a frame. A coordinator that accepts no bytes for `SILENCE_MAX` counts as disconnected.
async fn send(writer: &mut OwnedWriteHalf, frame: &[u8]) -> io::Result<()> {
    timeout(SILENCE_MAX, writer.write_all(frame)).await?
}

/// Sends a message, or drops it if it does not fit a frame. Message sizes are bounded where
/// messages are built, so this is a bug here and no reason to close the connection.
async fn send_message(writer: &mut OwnedWriteHalf, message: &ToCoordinator) -> io::Result<()> {
    match encoded(message) {
        Ok(frame) => send(writer, &frame).await,
        Err(error) => {
            tracing::error!(%error, "message to the coordinator dropped, please report this");
            Ok(())
        }
    }
}

fn encoded(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn broken(error: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handshake::{Accepting, ClusterKeys, SERVED_BY_COORDINATORS};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use types::{ClusterId, Generation, ServerId};
    use wire::handshake::HandshakeRefusal;

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
            self.say(&FromCoordinator::Welcome { server: NUMBER, cluster: CLUSTER, seed: 1 });
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

    const MESSAGE: ToCoordinator = ToCoordinator::Flipped { migration: types::MigrationId(1) };

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
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Welcome { server: NUMBER, .. })));
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
            coordinator.say(&FromCoordinator::Ping);
            assert_eq!(coordinator.hear(), Some(ToCoordinator::Pong { is_stalled: false }));
        }
        coordinator.say(&map(1));
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Welcome { .. })));
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
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Welcome { .. })));
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
        assert!(matches!(messages.recv(), Ok(FromCoordinator::Welcome { .. })));
        assert_eq!(messages.recv(), Ok(map(1)));
        let other = ToCoordinator::Released { migration: types::MigrationId(2) };
        link.send(other.clone());
        assert_eq!(coordinator.hear(), Some(other));
    }

    #[test]
    fn a_link_that_is_refused_at_first_ends() {
        let (listener, _link, messages) = start();
        let mut coordinator = Accepted::from(&listener);
        coordinator.hear();
        let refusal = FromCoordinator::Rejected { reason: "no".into(), is_fenced: false };
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
        let told = FromCoordinator::Rejected { reason, is_fenced: false };
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
