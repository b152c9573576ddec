//! The server's link to its coordinator: one connection, kept up, on a thread of its own.
//!
//! The link proves the cluster key, joins, passes on what the coordinator says, and sends what the
//! server has to say. When the connection breaks it is opened again, with the number that the
//! server got at first. What was to be sent meanwhile is dropped, since both sides repeat what
//! matters; only an `Ask` has to be asked again by whoever waits for its answer.
//!
//! Pings and questions for the clock are answered here, so that no command and no disk delays the
//! answer; what it says of the reactors is the [`Pulse`]'s.
//!
//! Nothing of the data path comes here: a server whose coordinator is away goes on serving.

use crate::engine::Pulse;
use handshake::{Credentials, Handshake, HandshakeError, Opening, Step};
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
    ALIVE_AGAIN, ClockQuestion, ClockReading, ClusterMap, FromCoordinator, Holdings, Join, Mark,
    SILENCE_MAX, ToCoordinator,
};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::{HandshakeMessage, Purpose};

/// Pause before the first attempt to connect again, doubled with every further one.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause: well below the time after which the coordinator gives an absent server up.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Pause after the coordinator has refused a server that it knew: a person has to act.
const PAUSE_REFUSED: Duration = Duration::from_secs(5);
/// Time for the connection to be made ...
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// ... and, with that, for the welcome.
const GREETING_MAX: Duration = Duration::from_secs(2);
/// Most messages that wait to be sent: far above what a server says in a second.
const WAITING_MAX: usize = 65_536;

/// The link of a server to its coordinator. Dropping it ends the link.
pub struct ControlLink {
    messages: Sender<ToCoordinator>,
    is_connected: Arc<AtomicBool>,
    pulse: SharedPulse,
    trouble: Arc<Mutex<Option<String>>>,
}

/// `None` until there are reactors.
type SharedPulse = Arc<Mutex<Option<Pulse>>>;

impl ControlLink {
    /// Connects to `coordinator` (as `host:port`) and joins. `on_message` is called on the link's
    /// thread with everything that the coordinator says, first the welcome; of later connections
    /// the welcome is left out.
    ///
    /// If the coordinator refuses the first join, the link ends after that message, and
    /// `on_message` is dropped; so it does if one side refuses the first handshake. If it refuses a
    /// later one, the link tries again and the owner decides: a server that was given up holds
    /// ranges that another one serves, and must stop.
    ///
    /// `remembered` is what the disk tells of the cluster, for a coordinator that has lost its file
    /// and asks before there are reactors.
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
        let link = Link {
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

    /// Returns why the last attempt to join failed, for people.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on answers to pings say whether the reactors go on.
    pub fn watch(&self, pulse: Pulse) {
        *self.pulse.lock().unwrap_or_else(PoisonError::into_inner) = Some(pulse);
    }

    /// Sends a message, if the coordinator can be reached.
    pub fn send(&self, message: ToCoordinator) {
        if self.is_connected() && self.messages.try_send(message).is_err() {
            tracing::warn!("a message to the coordinator was dropped");
        }
    }

    /// Whether the coordinator can be reached.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// The same, for those who look at any time without having the link.
    pub fn connected(&self) -> Arc<AtomicBool> {
        self.is_connected.clone()
    }
}

struct Link<F> {
    coordinator: String,
    credentials: Credentials,
    trouble: Arc<Mutex<Option<String>>>,
    join: Join,
    remembered: Option<(ClusterMap, Holdings)>,
    /// Whether this process has been let in before.
    has_joined: bool,
    on_message: F,
    /// Closed when nobody wants the link any more.
    receiver: Receiver<ToCoordinator>,
    is_connected: Arc<AtomicBool>,
    pulse: SharedPulse,
}

/// What became of an attempt to connect.
enum Attempt {
    /// The coordinator had let us in.
    Joined,
    /// It cannot be reached, or does not answer as it should.
    Failed,
    /// It does not want us.
    Refused,
}

impl<F: FnMut(FromCoordinator)> Link<F> {
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        while !self.receiver.is_closed() {
            let attempt = self.attempt().await;
            self.is_connected.store(false, Ordering::Relaxed);
            pause = match attempt {
                Attempt::Joined => PAUSE_MIN,
                Attempt::Failed => (pause * 2).min(PAUSE_MAX),
                Attempt::Refused if !self.has_joined => return,
                Attempt::Refused => PAUSE_REFUSED,
            };
            // What is sent meanwhile is dropped; the end of the link ends the pause.
            let dropping = async { while self.receiver.recv().await.is_some() {} };
            let _ = timeout(pause, dropping).await;
        }
    }

