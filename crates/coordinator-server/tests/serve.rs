//! Tests of the coordinator over real sockets, with scripted servers.

use coordinator::{
    ClusterIdentity, CoordinatorSettings, Drawn, MemoryStore, MetaEntry, MetaStore, MetaStoreError,
    Transaction, Verdict,
};
use coordinator_server::{FileStore, Running, serve_reopening};
use handshake::{ClusterKeys, Credentials, Opening};
use links::BlockingLink;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{ClusterId, Generation, HashRange, MigrationId, ServerId, Slot};
use wire::control::{
    Answer, Ask, ClusterMap, FromCoordinator, Join, JoinReply, MigrationPolicy, MigrationReport,
    MigrationRequest, MigrationState, MigrationUpdate, SILENCE_MAX, ToCoordinator,
};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::ConnectionPurpose;

const IDENTITY: ClusterIdentity = ClusterIdentity { cluster: ClusterId(77), seed: 42 };

fn join_of(rejoin: Option<ServerId>) -> Join {
    Join {
        host: "host".into(),
        client_port: 6379,
        bus_port: 16379,
        rejoin: rejoin.map(|server| (IDENTITY.cluster, server)),
        replicas: 0,
        rack: String::new(),
        disk: None,
        former: None,
        mark: None,
    }
}

/// Returns the request to move slots to a server.
fn migrate(first: u16, last: u16, target: ServerId) -> Ask {
    let ranges = vec![HashRange::of_slots(Slot(first), Slot(last))];
    Ask::Migrate { ranges, source: None, target, policy: MigrationPolicy::default() }
}

fn start(store: impl MetaStore + Send + 'static) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let drawn = Drawn { fresh: IDENTITY, term: 1 };
    Running::start(listener, credentials(1), store, drawn, CoordinatorSettings::default()).unwrap()
}

fn credentials(generation: u64) -> Credentials {
    let keys = ClusterKeys::parse(&"07".repeat(32)).unwrap();
    Credentials::new(Generation(generation), Some(keys))
}

/// A server's end of a connection.
struct Peer {
    stream: TcpStream,
    /// Messages received during the join that have not been examined yet.
    heard: VecDeque<FromCoordinator>,
}

impl Peer {
    fn connect(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { stream, heard: VecDeque::new() }
    }

    /// Connects and proves the key.
    fn proven(address: SocketAddr, rejoin: Option<ServerId>) -> Peer {
        Peer::try_proven(address, rejoin, &credentials(2)).unwrap()
    }

    fn try_proven(
        address: SocketAddr,
        server: Option<ServerId>,
        credentials: &Credentials,
    ) -> std::io::Result<Peer> {
        let peer = Peer::connect(address);
        let cluster = server.map(|_| IDENTITY.cluster);
        let opening =
            Opening { purpose: ConnectionPurpose::Control, cluster, server, expected: None };
        let (stream, nonce) = (peer.stream.try_clone()?, handshake::new_nonce()?);
        let (_, host) = BlockingLink::<_, ()>::open(stream, credentials, opening, nonce)?;
        assert_eq!(host.party.cluster, Some(IDENTITY.cluster));
        Ok(peer)
    }

    /// Connects and joins; receives the welcome, and confirms new ranges.
    fn join(address: SocketAddr, rejoin: Option<ServerId>) -> (Peer, ServerId) {
        let mut peer = Peer::proven(address, rejoin);
        peer.say(ToCoordinator::Join(join_of(rejoin)));
        match peer.hear() {
            Some(FromCoordinator::Join(JoinReply::Welcome { server, cluster, seed })) => {
                assert_eq!((cluster, seed), (IDENTITY.cluster, IDENTITY.seed));
                let map = peer.receive();
                peer.heard.extend(map);
                (peer, server)
            }
            other => panic!("no welcome but {other:?}"),
        }
    }

