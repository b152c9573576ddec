//! Golden scripts of the coordinator: `tests/scripts`. Each script runs on every store.
//!
//! `join`, `join again=s1` and `leave` connect and disconnect servers; `s1: flipped m1` is a
//! message from s1; `restart` replaces the coordinator; `wait 100ms` lets time pass; `map` and
//! `list` show the state. The output contains every effect, in order. A map for several servers
//! is shown once.
//!
//! `connect operator` opens an operator's connection, `operator: accept-loss s1` one for this ask
//! only, `connect` one of a process that has not joined yet. `join again=s1 generation=2` comes
//! from another process than the one with that number.
//!
//! `join keeps=2 rack=a` is a server with two replicas of its log. `join disk=5` has data of
//! cluster 5 on its disk; the cluster of the tests is 77. `s2: fenced s1 manifest_log=4 3 5/80` reports
//! the replicas of the manifest log's segment 4 (104 bytes), of segment 3 of the log (100 bytes),
//! and of segment 5 (80 bytes). `s2: manifest s1 4 3/open 5` sends a manifest of 104 bytes with
//! segment 3, which is open, and segment 5, which is closed with 100 bytes.
//! `s2: recovered s1 0-99 as=e7` completes a recovery partition. `s1: will 0-99/7 5000/300`
//! reports a load of 7 for each of the first hundred slots.
//!
//! `join former=s2 mark=101/1/9` is a new process on the disk of s2, with the mark of transaction
//! 9 of term 1 (random id 101; the next term has 102). `copy` stops the coordinator, copies its
//! store, and starts another one; `put-back` starts one on the copy. `trust-file` is an
//! operator's flag for later starts.
//!
//! Marks are shown after `show-marks`. Servers confirm new ranges at once, except after
//! `silent-births`.
//!
//! Servers answer pings at once. Servers in `hang s1 s2` do not answer until `go-on s1`. Answered
//! pings are shown only after `show-pings`. `stand-still 300ms` pauses the coordinator.
//! `s1: stalled` answers a ping and reports a stalled reactor.
//!
//! After `slow-store` the store answers a commit only at `commit`; a transaction is shown with the
//! records that it changes. `restart committed` replaces the coordinator after the transaction in
//! flight has taken effect and before the answer, `restart` before it has. `take-over` lets another
//! coordinator open the store.

mod support;

use coordinator::{Caller, CoordinatorEvent, Effect, LinkId, MemoryStore};
use goldenscript::{Command, Context, Runner};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;
use support::{CommitTime, Storage, World, join_of, slots, text};
use types::{
    ClusterId, Generation, HashRange, KeyHash, MigrationId, OwnershipEpoch, SLOT_COUNT, SegmentId,
    ServerId, TableId,
};
use wire::control::{
    Ask, FromCoordinator, HistoryMark, JoinReply, LivenessUpdate, LoadProfile, LogLoss, LogUpdate,
    ManifestPosition, MigrationPolicy, MigrationProgress, MigrationUpdate, PriorityPullMode,
    RecoveryUpdate, ReplicaInfo, ToCoordinator,
};
use wire::manifest::{ManifestEntry, SegmentContent, SegmentRecord, encode};
use wire::replica::ReplicaEpoch;

type Failure = Box<dyn Error>;

#[test]
fn scripts_come_out_as_written_on_every_store() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        println!("{}", path.display());
        goldenscript::run(&mut Script::new(Storage::memory()), &path).unwrap();
        goldenscript::run(&mut Script::new(Storage::file()), &path).unwrap();
    }
}

/// Two servers have died. Of the range that the first one owned, s3 serves a part before it is
/// durable; s2 did so and died too; s4 has recovered one. Three migrations are there, in the
/// stages `Moving`, `Releasing` and `Ended`. The script was written by the version that wrote the
/// store.
#[test]
fn a_store_of_format_7_goes_on_as_the_version_that_wrote_it_would() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let storage = Storage::copy_of(&folder.join("7.redb"));
    goldenscript::run(&mut Script::new(storage), folder.join("7")).unwrap();
}

