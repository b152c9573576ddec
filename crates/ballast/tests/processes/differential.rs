//! The same random commands for Ballast and for a real Valkey. Their replies must be identical,
//! byte for byte, except for the [`DIFFERENCES`].
//!
//! `BALLAST_TEST_AGAINST=HOST:PORT [BALLAST_TEST_COMMANDS=200000] [BALLAST_TEST_SEED=1]`
//! `cargo test -p ballast --test processes replies_to_random -- --nocapture`
//!
//! `BALLAST_TEST_PACKED_BYTES=64` lowers `max-packed-bytes`, so that short values have pages.
//!
//! Commands are generated from [`GRAMMAR`]. Some are then spoiled: an argument is removed, doubled
//! or replaced. No key expires during the test: expiries are far in the future, or in the past.

mod grammar;

use crate::client::Client;
use crate::servers::{MODEST, Process};
use fastrand::Rng;
use grammar::Grammar;
use resp::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use types::limits::VALUE_BYTES_MAX;

/// Requests in a pipeline.
const BATCH: usize = 24;
/// Differences reported before the test ends.
const FAULTS_MAX: usize = 40;

/// An intended difference of Ballast.
struct Difference {
    /// The command, in upper case, or several, separated by spaces.
    command: &'static str,
    allows: fn(&Exchange) -> bool,
    #[allow(dead_code, reason = "for people")]
    why: &'static str,
}