    fn say(&mut self, message: impl Into<ToCoordinator>) {
        let mut bytes = Vec::new();
        frame::encode(&message.into(), 0, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    fn frame(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no message arrives"),
            Err(_) => return None,
        }
        let header = Header::parse(&header).unwrap();
        assert_eq!(header.payload_bytes, 0);
        let mut message = vec![0; header.message_bytes];
        self.stream.read_exact(&mut message).unwrap();
        Some((header, message))
    }

    /// Returns the next message; `None` at the end of the connection.
    fn hear(&mut self) -> Option<FromCoordinator> {
        self.heard.pop_front().or_else(|| self.receive())
    }

    /// Receives the next message. Confirms new ranges in a map.
    fn receive(&mut self) -> Option<FromCoordinator> {
        loop {
            let (header, message) = self.frame()?;
            if message.is_empty() {
                continue;
            }
            match header.message(&message).unwrap() {
                FromCoordinator::Mark(_) => {}
                FromCoordinator::Map(map) => {
                    for born in map.tablets.iter().filter(|tablet| tablet.is_born) {
                        let (range, epoch) = (born.range, born.epoch);
                        self.say(ToCoordinator::Holding { range, epoch });
                    }
                    return Some(FromCoordinator::Map(map));
                }
                message => return Some(message),
            }
        }
    }

    /// Returns the first result of `pick` for the next messages.
    fn expect<T>(&mut self, pick: impl Fn(&FromCoordinator) -> Option<T>) -> T {
        loop {
            let message = self.hear().expect("the connection has ended");
            if let Some(picked) = pick(&message) {
                return picked;
            }
        }
    }

    fn expect_map(&mut self, fits: impl Fn(&ClusterMap) -> bool) -> ClusterMap {
        self.expect(|message| match message {
            FromCoordinator::Map(map) if fits(map) => Some(map.clone()),
            _ => None,
        })
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        self.say(ToCoordinator::Ask { request: 5, ask });
        self.expect(|message| match message {
            FromCoordinator::Answer { request: 5, answer } => Some(answer.clone()),
            _ => None,
        })
    }

    fn reports(&mut self) -> Vec<MigrationReport> {
        match self.ask(Ask::List { task: None }) {
            Answer::Migrations(reports) => reports,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that only keep-alives and the end of the connection follow.
    fn expect_end(&mut self) {
        assert_eq!(self.hear(), None);
    }
}

#[test]
fn a_range_moves_between_two_servers_over_sockets() {
    let coordinator = start(MemoryStore::new());
    let (mut source, first) = Peer::join(coordinator.address(), None);
    let (mut target, second) = Peer::join(coordinator.address(), None);
    let migration = MigrationId(1);
    assert_eq!(source.ask(migrate(0, 99, second)), Answer::Started(vec![migration]));
    source.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Measure { .. })).then_some(())
    });
    source.say(MigrationUpdate::Measured { migration, records: 9, bytes: 900 });
    target.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Prepare(_))).then_some(())
    });
    target.say(MigrationUpdate::Prepared { migration, refused: None });
    source.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Start(_))).then_some(())
    });
    target.say(MigrationUpdate::Flipped { migration });
    let map = source.expect_map(|map| map.tablets.len() == 2);
    assert_eq!((map.tablets[0].owner, map.tablets[1].owner), (second, first));
    target.say(MigrationUpdate::Shrink { migration, remaining: vec![] });
    source.expect(|message| match message {
        FromCoordinator::Migration(MigrationRequest::Forget { remaining, .. }) => {
            remaining.is_empty().then_some(())
        }
        _ => None,
    });
    source.say(MigrationUpdate::Released { migration });
    target.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Finished { .. })).then_some(())
    });
    assert_eq!(target.reports()[0].state, MigrationState::Success);
    coordinator.stop().unwrap();
}

#[test]
fn a_connection_that_breaks_is_noticed_and_can_be_taken_up_again() {
    let coordinator = start(MemoryStore::new());
    let (first, number) = Peer::join(coordinator.address(), None);
    let (mut second, _) = Peer::join(coordinator.address(), None);
    let connected = |map: &ClusterMap| map.servers.iter().filter(|s| s.connected).count();
    second.expect_map(|map| connected(map) == 2);
    drop(first);
    second.expect_map(|map| connected(map) == 1);
    let (_first, again) = Peer::join(coordinator.address(), Some(number));
    assert_eq!(again, number);
    second.expect_map(|map| connected(map) == 2);
}

#[test]
fn what_is_not_a_server_is_cut_off_and_disturbs_nobody() {
    let coordinator = start(MemoryStore::new());
    let (mut server, _) = Peer::join(coordinator.address(), None);
    let frame_of = |message: &ToCoordinator, payload: usize| {
        let mut bytes = Vec::new();
        frame::encode(message, payload, &mut bytes).unwrap();
        bytes
    };
    let long =
        MigrationUpdate::Prepared { migration: MigrationId(1), refused: Some("x".repeat(5_000)) }
            .into();
    let mut flipped = frame_of(&ToCoordinator::Join(join_of(None)), 0);
    *flipped.last_mut().unwrap() ^= 1;
    let mut huge = frame_of(&ToCoordinator::Join(join_of(None)), 0);
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = (0..10_000).map(|_| random.u8(..)).collect();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        noise,
        flipped,
        huge,
        frame_of(&long, 0),
        frame_of(&ToCoordinator::Join(join_of(None)), 10),
        frame_of(&ToCoordinator::Ask { request: 1, ask: Ask::List { task: None } }, 0)[..18]
            .to_vec(),
    ] {
        let mut peer = Peer::connect(coordinator.address());
        // The connection may be closed before everything is sent.
        let _ = peer.stream.write_all(&bytes);
        let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        peer.expect_end();
    }
    let keys = ClusterKeys::parse(&"08".repeat(32)).unwrap();
    for (keys, why) in [(None, "has a cluster key"), (Some(keys), "cluster key is another one")] {
        let stranger = Credentials::new(Generation(3), keys);
        let refused = Peer::try_proven(coordinator.address(), None, &stranger).err().unwrap();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let mut impatient = Peer::proven(coordinator.address(), None);
    impatient.say(ToCoordinator::Ask { request: 1, ask: Ask::List { task: None } });
    assert!(matches!(impatient.hear(), Some(FromCoordinator::Join(JoinReply::Rejected { .. }))));
    impatient.expect_end();
    assert_eq!(server.reports(), []);
}