struct Script {
    world: World,
    copy: Option<MemoryStore>,
    connections: BTreeMap<ServerId, LinkId>,
}

impl Script {
    fn new(storage: Storage) -> Script {
        Script { world: World::new(storage), copy: None, connections: BTreeMap::new() }
    }

    fn name(&self, connection: LinkId) -> String {
        let known = self.connections.iter().find(|(_, known)| **known == connection);
        known.map_or_else(|| connection.to_string(), |(server, _)| server.to_string())
    }

    fn print(&mut self, effects: &[Effect]) -> String {
        let mut lines: Vec<(String, String)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send { connection, message } => {
                    if let FromCoordinator::Join(JoinReply::Welcome { server, .. }) = message {
                        self.connections.insert(*server, *connection);
                    }
                    let (to, text) = (self.name(*connection), text::message(message));
                    match lines.last_mut() {
                        Some((receivers, last)) if *last == text => {
                            receivers.push_str(", ");
                            receivers.push_str(&to);
                        }
                        _ => lines.push((to, text)),
                    }
                }
                Effect::Commit(transaction) => {
                    let writes = transaction.writes.iter();
                    let change = |(key, value): &(String, Option<_>)| match value {
                        Some(_) => format!(" {key}"),
                        None => format!(" -{key}"),
                    };
                    let changes: String = writes.map(change).collect();
                    lines.push(("store".to_owned(), format!("commit{changes}")));
                }
                Effect::Close { connection } => {
                    lines.push((self.name(*connection), "connection closed".into()));
                }
            }
        }
        lines.iter().map(|(to, text)| format!("{to} <- {text}\n")).collect()
    }

    fn wait(&mut self, duration: &str) -> Result<String, Failure> {
        let effects = self.world.wait(millis(duration)?);
        Ok(self.print(&effects))
    }

    /// Makes servers hang, or continue.
    fn hang(&mut self, command: &Command) -> Result<String, Failure> {
        let mut args = command.consume_args();
        while let Some(text) = args.next_pos() {
            let connection = *self.connections.get(&server(text)?).ok_or("it is not there")?;
            if command.name == "hang" {
                self.world.hanging.insert(connection);
            } else {
                self.world.hanging.remove(&connection);
            }
        }
        Ok(String::new())
    }

    /// Sets by how many ms a server's clock is ahead from now on.
    fn clock(&mut self, command: &Command) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let who = server(args.next_pos().ok_or("whose?")?)?;
        let ahead = args.take_key("ahead").ok_or("how many ms ahead?")?.parse()?;
        let connection = *self.connections.get(&who).ok_or("it is not there")?;
        self.world.clocks_ahead.insert(connection, ahead);
        Ok(String::new())
    }

    fn join(&mut self, command: &Command) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let again = args.take_key("again").map(server).transpose()?;
        let mut join = join_of(again);
        if let Some(cluster) = args.take_key("cluster") {
            let server = again.ok_or("a cluster goes with again")?;
            join.rejoin = Some((ClusterId(cluster.parse()?), server));
        }
        join.host = args.take_key("host").unwrap_or("host").into();
        if let Some(port) = args.take_key("port") {
            join.client_port = port.parse()?;
        }
        join.replicas = args.take_key("keeps").unwrap_or("0").parse()?;
        join.rack = args.take_key("rack").unwrap_or("").into();
        join.former =
            args.take_key("former").map(server).transpose()?.map(|it| (ClusterId(77), it));
        join.mark = args.take_key("mark").map(mark).transpose()?;
        join.disk = args.take_key("disk").map(str::parse).transpose()?.map(ClusterId);
        let generation = Generation(args.take_key("generation").unwrap_or("1").parse()?);
        let ahead: i64 = args.take_key("ahead").unwrap_or("0").parse()?;
        args.reject_next()?;
        let caller = Caller::Server { number: join.rejoin, generation };
        let connection = self.world.open_connection(caller);
        self.world.clocks_ahead.insert(connection, ahead);
        let effects = self.world.say(connection, ToCoordinator::Join(join));
        Ok(self.print(&effects))
    }

    fn leave(&mut self, command: &Command) -> Result<String, Failure> {
        let who = server(command.consume_args().next_pos().ok_or("who leaves?")?)?;
        let connection = self.connections.remove(&who).ok_or("it is not there")?;
        let effects = self.world.handle(CoordinatorEvent::Closed { connection });
        Ok(self.print(&effects))
    }

    fn say(&mut self, from: &str, command: &Command) -> Result<String, Failure> {
        let message = message(command)?;
        let connection = match from.strip_prefix('c') {
            _ if from == "operator" => self.world.open_connection(Caller::Operator),
            Some(number) => LinkId(number.parse()?),
            None => *self.connections.get(&server(from)?).ok_or("not connected")?,
        };
        let effects = self.world.say(connection, message);
        Ok(self.print(&effects))
    }
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Result<String, Failure> {
        if let Some(from) = &context.prefix {
            return self.say(from, command);
        }
        match command.name.as_str() {
            "join" => self.join(command),
            "leave" => self.leave(command),
            "connect" => {
                let caller = match command.consume_args().next_pos() {
                    Some("operator") => Caller::Operator,
                    Some(other) => return Err(format!("there is no caller {other}").into()),
                    None => Caller::Server { number: None, generation: Generation(1) },
                };
                Ok(format!("{}\n", self.world.open_connection(caller)))
            }
            "wait" => self.wait(command.consume_args().next_pos().ok_or("how long?")?),
            "slow-store" => {
                self.world.commit_time = CommitTime::ByHand;
                Ok(String::new())
            }
            "commit" => match self.world.finish_commit() {
                Ok(effects) => Ok(self.print(&effects)),
                Err(stopped) => Ok(format!("stopped: {stopped}\n")),
            },
            "take-over" => {
                self.world.take_over();
                Ok(String::new())
            }
            "restart" => {
                self.connections.clear();
                if command.consume_args().next_pos() == Some("committed") {
                    self.world.apply_transaction();
                }
                self.world.restart();
                Ok(String::new())
            }
            "stand-still" => {
                let text = command.consume_args().next_pos().ok_or("how long?")?.to_owned();
                self.world.stand_still(millis(&text)?);
                Ok(String::new())
            }
            "show-pings" => {
                self.world.shows_pings = true;
                Ok(String::new())
            }
            "show-marks" => {
                self.world.shows_marks = true;
                Ok(String::new())
            }
            "silent-births" => {
                self.world.births_are_silent = true;
                Ok(String::new())
            }
            "trust-file" => {
                self.world.trusts_file = true;
                Ok(String::new())
            }
            "copy" => {
                self.connections.clear();
                self.copy = Some(self.world.copy());
                Ok(String::new())
            }
            "put-back" => {
                self.connections.clear();
                self.world.put_back(self.copy.take().ok_or("there is no copy")?);
                self.world.restart();
                Ok(String::new())
            }
            "hang" | "go-on" => self.hang(command),
            "clock" => self.clock(command),
            "map" => Ok(text::cluster_map(&self.world.coordinator().map()) + "\n"),
            "recoveries" => {
                let reports = self.world.coordinator().recoveries();
                let text: String = reports.iter().map(text::recovery).collect();
                Ok(text.trim_start().to_owned())
            }
            "list" => {
                let reports = self.world.coordinator().reports();
                Ok(reports.iter().map(text::report).collect::<String>().trim_start().to_owned())
            }
            other => Err(format!("unknown command {other}").into()),
        }
    }
}

