//! Sorted sets that are divided into pages, at real processes: changed and read in order while they
//! move and while servers are killed, and read after a restart.

use crate::client::{Answer, Client};
use crate::once::Repeater;
use crate::paged_clients::{
    PagedClient, RestartedServer, change_while_moving, change_while_owners_die,
};
use crate::servers::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Members of a sorted set when the test begins: about 2,500 pages.
const MEMBERS: usize = 20_000;

/// Members that one command adds when the set is filled.
const MEMBERS_AT_ONCE: usize = 100;

/// Number of different scores.
const SCORES: i64 = 3_000;

/// A client with one sorted set.
struct SortedSetClient {
    repeater: Repeater,
    random: fastrand::Rng,
    /// Set if changes are exactly-once requests, which are repeated.
    once: bool,
    key: String,
    scores: BTreeMap<String, i64>,
    order: BTreeSet<(i64, String)>,
}

impl SortedSetClient {
    fn new(addresses: &[SocketAddr], seed: u64, once: bool) -> SortedSetClient {
        SortedSetClient {
            repeater: Repeater::new(addresses, seed),
            random: fastrand::Rng::with_seed(seed),
            once,
            key: format!("sorted:{seed}"),
            scores: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    fn words(&self, name: &str, words: &[&str]) -> Vec<String> {
        let all = [name, &self.key].into_iter().chain(words.iter().copied());
        all.map(str::to_owned).collect()
    }

    fn read(&mut self, name: &str, words: &[&str]) -> Answer {
        let words = self.words(name, words);
        self.repeater.repeat(&words, false)
    }

    fn change(&mut self, name: &str, words: &[&str]) -> Answer {
        let words = self.words(name, words);
        self.repeater.change(&words, self.once)
    }

    /// Sets the score of a member in the model. Returns the one before.
    fn set(&mut self, member: &str, score: i64) -> Option<i64> {
        let before = self.scores.insert(member.to_owned(), score);
        if let Some(old) = before {
            self.order.remove(&(old, member.to_owned()));
        }
        self.order.insert((score, member.to_owned()));
        before
    }

    fn remove(&mut self, member: &str) -> Option<i64> {
        let before = self.scores.remove(member)?;
        self.order.remove(&(before, member.to_owned()));
        Some(before)
    }

    /// Executes a command that changes members.
    fn step_changing(&mut self) {
        let member = format!("m{}", self.random.usize(..MEMBERS + MEMBERS / 8));
        let score = self.random.i64(0..SCORES);
        let text = score.to_string();
        match self.random.u8(..8) {
            0..3 => {
                let is_new = self.change("ZADD", &[&text, &member]).number();
                assert_eq!(is_new, i64::from(self.set(&member, score).is_none()), "{member}");
            }
            3 | 4 => {
                let sum = self.change("ZINCRBY", &[&text, &member]).text();
                let expected = self.scores.get(&member).copied().unwrap_or(0) + score;
                assert_eq!(sum, expected.to_string(), "{member}");
                self.set(&member, expected);
            }
            5 | 6 => {
                let removed = self.change("ZREM", &[&member]).number();
                assert_eq!(removed, i64::from(self.remove(&member).is_some()), "{member}");
            }
            _ => {
                let popped = self.change("ZPOPMIN", &["3"]).items();
                let popped: Vec<String> = popped.iter().map(Answer::text).collect();
                let lowest: Vec<_> = self.order.iter().take(3).cloned().collect();
                let expected: Vec<String> =
                    lowest.iter().flat_map(|(score, it)| [it.clone(), score.to_string()]).collect();
                assert_eq!(popped, expected);
                for (_, member) in &lowest {
                    self.remove(member);
                }
            }
        }
    }

    /// Executes a command that needs the order.
    fn step_reading(&mut self) {
        match self.random.u8(..3) {
            0 => {
                let member = format!("m{}", self.random.usize(..MEMBERS));
                let score = self.scores.get(&member).copied();
                let rank = score.map(|score| self.order.range(..(score, member.clone())).count());
                let found = self.read("ZRANK", &[&member]);
                match rank {
                    Some(rank) => assert_eq!(found.number(), rank as i64, "{member}"),
                    None => assert_eq!(found.0, resp::Value::Null, "{member}"),
                }
            }
            1 => {
                let first = self.random.usize(..self.order.len());
                let expected: Vec<&String> =
                    self.order.iter().skip(first).take(10).map(|(_, member)| member).collect();
                let expected: Vec<String> = expected.into_iter().cloned().collect();
                let range = [first, first + 9].map(|rank| rank.to_string());
                let found = self.read("ZRANGE", &[&range[0], &range[1]]).items();
                assert_eq!(found.iter().map(Answer::text).collect::<Vec<_>>(), expected);
            }
            _ => {
                let low = self.random.i64(0..SCORES);
                let range = (low, String::new())..(low + 5, String::new());
                let expected = self.order.range(range).count();
                let ends = [low.to_string(), format!("({}", low + 5)];
                let found = self.read("ZCOUNT", &[&ends[0], &ends[1]]).number();
                assert_eq!(found, expected as i64, "{low}");
            }
        }
    }
}

impl PagedClient for SortedSetClient {
    fn fill(&mut self) {
        let numbers: Vec<usize> = (0..MEMBERS).collect();
        for some in numbers.chunks(MEMBERS_AT_ONCE) {
            let mut words = Vec::new();
            for number in some {
                let (score, member) = (self.random.i64(0..SCORES), format!("m{number}"));
                self.set(&member, score);
                words.extend([score.to_string(), member]);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.change("ZADD", &words);
        }
    }

    fn step(&mut self) {
        if self.order.len() < MEMBERS / 2 {
            self.fill();
        }
        match self.random.bool() {
            true => self.step_changing(),
            false => self.step_reading(),
        }
    }

    fn check(&mut self) {
        assert_eq!(self.read("ZCARD", &[]).number(), self.order.len() as i64);
        let all = self.read("ZRANGE", &["0", "-1", "WITHSCORES"]).items();
        let all: Vec<String> = all.iter().map(Answer::text).collect();
        let (pairs, _) = all.as_chunks::<2>();
        let expected = self.order.iter().map(|(score, member)| [member.clone(), score.to_string()]);
        assert!(pairs.iter().cloned().eq(expected), "the set has other members than were written");
    }

    fn repeater(&mut self) -> &mut Repeater {
        &mut self.repeater
    }
}

/// Returns two clients.
fn clients(addresses: &[SocketAddr], once: bool) -> Vec<SortedSetClient> {
    (1..=2).map(|seed| SortedSetClient::new(addresses, seed, once)).collect()
}

#[test]
fn large_sorted_sets_are_changed_while_they_move() {
    change_while_moving(|addresses| clients(addresses, false));
}

#[test]
fn large_sorted_sets_survive_the_death_of_their_owners() {
    change_while_owners_die(|addresses| clients(addresses, true));
}

#[test]
fn a_restarted_server_has_its_large_sorted_sets_and_forgets_deleted_ones() {
    let new = |addresses: &[SocketAddr], seed| SortedSetClient::new(addresses, seed, false);
    let mut server = RestartedServer::after(new, |other| {
        assert_eq!(other.change("ZREMRANGEBYRANK", &["0", "-1"]).number(), MEMBERS as i64);
        (other.scores, other.order) = (BTreeMap::new(), BTreeSet::new());
    });
    server.wait_for_sweep();
    (0..500).for_each(|_| server.one.step());
    server.one.check();
}

/// Members of each client of one set.
const OWN_MEMBERS: usize = 1_500;

/// Changes members of a set that other clients change as well, and reads the own ones in order: they
/// have scores between those of other clients.
fn change_own_members(mut client: Client, number: i64) {
    let mut random = fastrand::Rng::with_seed(number.unsigned_abs());
    let mut own: BTreeMap<String, i64> = BTreeMap::new();
    for step in 0..3_000 {
        let member = format!("{number}:{}", random.usize(..OWN_MEMBERS));
        let score = number * 1_000 + random.i64(0..1_000);
        match random.u8(..8) {
            0 => {
                let removed = client.ask(&["ZREM", "shared", &member]).number();
                assert_eq!(removed, i64::from(own.remove(&member).is_some()), "{member}");
            }
            1 if step % 64 == 1 => {
                client.ask(&["MEMORY", "PURGE"]);
            }
            1 => {
                client.ask(&["MULTI"]);
                client.ask(&["ZADD", "shared", &score.to_string(), &member]);
                assert_eq!(client.ask(&["EXEC"]).items().len(), 1);
                own.insert(member, score);
            }
            2..6 => {
                let is_new = client.ask(&["ZADD", "shared", &score.to_string(), &member]).number();
                assert_eq!(is_new, i64::from(own.insert(member, score).is_none()));
            }
            _ => {
                let ends = [(number * 1_000).to_string(), format!("({}", (number + 1) * 1_000)];
                let request = ["ZRANGEBYSCORE", "shared", &ends[0], &ends[1], "WITHSCORES"];
                let found = client.ask(&request).items();
                let found: Vec<String> = found.iter().map(Answer::text).collect();
                let mut expected: Vec<_> = own.iter().map(|(it, score)| (*score, it)).collect();
                expected.sort();
                let expected =
                    expected.iter().flat_map(|(score, it)| [it.to_string(), score.to_string()]);
                assert!(
                    found.into_iter().eq(expected),
                    "other members than this client has written"
                );
            }
        }
    }
}

#[test]
fn clients_of_several_reactors_change_and_read_one_sorted_set() {
    let server = Process::alone(&["--shared-cores", "--reactors", "3", "--ready-memory", "16mb"]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|number| {
                let client = server.client();
                scope.spawn(move || change_own_members(client, number))
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("no reply was wrong"));
    });
    let mut client = server.client();
    let all = client.ask(&["ZRANGE", "shared", "0", "-1"]).items().len() as i64;
    assert_eq!(client.ask(&["ZCARD", "shared"]).number(), all);
}