/// A request and both replies.
struct Exchange {
    request: Vec<Vec<u8>>,
    ours: (Value, Vec<u8>),
    theirs: (Value, Vec<u8>),
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        command: "TTL",
        allows: nearly_equal,
        why: "the two are asked one after the other",
    },
    Difference { command: "PTTL", allows: nearly_equal, why: "as TTL" },
    Difference { command: "EXPIRETIME", allows: nearly_equal, why: "as TTL" },
    Difference { command: "PEXPIRETIME", allows: nearly_equal, why: "as TTL" },
    Difference { command: "EXPIRE", allows: is_close_race, why: "as TTL" },
    Difference { command: "PEXPIRE", allows: is_close_race, why: "as TTL" },
    Difference {
        command: "HEXPIRETIME HPEXPIRETIME HPTTL HTTL",
        allows: are_nearly_equal,
        why: "as TTL",
    },
    Difference { command: "HEXPIRE HPEXPIRE", allows: is_close_race, why: "as TTL" },
    Difference {
        command: "KEYS",
        allows: same_items,
        why: "keys come in the order of their hashes",
    },
    Difference {
        command: "SCAN",
        allows: |exchange| {
            same_items(exchange) || starts(&exchange.ours.1, b"-ERR unknown type name")
        },
        why: "as KEYS, and Valkey's error ends at a zero byte",
    },
    Difference { command: "RANDOMKEY", allows: same_kind, why: "it is random" },
    Difference {
        command: "DBSIZE",
        allows: same_kind,
        why: "what is written with an expiry in the past is counted there until it is reclaimed",
    },
    Difference {
        command: "OBJECT",
        allows: same_kind,
        why: "values have no encoding and no access times: Redis's most likely answer is given",
    },
    Difference {
        command: "MEMORY",
        allows: |exchange| same_kind(exchange) || exchange.ours.0 == Value::Null,
        why: "records take other amounts of memory, texts are our own, and what has expired but \
              is not yet reclaimed is seen there",
    },
    Difference { command: "DUMP", allows: same_kind, why: "values are not compressed" },
    Difference { command: "MOVE", allows: is_refused, why: "not supported" },
    Difference { command: "SWAPDB", allows: is_refused, why: "not supported" },
    Difference {
        command: "RESTORE",
        allows: |exchange| starts(&exchange.ours.1, b"-ERR values of this type cannot"),
        why: "there are no other types",
    },
    Difference {
        command: "HGETALL",
        allows: same_items,
        why: "elements come in the order in which they were added, large values there in any order",
    },
    Difference { command: "HKEYS", allows: same_items, why: "as HGETALL" },
    Difference { command: "HVALS", allows: same_items, why: "as HGETALL" },
    Difference {
        command: "HSCAN",
        allows: has_all_items,
        why: "as HGETALL, and large values there take several steps",
    },
    Difference { command: "SSCAN", allows: has_all_items, why: "as HSCAN" },
    Difference {
        command: "HSCAN SSCAN ZSCAN",
        allows: |exchange| packed_bytes().is_some() && same_kind(exchange),
        why: "values with pages take several steps as well, and cursors mean other places",
    },
    Difference { command: "SMEMBERS", allows: same_items, why: "as HGETALL" },
    Difference { command: "SPOP", allows: same_items, why: "as HGETALL" },
    Difference { command: "SINTER", allows: same_items, why: "as HGETALL" },
    Difference { command: "SUNION", allows: same_items, why: "as HGETALL" },
    Difference { command: "SDIFF", allows: same_items, why: "as HGETALL" },
    Difference {
        command: "GEORADIUS GEORADIUS_RO GEORADIUSBYMEMBER GEORADIUSBYMEMBER_RO GEOSEARCH",
        allows: same_items,
        why: "without a sort option, results come in the order of their scores",
    },
    Difference {
        command: "SORT SORT_RO",
        allows: |exchange| has_word(exchange, b"BY") && same_length(exchange),
        why: "elements of equal weight, and those of a set that is not sorted, come in any order",
    },
    Difference { command: "HRANDFIELD", allows: same_length, why: "it is random" },
    Difference { command: "SRANDMEMBER", allows: same_length, why: "it is random" },
    Difference { command: "ZRANDMEMBER", allows: same_length, why: "it is random" },
    Difference {
        command: "ZSCAN",
        allows: has_all_members,
        why: "as HSCAN, and large values there show scores with 17 digits",
    },
    Difference {
        command: "XPENDING XINFO",
        allows: same_but_times,
        why: "the two are asked one after the other, and have blocks of other sizes",
    },
    Difference {
        command: "ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZREVRANGEBYLEX ZREVRANGEBYSCORE",
        allows: skips_negatively,
        why: "large values there do not skip all members if LIMIT has a negative offset",
    },
    Difference {
        command: "ZADD ZDIFF ZINCRBY ZINTER ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANGE ZRANGEBYSCORE \
                  ZRANK ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCORE ZUNION",
        allows: same_scores,
        why: "some doubles are written there with more digits than needed, and large values there \
              can have the score -0",
    },
];

fn nearly_equal(exchange: &Exchange) -> bool {
    are_near(&exchange.ours.0, &exchange.theirs.0)
}

/// Returns whether each time in one array is near that in the other.
fn are_nearly_equal(exchange: &Exchange) -> bool {
    match (&exchange.ours.0, &exchange.theirs.0) {
        (Value::Array(ours), Value::Array(theirs)) => {
            let mut pairs = ours.iter().zip(theirs);
            let are_all = pairs.all(|(ours, theirs)| ours == theirs || are_near(ours, theirs));
            ours.len() == theirs.len() && are_all
        }
        _ => false,
    }
}

fn are_near(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Integer(ours), Value::Integer(theirs)) => {
            *ours > 0 && *theirs > 0 && ours.abs_diff(*theirs) < 3_000
        }
        _ => false,
    }
}

/// Returns whether an expiry was compared with one that may be equal to the millisecond.
fn is_close_race(exchange: &Exchange) -> bool {
    let compares =
        |word: &Vec<u8>| word.eq_ignore_ascii_case(b"GT") || word.eq_ignore_ascii_case(b"LT");
    exchange.request.iter().any(compares) && same_kind(exchange)
}