fn holding(args: &mut goldenscript::ArgumentConsumer<'_>) -> Result<ToCoordinator, Failure> {
    let epoch = args.take_key("as").and_then(|text| text.strip_prefix('e'));
    let epoch = OwnershipEpoch(epoch.ok_or("as which epoch?")?.parse()?);
    Ok(ToCoordinator::Holding { range: ranges(args)?[0], epoch })
}

/// Parses a mark: `101/2/7` is transaction 7 of term 2, which has the random id 101.
fn mark(text: &str) -> Result<HistoryMark, Failure> {
    let numbers: Vec<u64> = text.split('/').map(str::parse).collect::<Result<_, _>>()?;
    let [term_id, term, transaction] = numbers[..] else {
        return Err("a mark is id/term/transaction".into());
    };
    Ok(HistoryMark { term, term_id, transaction })
}

fn millis(text: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_millis(text.strip_suffix("ms").ok_or("a time is in ms")?.parse()?))
}

fn message(command: &Command) -> Result<ToCoordinator, Failure> {
    let mut args = command.consume_args();
    let ask = |ask: Ask| ToCoordinator::Ask { request: 7, ask };
    let message = match command.name.as_str() {
        "join" => ToCoordinator::Join(join_of(None)),
        "migrate" => {
            let mut policy = MigrationPolicy::default();
            if let Some(partitions) = args.take_key("partitions") {
                policy.partitions = partitions.parse()?;
            }
            if let Some(bytes) = args.take_key("pull-bytes") {
                policy.pull_bytes = bytes.parse()?;
            }
            if let Some(ahead) = args.take_key("pulls-ahead") {
                policy.pulls_ahead = ahead.parse()?;
            }
            if let Some(share) = args.take_key("share") {
                policy.background_share = share.parse()?;
            }
            if let Some(micros) = args.take_key("latency-p99") {
                policy.latency_p99_micros = micros.parse()?;
            }
            if let Some(hashes) = args.take_key("hashes") {
                policy.priority = PriorityPullMode::Batched { hashes_max: hashes.parse()? };
            }
            let target = server(args.take_key("to").ok_or("where to?")?)?;
            let source = args.take_key("from").map(server).transpose()?;
            ask(Ask::Migrate { ranges: ranges(&mut args)?, source, target, policy })
        }
        "cancel" => {
            let source = args.take_key("from").map(server).transpose()?;
            let task = args.take_key("task").map(str::parse).transpose()?.map(MigrationId);
            ask(Ask::Cancel { source, task })
        }
        "list" => ask(Ask::List { task: None }),
        "flush" => {
            let table = args.next_pos().map(str::parse).transpose()?.map(TableId);
            ask(Ask::Flush { table })
        }
        "holding" => holding(&mut args)?,
        "pong" => LivenessUpdate::Pong { is_stalled: false }.into(),
        "stalled" => LivenessUpdate::Pong { is_stalled: true }.into(),
        "witnessed" => {
            LivenessUpdate::Witnessed { server: server(args.next_pos().ok_or("who?")?)? }.into()
        }
        "suspect" => {
            LivenessUpdate::Suspect { server: server(args.next_pos().ok_or("whom?")?)? }.into()
        }
        "will" => {
            let mut loads = vec![0; usize::from(SLOT_COUNT)];
            while let Some(text) = args.next_pos() {
                let (range, load) = text.split_once('/').ok_or("slots and load?")?;
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last) = slots(first.parse()?, last.parse()?).slots();
                loads[usize::from(first.0)..=usize::from(last.0)].fill(load.parse()?);
            }
            LogUpdate::LoadProfile(LoadProfile::of(&loads)).into()
        }
        "show-map" => ask(Ask::Map),
        "standing" => ask(Ask::Standing),
        "recoveries" => ask(Ask::Recoveries),
        "clocks" => ask(Ask::Clocks),
        "health" => ask(Ask::Health),
        "accept-loss" => {
            let dead = server(args.next_pos().ok_or("of whom?")?)?;
            let mut first = Vec::new();
            while let Some(text) = args.next_pos() {
                first.push(SegmentId(text.parse()?));
            }
            let total = first.len() as u32;
            let is_manifest = first.is_empty();
            let loss =
                if is_manifest { LogLoss::Manifest } else { LogLoss::Segments { first, total } };
            ask(Ask::AcceptLoss { dead, loss })
        }
        "manifest-log" | "fenced" | "manifest" | "replayed" | "recovered" | "not-recovered"
        | "damaged" | "freed" | "needed" => about_log(command)?,
        _ => about_migration(command)?.into(),
    };
    Ok(message)
}

