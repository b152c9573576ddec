//! The generator against small servers that are correct, faulty in one way each, or redirect
//! clients: each fault must be counted as exactly that fault.

use bench::control::Control;
use bench::pace::LoadPace;
use bench::recorder::Findings;
use bench::records::RecordSet;
use bench::run::{Dataset, RunPlan, Wiring, run};
use bench::slot_map::SlotSet;
use bench::workload::RunWorkload;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use types::slot_of;

const RECORDS: u32 = 500;

/// Fault of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Nothing,
    /// Acknowledges one write of a hundred without executing it.
    LosesWrites,
    /// Answers one read of a hundred with the value before the last write.
    ReadsStale,
    /// Answers one read of a hundred with another key's value.
    MixesKeys,
    /// Refuses one command of a hundred.
    Refuses,
    /// Redirects every command of the lower half of the slots to this server for good.
    Moved(SocketAddr),
    /// Redirects every command of the lower half of the slots there once.
    Asks(SocketAddr),
    /// Serves the lower half of the slots and redirects all others, until it dies in the middle
    /// of a command.
    Dies(&'static Inheritance),
    /// Serves the upper half of the slots, and later the lower half as well.
    Inherits(&'static Inheritance),
}

/// A server that dies, and its successor, which later serves its slots.
#[derive(Debug, Default)]
struct Inheritance {
    /// Addresses of the dying server and its successor.
    servers: OnceLock<[SocketAddr; 2]>,
    is_dead: AtomicBool,
    /// Number of requests to the successor for slots that it does not serve yet.
    asked: AtomicU32,
}

impl PartialEq for Inheritance {
    fn eq(&self, other: &Inheritance) -> bool {
        self.servers == other.servers
    }
}

impl Eq for Inheritance {}

/// Number of commands that a server executes before it dies.
const LIFE: u64 = 700;
/// Number of times that the successor refuses the dead server's slots.
const REFUSALS: u32 = 50;

impl Inheritance {
    fn is_over(&self) -> bool {
        self.asked.load(Ordering::Relaxed) >= REFUSALS
    }

    /// Returns the error with which one of the two answers; `None` if it executes the command.
    fn refusal(&self, is_heir: bool, slot: u16) -> Option<String> {
        let [dying, heir] = self.servers.get().unwrap();
        match (is_heir, slot < 8_192) {
            (false, true) | (true, false) => None,
            (false, false) => Some(format!("-MOVED {slot} {heir}\r\n")),
            (true, true) if self.is_over() => None,
            (true, true) if self.is_dead.load(Ordering::Relaxed) => {
                let is_odd = self.asked.fetch_add(1, Ordering::Relaxed) % 2 == 1;
                let words = ["-CLUSTERDOWN Hash slot not served", "-TRYAGAIN Please"];
                Some(format!("{}\r\n", words[usize::from(is_odd)]))
            }
            (true, true) => Some(format!("-MOVED {slot} {dying}\r\n")),
        }
    }

    /// Returns the successor's reply to `CLUSTER SLOTS`: it does not notice the death at once.
    fn slots(&self) -> String {
        let [dying, heir] = self.servers.get().unwrap();
        let is_dead = self.is_dead.load(Ordering::Relaxed);
        let lower = if is_dead { heir } else { dying };
        let range = |(first, last, server): (u16, u16, &SocketAddr)| {
            let (host, port) = (server.ip().to_string(), server.port());
            let length = host.len();
            format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n${length}\r\n{host}\r\n:{port}\r\n")
        };
        format!("*2\r\n{}{}", range((0, 8_191, lower)), range((8_192, 16_383, heir)))
    }
}

#[derive(Default)]
struct Data {
    values: HashMap<Vec<u8>, Vec<u8>>,
    /// Values before the last writes.
    earlier: HashMap<Vec<u8>, Vec<u8>>,
    commands: u64,
}

/// Starts a server; its threads end with the test's process.
fn serve(fault: Fault, data: &Arc<Mutex<Data>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let data = data.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let data = data.clone();
            if is_dead(fault) {
                return;
            }
            std::thread::spawn(move || {
                let client = client.unwrap();
                converse(&client, fault, &data);
                if is_dead(fault) {
                    // The connection wakes the accepting thread, which then sees that the server
                    // is dead.
                    let _ = TcpStream::connect(address);
                }
            });
        }
    });
    address
}