#[test]
fn a_coordinator_that_stops_and_starts_again_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta.redb");
    let coordinator = start(FileStore::open(&path).unwrap());
    let (mut source, first) = Peer::join(coordinator.address(), None);
    let (mut target, second) = Peer::join(coordinator.address(), None);
    let migration = MigrationId(1);
    assert_eq!(source.ask(migrate(0, 9, second)), Answer::Started(vec![migration]));
    source.say(MigrationUpdate::Measured { migration, records: 1, bytes: 1 });
    target.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Prepare(_))).then_some(())
    });
    coordinator.stop().unwrap();
    while source.hear().is_some() {}
    target.expect_end();

    let coordinator = start(FileStore::open(&path).unwrap());
    let (mut target, number) = Peer::join(coordinator.address(), Some(second));
    assert_eq!(number, second);
    target.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Prepare(_))).then_some(())
    });
    target.say(MigrationUpdate::Prepared { migration, refused: None });
    let (mut source, number) = Peer::join(coordinator.address(), Some(first));
    assert_eq!(number, first);
    source.expect(|m| {
        matches!(m, FromCoordinator::Migration(MigrationRequest::Start(_))).then_some(())
    });
    let (_third, number) = Peer::join(coordinator.address(), None);
    assert_eq!(number, ServerId(3));
}

#[test]
fn a_coordinator_whose_store_was_taken_over_stops() {
    let store = MemoryStore::new();
    let old = start(store.clone());
    let (mut server, number) = Peer::join(old.address(), None);
    let new = start(store);
    // A welcome from the new coordinator shows that it has taken over.
    let (_other, _) = Peer::join(new.address(), None);
    server.say(ToCoordinator::Ask { request: 1, ask: Ask::Flush { table: None } });
    while server.hear().is_some() {}
    assert!(old.stop().unwrap_err().to_string().contains("another coordinator"));
    let (_, again) = Peer::join(new.address(), Some(number));
    assert_eq!(again, number);
}

/// A store that can be broken, as a full disk breaks a file.
struct BrittleStore {
    kept: MemoryStore,
    is_broken: Arc<AtomicBool>,
}

impl MetaStore for BrittleStore {
    fn read(&self, key: &str) -> Result<Option<MetaEntry>, MetaStoreError> {
        self.kept.read(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>, MetaStoreError> {
        self.kept.list(prefix)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, MetaStoreError> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => Err(MetaStoreError("the disk is full".into())),
            false => self.kept.transact(transaction),
        }
    }
}

#[test]
fn a_coordinator_goes_on_when_its_store_works_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (kept, is_broken) = (MemoryStore::new(), Arc::new(AtomicBool::new(false)));
    let (opened, opens) = std::sync::mpsc::channel();
    let broken = Arc::clone(&is_broken);
    let mut term = 0;
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        serve_reopening(&listener, &credentials(1), CoordinatorSettings::default(), || {
            term += 1;
            opened.send(term)?;
            let store = BrittleStore { kept: kept.clone(), is_broken: Arc::clone(&broken) };
            Ok((store, Drawn { fresh: IDENTITY, term }))
        });
    });
    let (mut server, number) = Peer::join(address, None);
    is_broken.store(true, Ordering::SeqCst);
    // A new member takes a transaction.
    let mut other = Peer::proven(address, None);
    other.say(ToCoordinator::Join(join_of(None)));
    while server.hear().is_some() {}
    while opens.recv().unwrap() < 3 {}
    is_broken.store(false, Ordering::SeqCst);
    let (_, again) = Peer::join(address, Some(number));
    assert_eq!(again, number);
}

#[test]
fn both_sides_notice_when_the_other_hangs() {
    let coordinator = start(MemoryStore::new());
    let (mut hanging, _) = Peer::join(coordinator.address(), None);
    let mut silent = Peer::connect(coordinator.address());
    // The coordinator sends keep-alives, but receives nothing from these two.
    let mut signs = 0;
    while let Some((_, message)) = hanging.frame() {
        signs += usize::from(message.is_empty());
    }
    assert!(signs as u64 >= SILENCE_MAX.as_secs() / 2, "only {signs} signs of life");
    while silent.frame().is_some() {}
}

/// Silent connections displace only other silent connections.
#[test]
fn strangers_keep_no_server_away() {
    let coordinator = start(MemoryStore::new());
    let mut silent: Vec<Peer> = (0..600).map(|_| Peer::connect(coordinator.address())).collect();
    let (mut server, _) = Peer::join(coordinator.address(), None);
    for stranger in &mut silent {
        assert!(stranger.frame().is_none(), "it is rejected");
    }
    assert_eq!(server.reports(), []);
}