fn about_log(command: &Command) -> Result<ToCoordinator, Failure> {
    let mut args = command.consume_args();
    if command.name == "manifest-log" {
        let number = SegmentId(args.next_pos().ok_or("which one?")?.parse()?);
        return Ok(LogUpdate::ManifestContinues { number }.into());
    }
    let log = server(args.next_pos().ok_or("of whom?")?)?;
    Ok(match command.name.as_str() {
        "fenced" => {
            let more = args.take_key("more").is_some();
            let first = args.take_key("after").unwrap_or("0").parse()?;
            let manifest_log =
                args.take_key("manifest-log").map(|text| replica(text, true)).transpose()?;
            let mut replicas = Vec::from_iter(manifest_log);
            while let Some(text) = args.next_pos() {
                replicas.push(replica(text, false)?);
            }
            let clock = types::UnixMillis(args.take_key("clock").unwrap_or("0").parse()?);
            LogUpdate::Fenced { log, first, replicas, clock, more }.into()
        }
        "manifest" => {
            let more = args.take_key("more").is_some();
            let first: u32 = args.take_key("from").unwrap_or("0").parse()?;
            // If the piece is sent in parts: bytes sent before, and bytes sent now.
            let [skip, most] = ["skip", "most"].map(|key| args.take_key(key).map(str::to_owned));
            let skip: usize = skip.as_deref().unwrap_or("0").parse()?;
            let most: Option<usize> = most.map(|text| text.parse()).transpose()?;
            let segment = SegmentId(args.next_pos().ok_or("which manifest_log?")?.parse()?);
            let length = args.take_key("length").unwrap_or("104").to_owned();
            let is_damaged = args.take_key("damaged").is_some();
            let mut segments = Vec::new();
            while let Some(text) = args.next_pos() {
                segments.push(record(text)?);
            }
            let entry = match segments.first() {
                Some(last) if first > 0 => ManifestEntry::Open { segment: last.segment },
                _ => ManifestEntry::Snapshot { segments },
            };
            let bodies = match is_damaged {
                true => Vec::new(),
                false if more || first > 0 => vec![encode(&[entry])],
                false => padded(encode(&[entry]), length.parse()?),
            };
            let mut bodies: Vec<Vec<u8>> = bodies;
            for body in &mut bodies {
                body.drain(..skip);
                body.truncate(most.unwrap_or(body.len()));
            }
            let place = |pieces, bytes: usize| ManifestPosition { pieces, bytes: bytes as u32 };
            let next = match most {
                Some(most) => Some(place(first, skip + most)),
                None => more.then(|| place(first + 1, 0)),
            };
            let replica = (segment, ReplicaEpoch(0));
            LogUpdate::ManifestRead { log, replica, first: place(first, skip), bodies, next }.into()
        }
        "replayed" | "recovered" | "not-recovered" => {
            let epoch = args.take_key("as").and_then(|text| text.strip_prefix('e'));
            let epoch = OwnershipEpoch(epoch.ok_or("as which epoch?")?.parse()?);
            let reason = args.take_key("reason").map(str::to_owned);
            let range = ranges(&mut args)?[0];
            match reason {
                None if command.name == "replayed" => {
                    RecoveryUpdate::Replayed { dead: log, range, epoch }.into()
                }
                None => RecoveryUpdate::Recovered { dead: log, range, epoch }.into(),
                Some(reason) => {
                    RecoveryUpdate::NotRecovered { dead: log, range, epoch, reason }.into()
                }
            }
        }
        "freed" => LogUpdate::LogFreed { log }.into(),
        "damaged" => {
            let ReplicaInfo { segment, epoch, .. } =
                replica(args.next_pos().ok_or("which segment?")?, false)?;
            LogUpdate::Damaged { log, segment, epoch }.into()
        }
        _ => LogUpdate::IsNeeded { log }.into(),
    })
}