fn is_dead(fault: Fault) -> bool {
    matches!(fault, Fault::Dies(inheritance) if inheritance.is_dead.load(Ordering::Relaxed))
}

fn converse(client: &TcpStream, fault: Fault, data: &Mutex<Data>) {
    let mut reader = BufReader::new(client);
    let mut output = client;
    let mut is_asking = false;
    while let Some(words) = request(&mut reader) {
        if let Fault::Dies(inheritance) = fault
            && data.lock().unwrap().commands >= LIFE
        {
            inheritance.is_dead.store(true, Ordering::Relaxed);
        }
        if is_dead(fault) {
            return;
        }
        let reply = match &words[0][..] {
            b"ASKING" => b"+OK\r\n".to_vec(),
            b"CLUSTER" if matches!(fault, Fault::Dies(_) | Fault::Inherits(_)) => {
                let (Fault::Dies(inheritance) | Fault::Inherits(inheritance)) = fault else {
                    unreachable!("it is one of them")
                };
                inheritance.slots().into_bytes()
            }
            b"CLUSTER" => b"-ERR This instance has cluster support disabled\r\n".to_vec(),
            _ => match (redirect(fault, &words[1]), is_asking) {
                (Some(redirect), false) => redirect,
                _ => execute(&words, fault, &mut data.lock().unwrap()),
            },
        };
        is_asking = words[0] == b"ASKING";
        if output.write_all(&reply).is_err() {
            return;
        }
    }
}

fn redirect(fault: Fault, key: &[u8]) -> Option<Vec<u8>> {
    let slot = slot_of(key).0;
    let (word, to) = match fault {
        Fault::Moved(to) => ("MOVED", to),
        Fault::Asks(to) => ("ASK", to),
        Fault::Dies(inheritance) => {
            return inheritance.refusal(false, slot).map(String::into_bytes);
        }
        Fault::Inherits(inheritance) => {
            return inheritance.refusal(true, slot).map(String::into_bytes);
        }
        Fault::Nothing
        | Fault::LosesWrites
        | Fault::ReadsStale
        | Fault::MixesKeys
        | Fault::Refuses => return None,
    };
    (slot < 8_192).then(|| format!("-{word} {slot} {to}\r\n").into_bytes())
}

fn execute(words: &[Vec<u8>], fault: Fault, data: &mut Data) -> Vec<u8> {
    data.commands += 1;
    let is_time = data.commands % 100 == 99;
    let key = &words[1];
    match (&words[0][..], fault) {
        (_, Fault::Refuses) if is_time => b"-ERR not today\r\n".to_vec(),
        (b"SET", Fault::LosesWrites) if is_time => b"+OK\r\n".to_vec(),
        (b"SET", _) => {
            let before = data.values.insert(key.clone(), words[2].clone());
            data.earlier.insert(key.clone(), before.unwrap_or_default());
            b"+OK\r\n".to_vec()
        }
        (_, Fault::ReadsStale) if is_time => bulk(data.earlier.get(key)),
        (_, Fault::MixesKeys) if is_time => {
            bulk(data.values.iter().find(|(other, _)| *other != key).map(|(_, value)| value))
        }
        _ => bulk(data.values.get(key)),
    }
}

fn bulk(value: Option<&Vec<u8>>) -> Vec<u8> {
    match value {
        None => b"$-1\r\n".to_vec(),
        // An empty value means that there was none.
        Some(value) if value.is_empty() => b"$-1\r\n".to_vec(),
        Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
    }
}