fn same_items(exchange: &Exchange) -> bool {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Array(items) => {
                let mut items: Vec<Value> = items.iter().map(sorted).collect();
                items.sort_by_key(|item| format!("{item:?}"));
                Value::Array(items)
            }
            Value::Set(items) => match sorted(&Value::Array(items.clone())) {
                Value::Array(items) => Value::Set(items),
                other => other,
            },
            Value::Map(pairs) => {
                let mut pairs = pairs.clone();
                pairs.sort_by_key(|pair| format!("{pair:?}"));
                Value::Map(pairs)
            }
            other => other.clone(),
        }
    }
    sorted(&exchange.ours.0) == sorted(&exchange.theirs.0)
}

fn same_kind(exchange: &Exchange) -> bool {
    std::mem::discriminant(&exchange.ours.0) == std::mem::discriminant(&exchange.theirs.0)
}

/// Returns whether the replies are of one kind and, if they are arrays, as long.
fn same_length(exchange: &Exchange) -> bool {
    match (&exchange.ours.0, &exchange.theirs.0) {
        (Value::Array(ours), Value::Array(theirs)) => ours.len() == theirs.len(),
        _ => same_kind(exchange),
    }
}

fn has_word(exchange: &Exchange, word: &[u8]) -> bool {
    exchange.request.iter().any(|argument| argument.eq_ignore_ascii_case(word))
}

/// Returns whether a scan has returned, in one step, all that the other one has returned in its
/// first step.
fn has_all_items(exchange: &Exchange) -> bool {
    let items = |value: &Value| match value {
        Value::Array(parts) => match &parts[..] {
            [_, Value::Array(items)] => Some(items.clone()),
            _ => None,
        },
        _ => None,
    };
    match (items(&exchange.ours.0), items(&exchange.theirs.0)) {
        (Some(ours), Some(theirs)) => theirs.iter().all(|item| ours.contains(item)),
        _ => false,
    }
}

/// Returns whether a scan of a sorted set has returned all members that the other one has returned
/// in its first step.
fn has_all_members(exchange: &Exchange) -> bool {
    let members = |value: &Value| match value {
        Value::Array(parts) => match &parts[..] {
            [_, Value::Array(items)] => {
                let is_names_only =
                    exchange.request.iter().any(|word| word.eq_ignore_ascii_case(b"NOSCORES"));
                let step = if is_names_only { 1 } else { 2 };
                Some(items.iter().step_by(step).cloned().collect::<Vec<_>>())
            }
            _ => None,
        },
        _ => None,
    };
    match (members(&exchange.ours.0), members(&exchange.theirs.0)) {
        (Some(ours), Some(theirs)) => theirs.iter().all(|member| ours.contains(member)),
        _ => false,
    }
}

/// Returns whether `LIMIT` has a negative offset, and both replies are arrays.
fn skips_negatively(exchange: &Exchange) -> bool {
    let words = exchange.request.windows(2);
    let is_negative =
        |pair: &[Vec<u8>]| pair[0].eq_ignore_ascii_case(b"LIMIT") && pair[1].starts_with(b"-");
    let mut limits = words.filter(|pair| is_negative(pair));
    limits.next().is_some() && matches!(exchange.ours.0, Value::Array(_)) && same_kind(exchange)
}

/// Returns whether the replies are the same but for scores that are the same numbers.
fn same_scores(exchange: &Exchange) -> bool {
    fn is_same_score(ours: &[u8], theirs: &[u8]) -> bool {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<f64>().ok();
        // 17 digits, or more with zeros behind them.
        let is_known = theirs.len() >= 17 || theirs == b"-0";
        is_known && number(ours).is_some() && number(ours) == number(theirs)
    }
    fn is_same(ours: &Value, theirs: &Value) -> bool {
        match (ours, theirs) {
            (Value::Array(ours), Value::Array(theirs)) => {
                let mut pairs = ours.iter().zip(theirs);
                ours.len() == theirs.len() && pairs.all(|(ours, theirs)| is_same(ours, theirs))
            }
            (Value::Bulk(ours), Value::Bulk(theirs)) => {
                ours == theirs || is_same_score(ours, theirs)
            }
            (Value::Double(ours), Value::Double(theirs)) => ours == theirs,
            (ours, theirs) => ours == theirs,
        }
    }
    is_same(&exchange.ours.0, &exchange.theirs.0)
}

