//! Transactions while the ranges of their keys move.

use crate::client::{Answer, Client};
use crate::moves::Mover;
use crate::servers::Cluster;
use resp::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Banks, each in a slot of its own; accounts per bank; initial balance of an account.
const BANKS: usize = 3;
const ACCOUNTS: usize = 5;
const MONEY: i64 = 1_000;

/// Clients that make payments, and payments per client.
const TELLERS: usize = 4;
const PAYMENTS: usize = 4_000;

/// A client that follows redirections to find the owner of a bank.
struct Teller {
    random: fastrand::Rng,
    servers: Vec<Client>,
    /// Last known owner of each bank.
    owners: [usize; BANKS],
}

impl Teller {
    fn new(addresses: &[SocketAddr], seed: u64) -> Teller {
        let servers = addresses.iter().map(|address| Client::connect(*address)).collect();
        Teller { random: fastrand::Rng::with_seed(seed), servers, owners: [0; BANKS] }
    }

    /// Asks the last known owner of a bank. Returns `None` after recording a new owner.
    fn ask(&mut self, bank: usize, requests: &[Vec<String>]) -> Option<Vec<Answer>> {
        let answers = self.servers[self.owners[bank]].ask_all(requests);
        let Some(moved) = answers.iter().find(|answer| answer.is_error("MOVED")) else {
            return Some(answers);
        };
        let text = moved.text();
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let owner = self.servers.iter().position(|server| Some(server.address.port()) == port);
        self.owners[bank] = owner.expect("a redirection names a server of the cluster");
        None
    }

    /// Runs a transaction at the current owner. Returns `None` if a watched key has changed.
    fn carry_out(&mut self, bank: usize, commands: &[Vec<String>]) -> Option<Vec<Answer>> {
        let mut requests = vec![words(&["MULTI"])];
        requests.extend_from_slice(commands);
        requests.push(words(&["EXEC"]));
        let answers = loop {
            if let Some(answers) = self.ask(bank, &requests) {
                break answers;
            }
        };
        let queued = &answers[1..answers.len() - 1];
        assert!(queued.iter().all(|answer| answer.text() == "QUEUED"), "{queued:?}");
        match answers.last() {
            Some(Answer(Value::Null)) => None,
            Some(answer) => Some(answer.items()),
            None => unreachable!("there were requests"),
        }
    }

    /// Adds to one account and subtracts from another, without reading them.
    fn pay(&mut self, bank: usize) {
        let (from, to, amount) = self.draw(bank);
        let amount = amount.to_string();
        let done = self.carry_out(
            bank,
            &[
                words(&["DECRBY", &from, &amount]),
                words(&["INCRBY", &to, &amount]),
                words(&["INCR", &payments(bank)]),
            ],
        );
        assert_eq!(done.map(|answers| answers.len()), Some(3), "nothing was watched");
    }

    /// Makes a payment that watches and reads both accounts. Returns false if an account was
    /// changed concurrently, or if the bank has moved meanwhile.
    fn pay_watching(&mut self, bank: usize) -> bool {
        let (from, to, amount) = self.draw(bank);
        let look = [words(&["WATCH", &from, &to]), words(&["MGET", &from, &to])];
        let Some(seen) = self.ask(bank, &look) else { return false };
        let held: Vec<i64> =
            seen[1].items().iter().map(|held| held.text().parse().expect("a number")).collect();
        let change = [
            words(&["MULTI"]),
            words(&["SET", &from, &(held[0] - amount).to_string()]),
            words(&["SET", &to, &(held[1] + amount).to_string()]),
            words(&["INCR", &payments(bank)]),
            words(&["EXEC"]),
        ];
        self.ask(bank, &change).is_some_and(|answers| answers[4].0 != Value::Null)
    }

    fn draw(&mut self, bank: usize) -> (String, String, i64) {
        let from = self.random.usize(..ACCOUNTS);
        let to = (from + self.random.usize(1..ACCOUNTS)) % ACCOUNTS;
        (account(bank, from), account(bank, to), self.random.i64(1..10))
    }

    /// Returns the total money of a bank and the number of its payments, at one moment.
    fn audit(&mut self, bank: usize) -> (i64, i64) {
        let mut commands: Vec<_> =
            (0..ACCOUNTS).map(|number| words(&["GET", &account(bank, number)])).collect();
        commands.push(words(&["GET", &payments(bank)]));
        let answers = self.carry_out(bank, &commands).expect("nothing was watched");
        let mut numbers: Vec<i64> =
            answers.iter().map(|answer| answer.text().parse().expect("a number")).collect();
        let payments = numbers.pop().expect("one more than accounts");
        (numbers.iter().sum(), payments)
    }

    /// Makes payments at all banks, and returns their number by bank.
    fn work(mut self) -> [i64; BANKS] {
        let mut made = [0; BANKS];
        for _ in 0..PAYMENTS {
            let bank = self.random.usize(..BANKS);
            match self.random.u8(..3) {
                0 => self.pay(bank),
                1 => while !self.pay_watching(bank) {},
                _ => {
                    let (money, _) = self.audit(bank);
                    assert_eq!(money, ACCOUNTS as i64 * MONEY, "a payment was seen half made");
                    continue;
                }
            }
            made[bank] += 1;
        }
        made
    }
}

fn account(bank: usize, number: usize) -> String {
    format!("{{bank:{bank}}}account:{number}")
}

fn payments(bank: usize) -> String {
    format!("{{bank:{bank}}}payments")
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_string()).collect()
}

#[test]
fn transactions_are_atomic_while_their_keys_move() {
    // Two reactors, so that transactions can conflict.
    let cluster =
        Cluster::start(3, &["--shared-cores", "--reactors", "2", "--ready-memory", "16mb"]);
    let addresses = cluster.addresses();
    let mut clerk = Teller::new(&addresses, 0);
    for bank in 0..BANKS {
        let mut commands = vec![words(&["SET", &payments(bank), "0"])];
        let money = MONEY.to_string();
        commands.extend((0..ACCOUNTS).map(|at| words(&["SET", &account(bank, at), &money])));
        clerk.carry_out(bank, &commands).expect("nothing was watched");
    }
    let stop = AtomicBool::new(false);
    let (made, ended) = thread::scope(|scope| {
        let moving = scope.spawn(|| Mover::new(&cluster, 7).keep_moving(&stop));
        let teller = |seed| Teller::new(&addresses, seed as u64);
        let tellers: Vec<_> =
            (1..=TELLERS).map(teller).map(|teller| scope.spawn(|| teller.work())).collect();
        let made: Vec<_> = tellers.into_iter().map(|teller| teller.join()).collect();
        stop.store(true, Ordering::Relaxed);
        (made, moving.join().expect("ranges are moved"))
    });
    let mut total = [0; BANKS];
    for made in made {
        let made = made.expect("a teller has found nothing wrong");
        total.iter_mut().zip(made).for_each(|(total, made)| *total += made);
    }
    assert!(ended.succeeded > 3, "{ended:?}");
    for (bank, made) in total.into_iter().enumerate() {
        assert_eq!(clerk.audit(bank), (ACCOUNTS as i64 * MONEY, made), "bank {bank}");
    }
}