/// Returns a manifest piece, padded to a total length by pieces without entries.
fn padded(body: Vec<u8>, length: usize) -> Vec<Vec<u8>> {
    let nothing = encode(&[]);
    let count = (length - body.len()) / nothing.len();
    std::iter::once(body).chain(std::iter::repeat_n(nothing, count)).collect()
}

/// Parses a replica: `5/80` is 80 bytes of segment 5; `5/80-short` may have been truncated.
fn replica(text: &str, is_manifest: bool) -> Result<ReplicaInfo, Failure> {
    let usual = if is_manifest { "104" } else { "100" };
    let (text, may_be_short) =
        text.strip_suffix("-short").map_or((text, false), |text| (text, true));
    let (segment, length) = text.split_once('/').unwrap_or((text, usual));
    let segment = SegmentId(segment.parse()?);
    let (epoch, length) = (ReplicaEpoch(0), length.parse()?);
    Ok(ReplicaInfo { segment, epoch, is_manifest, length, may_be_short })
}

/// Parses a manifest record: `5/open` is open, `5` is closed with 100 bytes.
fn record(text: &str) -> Result<SegmentRecord, Failure> {
    let (segment, is_open) = text.strip_suffix("/open").map_or((text, false), |text| (text, true));
    let content = (!is_open).then_some(SegmentContent { length: 100, crc: 1 });
    Ok(SegmentRecord { segment: SegmentId(segment.parse()?), content })
}