    /// One connection, from its beginning to its end.
    async fn attempt(&mut self) -> Attempt {
        let joined = timeout(GREETING_MAX, self.greet()).await;
        match joined.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((reader, writer, true)) => {
                if let Err(error) = self.converse(reader, writer).await {
                    tracing::info!(%error, "the connection to the coordinator has ended");
                }
                Attempt::Joined
            }
            Ok((_, _, false)) => Attempt::Refused,
            Err(error) => {
                self.note_trouble(&error);
                match error.kind() {
                    // Whoever starts a server sees at once that its key is a wrong one.
                    io::ErrorKind::PermissionDenied if !self.has_joined => {
                        let reason = error.to_string();
                        (self.on_message)(FromCoordinator::Rejected { reason, is_fenced: false });
                        Attempt::Refused
                    }
                    _ => Attempt::Failed,
                }
            }
        }
    }

    /// Records why an attempt failed. A person has to act on a refusal, and is told of it once.
    fn note_trouble(&self, error: &io::Error) {
        let text = Some(error.to_string());
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if error.kind() == io::ErrorKind::PermissionDenied && *trouble != text {
            tracing::warn!(%error, "the coordinator cannot be joined");
        } else {
            tracing::debug!(%error, "the coordinator cannot be reached");
        }
        *trouble = text;
    }

    /// Connects and joins. `false`: the coordinator has refused.
    async fn greet(&mut self) -> io::Result<(OwnedReadHalf, OwnedWriteHalf, bool)> {
        let stream = timeout(CONNECT_MAX, TcpStream::connect(&self.coordinator)).await??;
        stream.set_nodelay(true)?;
        runtime::limit_unacknowledged(&stream)?;
        let (mut reader, mut writer) = stream.into_split();
        self.prove(&mut reader, &mut writer).await?;
        writer.write_all(&encoded(&ToCoordinator::Join(self.join.clone()))?).await?;
        let mut is_described = false;
        let greeting = loop {
            match read_greeting(&mut reader).await? {
                Some(FromCoordinator::Mark(mark)) => raise(&mut self.join.mark, mark),
                // It may be long: whoever waits for the first welcome is told why.
                Some(waiting @ FromCoordinator::Waiting { .. }) if !self.has_joined => {
                    (self.on_message)(waiting);
                }
                Some(FromCoordinator::Waiting { .. }) => {}
                Some(FromCoordinator::Describe) => {
                    is_described = true;
                    self.describe(&mut writer).await?;
                }
                // Before it is let in: what the clock shows decides.
                Some(FromCoordinator::Clock(question)) => {
                    writer.write_all(&encoded(&reading(&self.pulse, question))?).await?;
                }
                Some(message) => break message,
                None => {}
            }
        };
        match &greeting {
            FromCoordinator::Welcome { server, cluster, .. } => {
                let number = (*cluster, *server);
                if self.join.rejoin.is_some_and(|known| known != number) {
                    return Err(io::Error::other("the coordinator takes us for somebody else"));
                }
                self.is_connected.store(true, Ordering::Relaxed);
                self.join.rejoin = Some(number);
            }
            // A person acts soon: come back, and tell it anew until then.
            FromCoordinator::Rejected { reason, .. } if is_described => {
                if !self.has_joined {
                    (self.on_message)(FromCoordinator::Waiting { reason: reason.clone() });
                }
                return Err(io::Error::other(reason.clone()));
            }
            FromCoordinator::Rejected { reason, .. } => {
                tracing::error!(reason, "the coordinator refuses this server");
                (self.on_message)(greeting);
                return Ok((reader, writer, false));
            }
            other => {
                return Err(io::Error::other(format!("the coordinator greets with {other:?}")));
            }
        };
        if !std::mem::replace(&mut self.has_joined, true) {
            (self.on_message)(greeting);
        }
        if let Some(mark) = self.join.mark {
            (self.on_message)(FromCoordinator::Mark(mark));
        }
        Ok((reader, writer, true))
    }

    /// Tells a coordinator that has lost its file what is known here.
    async fn describe(&self, writer: &mut OwnedWriteHalf) -> io::Result<()> {
        let known = described(&self.pulse).or_else(|| self.remembered.clone());
        let (map, holdings) =
            known.ok_or_else(|| io::Error::other("the coordinator asks what nobody knows here"))?;
        let messages =
            [ToCoordinator::KnownMap(Box::new(map)), ToCoordinator::Holds(Box::new(holdings))];
        for message in messages {
            writer.write_all(&encoded(&message)?).await?;
        }
        Ok(())
    }

    /// Takes the handshake to its end.
    async fn prove(
        &mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
    ) -> io::Result<()> {
        let (cluster, server) = self.join.rejoin.unzip();
        let opening = Opening { purpose: Purpose::Control, cluster, server, expected: None };
        let (mut handshake, first) =
            Handshake::open(&self.credentials, opening, handshake::new_nonce()?);
        writer.write_all(&encoded(&first)?).await?;
        loop {
            let message: Option<HandshakeMessage> = read(reader).await?;
            // A sign of life is no part of a handshake.
            let message = message.ok_or(io::ErrorKind::InvalidData)?;
            match handshake.handle(message) {
                Step::Reply(reply) => writer.write_all(&encoded(&reply)?).await?,
                Step::Proven { last, .. } => {
                    if let Some(last) = last {
                        writer.write_all(&encoded(&last)?).await?;
                    }
                    return Ok(());
                }
                Step::Refused { error, tell } => {
                    if let Some(tell) = tell {
                        writer.write_all(&encoded(&tell)?).await?;
                    }
                    return Err(error.into());
                }
            }
        }
    }

    async fn converse(
        &mut self,
        reader: OwnedReadHalf,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<()> {
        let mut alive = Vec::new();
        frame::encode(&(), 0, &mut alive).map_err(io::Error::other)?;
        // One is enough: an answer tells of now, whichever ping it is for.
        let (pings, mut pinged) = channel(1);
        let (questions, mut asked) = channel(1);
        // Reading cannot be given up in the middle of a frame, so this future lives until the end.
        let heard = (&mut self.on_message, &mut self.join.mark);
        let mut hearing = std::pin::pin!(hear(reader, heard, (pings, questions)));
        loop {
            tokio::select! {
                result = &mut hearing => return result,
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

/// Passes on everything that comes, until the connection ends or nothing comes any more.
async fn hear(
    mut reader: OwnedReadHalf,
    (on_message, highest): (&mut impl FnMut(FromCoordinator), &mut Option<Mark>),
    (pings, questions): (Sender<()>, Sender<ClockQuestion>),
) -> io::Result<()> {
    loop {
        match timeout(SILENCE_MAX, read(&mut reader)).await?? {
            Some(FromCoordinator::Mark(mark)) => {
                raise(highest, mark);
                on_message(FromCoordinator::Mark(mark));
            }
            // If one waits already, its answer is one to this ping as well.
            Some(FromCoordinator::Ping) => drop(pings.try_send(())),
            // The reactors want the reference; another question comes within a second.
            Some(message @ FromCoordinator::Clock(question)) => {
                let _ = questions.try_send(question);
                on_message(message);
            }
            Some(message) => on_message(message),
            None => {}
        }
    }
}

/// Keeps the highest mark: what a coordinator says on one connection, the server tells the next
/// one.
fn raise(highest: &mut Option<Mark>, mark: Mark) {
    if highest.is_none_or(|known| mark.is_after(&known)) {
        *highest = Some(mark);
    }
}

/// What this server tells a coordinator that has lost its file.
fn described(pulse: &Mutex<Option<Pulse>>) -> Option<(ClusterMap, Holdings)> {
    let pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    let (map, holdings) = pulse.as_ref().map(Pulse::holdings)?;
    Some((ClusterMap::clone(&map), holdings))
}

/// The answer to a ping.
fn pong(pulse: &Mutex<Option<Pulse>>) -> ToCoordinator {
    let mut pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    ToCoordinator::Pong { is_stalled: pulse.as_mut().is_some_and(Pulse::is_stalled) }
}

/// The answer to a question for the clock.
fn reading(pulse: &Mutex<Option<Pulse>>, question: ClockQuestion) -> ToCoordinator {
    let pulse = pulse.lock().unwrap_or_else(PoisonError::into_inner);
    let mut clock = runtime::Clock::new();
    let now = clock.now();
    let expiry = pulse.as_ref().and_then(|pulse| pulse.clock(now));
    let asked = question.asked;
    ToCoordinator::Clock(ClockReading { asked, wall: clock.wall(now), expiry })
}

/// One frame before this server is let in. The coordinator judges this server's proof after it has
/// given its own, so its refusal may come when the handshake is over on this side.
async fn read_greeting(reader: &mut OwnedReadHalf) -> io::Result<Option<FromCoordinator>> {
    let (header, message) = read_frame(reader).await?;
    if let Ok(HandshakeMessage::Refuse(refusal)) = header.message(&message) {
        return Err(HandshakeError::Theirs(refusal).into());
    }
    decoded(&header, &message)
}

/// One frame; `None` is a sign of life.
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

/// A coordinator that takes nothing for so long is as good as away.
async fn send(writer: &mut OwnedWriteHalf, frame: &[u8]) -> io::Result<()> {
    timeout(SILENCE_MAX, writer.write_all(frame)).await?
}

/// Sends a message, or drops one that no frame can carry: its size is bounded where it is made, so
/// this is a fault of ours, and no reason to end the connection.
async fn send_message(writer: &mut OwnedWriteHalf, message: &ToCoordinator) -> io::Result<()> {
    match encoded(message) {
        Ok(frame) => send(writer, &frame).await,
        Err(error) => {
            tracing::error!(%error, "a message to the coordinator was dropped: please report this");
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
                    Step::Reply(reply) => self.0.write_all(&encoded(&reply).unwrap()).unwrap(),
                    Step::Proven { .. } => return,
                    Step::Refused { error, .. } => panic!("{error}"),
                }
            }
        }

        /// The next message that is no sign of life; `None` at the end.
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
        let mark = |term, transaction| Mark { term, term_id: 7, transaction };
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
        // Broken off, cut in the middle of a frame, and by bytes that are no frame.
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