/// Returns the words of the next request; `None` at the end.
fn request(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let count = number(reader)?;
    (0..count)
        .map(|_| {
            let length = number(reader)?;
            let mut word = vec![0; length + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(length);
            Some(word)
        })
        .collect()
}

fn number(reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

/// Writes every record twice, then reads every one. Returns the findings of both passes.
fn play(server: SocketAddr) -> (Findings, Findings) {
    play_with(server, Duration::ZERO)
}

fn play_with(server: SocketAddr, patience: Duration) -> (Findings, Findings) {
    let routes = Control::connect(server).unwrap().routes().unwrap();
    let mut dataset = Dataset::new(RecordSet::new(RECORDS, 30, 100).unwrap(), 2);
    let mut pass = |workload| {
        let plan = RunPlan {
            workload,
            pace: LoadPace::Closed { clients: 8 },
            duration: None,
            warm_up: Duration::ZERO,
            wiring: Wiring { connections: 2, tick: Duration::ZERO, cost: Duration::ZERO },
            patience,
            watched: SlotSet::default(),
            seed: 7,
        };
        let untouched = Dataset::new(RecordSet::new(1, 30, 100).unwrap(), 1);
        let before = std::mem::replace(&mut dataset, untouched);
        let (after, timeline) = run(&plan, before, &routes, |_| ()).unwrap();
        dataset = after;
        timeline.recording.findings
    };
    let mut written = pass(RunWorkload::Load);
    written.add(&pass(RunWorkload::Load));
    (written, pass(RunWorkload::Verify))
}

/// Does the same as [`play`], with a server that dies in the middle.
fn play_inheritance(patience: Duration) -> (Findings, Findings) {
    let inheritance: &'static Inheritance = Box::leak(Box::default());
    let data = Arc::default();
    let dying = serve(Fault::Dies(inheritance), &data);
    let heir = serve(Fault::Inherits(inheritance), &data);
    inheritance.servers.set([dying, heir]).unwrap();
    play_with(heir, patience)
}

fn findings(fault: Fault) -> (Findings, Findings) {
    play(serve(fault, &Arc::default()))
}

#[test]
fn a_server_that_is_right_is_found_to_be_right() {
    let (written, read) = findings(Fault::Nothing);
    assert!(written.is_clean() && read.is_clean(), "{written:?} {read:?}");
    assert_eq!((written.completed, read.completed), (1_000, 500));
}

#[test]
fn lost_writes_are_found_by_reading_everything_back() {
    let (written, read) = findings(Fault::LosesWrites);
    assert!(written.is_clean(), "{written:?}");
    // Each pass loses five writes. Those of the first are overwritten by the second or lost
    // again.
    assert_eq!((read.stale + read.missing, read.wrong, read.errors_total()), (5, 0, 0));
}

#[test]
fn stale_reads_are_found_and_nothing_else() {
    let (_, read) = findings(Fault::ReadsStale);
    assert_eq!((read.stale, read.missing, read.wrong, read.errors_total()), (5, 0, 0, 0));
}

#[test]
fn values_of_other_keys_are_wrong() {
    let (_, read) = findings(Fault::MixesKeys);
    assert_eq!((read.stale, read.missing, read.wrong, read.errors_total()), (0, 0, 5, 0));
}

#[test]
fn refusals_are_counted_by_their_text_and_refused_writes_are_not_lost() {
    let (written, read) = findings(Fault::Refuses);
    assert_eq!(written.errors["ERR not today"], 10);
    assert_eq!((read.stale, read.missing, read.wrong, read.errors_total()), (0, 0, 0, 5));
}

#[test]
fn redirects_of_both_kinds_are_followed_and_are_no_errors() {
    let data = Arc::default();
    let owner = serve(Fault::Nothing, &data);
    let (written, read) = play(serve(Fault::Moved(owner), &data));
    assert!(written.is_clean() && read.is_clean(), "{written:?} {read:?}");
    assert!(written.moved > 0 && written.asked == 0, "{written:?}");
    let (written, read) = play(serve(Fault::Asks(owner), &data));
    assert!(written.is_clean() && read.is_clean(), "{written:?} {read:?}");
    // An ASK does not update the slot map: half of the requests get one each time.
    assert!(written.asked > 400 && written.moved == 0, "{written:?}");
}

#[test]
fn patient_clients_wait_until_somebody_serves_what_a_dead_server_held() {
    let (written, read) = play_inheritance(Duration::from_secs(10));
    assert_eq!(written.errors_total(), written.unanswered(), "{written:?}");
    assert!(written.unanswered() <= 8, "each client has one write under way: {written:?}");
    assert_eq!(written.completed + written.unanswered(), 1_000);
    assert!(written.retried >= u64::from(REFUSALS), "{written:?}");
    assert!(read.is_clean(), "{read:?}");
}

#[test]
fn clients_without_patience_count_what_a_dead_server_does_not_answer() {
    let (written, _) = play_inheritance(Duration::ZERO);
    assert!(written.errors_total() > written.unanswered(), "{written:?}");
    assert_eq!(written.completed + written.errors_total(), 1_000);
    assert_eq!(written.retried, 0);
}