fn about_migration(command: &Command) -> Result<MigrationUpdate, Failure> {
    let mut args = command.consume_args();
    let number = args.next_pos().and_then(|text| text.strip_prefix('m')).ok_or("which one?")?;
    let migration = MigrationId(number.parse()?);
    Ok(match command.name.as_str() {
        "measured" => MigrationUpdate::Measured {
            migration,
            records: args.take_key("records").unwrap_or("10").parse()?,
            bytes: args.take_key("bytes").unwrap_or("1000").parse()?,
        },
        "prepared" => {
            let refused = args.take_key("refused").map(str::to_owned);
            MigrationUpdate::Prepared { migration, refused }
        }
        "unanswered" => MigrationUpdate::FlipUnanswered { migration },
        "flipped" => MigrationUpdate::Flipped { migration },
        "accepted" => MigrationUpdate::Decided { migration, accepted: true },
        "never" => MigrationUpdate::Decided { migration, accepted: false },
        "shrink" => MigrationUpdate::Shrink { migration, remaining: ranges(&mut args)? },
        "progress" => {
            let records = args.next_pos().ok_or("how many?")?.parse()?;
            let progress =
                MigrationProgress { records_total: 10, records, ..MigrationProgress::default() };
            MigrationUpdate::Progress { migration, progress }
        }
        "released" => MigrationUpdate::Released { migration },
        other => return Err(format!("unknown message {other}").into()),
    })
}

/// Parses ranges: `0-99` are slots, `half-0-99` is the lower half of their hashes.
fn ranges(args: &mut goldenscript::ArgumentConsumer<'_>) -> Result<Vec<HashRange>, Failure> {
    let mut ranges = Vec::new();
    while let Some(text) = args.next_pos() {
        let (half, text) = text.strip_prefix("half-").map_or((false, text), |text| (true, text));
        let (first, last) = text.split_once('-').ok_or("a range is first-last")?;
        let range = slots(first.parse()?, last.parse()?);
        let middle = KeyHash(range.first().0 + (range.last().0 - range.first().0) / 2);
        ranges.push(if half { HashRange::new(range.first(), middle) } else { range });
    }
    Ok(ranges)
}

fn server(text: &str) -> Result<ServerId, Failure> {
    Ok(ServerId(text.strip_prefix('s').ok_or("a server is s1")?.parse()?))
}