/// Returns whether the replies are the same but for times and numbers of blocks.
fn same_but_times(exchange: &Exchange) -> bool {
    const FREE: [&[u8]; 6] = [
        b"idle",
        b"inactive",
        b"seen-time",
        b"active-time",
        b"radix-tree-keys",
        b"radix-tree-nodes",
    ];
    fn is_free(name: &Value) -> bool {
        matches!(name, Value::Bulk(name) if FREE.contains(&&name[..]))
    }
    fn is_near(ours: &Value, theirs: &Value) -> bool {
        match (ours, theirs) {
            (Value::Integer(ours), Value::Integer(theirs)) => {
                ours.abs_diff(*theirs) < 60_000 && (*ours < 0) == (*theirs < 0)
            }
            _ => false,
        }
    }
    fn are_same(ours: &[Value], theirs: &[Value]) -> bool {
        // The third part of a pending entry, and the second without a consumer, is a time.
        let time = match ours {
            [Value::Bulk(_), Value::Bulk(_), Value::Integer(_), Value::Integer(_)] => Some(2),
            [Value::Bulk(_), Value::Integer(_), Value::Integer(_)] => Some(1),
            _ => None,
        };
        let is_same_at = |at: usize| {
            let is_free = Some(at) == time || at > 0 && is_free(&ours[at - 1]);
            is_free && is_near(&ours[at], &theirs[at]) || is_same(&ours[at], &theirs[at])
        };
        ours.len() == theirs.len() && (0..ours.len()).all(is_same_at)
    }
    fn is_same(ours: &Value, theirs: &Value) -> bool {
        match (ours, theirs) {
            (Value::Array(ours), Value::Array(theirs)) => are_same(ours, theirs),
            (Value::Map(ours), Value::Map(theirs)) => {
                let flat = |pairs: &[(Value, Value)]| -> Vec<Value> {
                    pairs.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect()
                };
                are_same(&flat(ours), &flat(theirs))
            }
            (ours, theirs) => ours == theirs,
        }
    }
    is_same(&exchange.ours.0, &exchange.theirs.0)
}

/// Returns the longest packed value that the test asks for, in bytes.
fn packed_bytes() -> Option<String> {
    std::env::var("BALLAST_TEST_PACKED_BYTES").ok()
}

/// Returns whether Ballast has refused to combine a set with pages. Then the keys may differ.
fn is_set_with_pages(exchange: &Exchange) -> bool {
    starts(&exchange.ours.1, b"-ERR a set that is divided into pages")
}

fn is_refused(exchange: &Exchange) -> bool {
    matches!(exchange.ours.0, Value::Error(_))
}

fn starts(reply: &[u8], with: &[u8]) -> bool {
    reply.starts_with(with)
}

#[test]
fn replies_to_random_commands_are_those_of_valkey() {
    let Ok(rival) = std::env::var("BALLAST_TEST_AGAINST") else {
        println!("skipped: BALLAST_TEST_AGAINST names no Valkey to compare with");
        return;
    };
    let rival: SocketAddr = rival.parse().expect("HOST:PORT");
    let number = |name: &str, default: u64| -> u64 {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let commands = number("BALLAST_TEST_COMMANDS", 20_000);
    let seed = number("BALLAST_TEST_SEED", 1);
    let server = Process::alone(&MODEST);
    let mut run = Run::start(seed, server.address, rival);
    for protocol in ["2", "3"] {
        run.begin_again(protocol);
        let mut sent = 0;
        while sent < commands / 2 && run.faults.len() < FAULTS_MAX {
            sent += run.batch() as u64;
        }
    }
    let counts: Vec<String> =
        run.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("seed {seed}, commands by name: {}", counts.join(", "));
    assert!(run.faults.is_empty(), "{}", run.faults.join("\n"));
}

/// One comparison.
struct Run {
    random: Rng,
    grammar: Grammar,
    ours: Client,
    theirs: Client,
    protocol: &'static str,
    counts: BTreeMap<String, u64>,
    faults: Vec<String>,
}

impl Run {
    fn start(seed: u64, ours: SocketAddr, theirs: SocketAddr) -> Run {
        let (mut ours, mut theirs) = (Client::connect(ours), Client::connect(theirs));
        // With the same limit, both servers refuse the same requests.
        let limit = VALUE_BYTES_MAX.to_string();
        let set = theirs.ask(&["CONFIG", "SET", "proto-max-bulk-len", &limit]);
        assert_eq!(set.text(), "OK");
        if let Some(bytes) = packed_bytes() {
            assert_eq!(ours.ask(&["CONFIG", "SET", "max-packed-bytes", &bytes]).text(), "OK");
        }
        Run {
            random: Rng::with_seed(seed),
            grammar: Grammar::new(),
            ours,
            theirs,
            protocol: "2",
            counts: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    /// Empties both servers and selects the protocol.
    fn begin_again(&mut self, protocol: &'static str) {
        self.protocol = protocol;
        for client in [&mut self.ours, &mut self.theirs] {
            for request in [&["HELLO", protocol][..], &["FLUSHALL"], &["SELECT", "0"]] {
                client.request(request);
                client.raw_answer().expect("a connection stays open");
            }
        }
    }

    /// Sends a batch to both servers and compares the replies. Returns the number of commands.
    fn batch(&mut self) -> usize {
        let requests: Vec<Vec<Vec<u8>>> =
            (0..BATCH).map(|_| self.grammar.request(&mut self.random)).collect();
        for client in [&mut self.ours, &mut self.theirs] {
            requests.iter().for_each(|request| client.request(request));
        }
        let (before, mut may_differ) = (self.faults.len(), false);
        for request in requests {
            let ours = self.ours.answer_and_bytes().expect("Ballast answers");
            let theirs = self.theirs.answer_and_bytes().expect("Valkey answers");
            let exchange = Exchange { request, ours, theirs };
            may_differ |= is_set_with_pages(&exchange);
            if !may_differ {
                self.compare(exchange);
            }
        }
        if self.faults.len() > before || may_differ {
            // Start over, so that consequences of one difference are not reported again.
            self.begin_again(self.protocol);
        }
        BATCH
    }

    fn compare(&mut self, exchange: Exchange) {
        let name = String::from_utf8_lossy(&exchange.request[0]).to_uppercase();
        *self.counts.entry(name.clone()).or_default() += 1;
        // A dump that only one server makes would give only one of them a value. Both restore dumps of
        // both.
        let dumps = (&exchange.ours.0, &exchange.theirs.0);
        if let (b"DUMP", (Value::Bulk(ours), Value::Bulk(theirs))) = (name.as_bytes(), dumps) {
            let dump = if self.random.bool() { ours } else { theirs };
            self.grammar.remember(&mut self.random, dump);
        }
        let is_known = |known: &Difference| {
            known.command.split(' ').any(|command| command == name) && (known.allows)(&exchange)
        };
        let allowed = || DIFFERENCES.iter().any(is_known);
        if exchange.ours.1 != exchange.theirs.1 && !allowed() {
            self.faults.push(exchange.to_string());
        }
    }
}

impl std::fmt::Display for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |bytes: &[u8]| {
            let shown = &bytes[..bytes.len().min(200)];
            format!("{}{}", shown.escape_ascii(), if bytes.len() > 200 { "..." } else { "" })
        };
        let words: Vec<String> = self.request.iter().map(|word| short(word)).collect();
        write!(
            f,
            "{}\n  ours   {}\n  theirs {}",
            words.join(" "),
            short(&self.ours.1),
            short(&self.theirs.1)
        )
    }
}
