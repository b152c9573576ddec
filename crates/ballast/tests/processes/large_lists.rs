//! Lists that are divided into pages, at real processes: changed while they move and while servers
//! are killed, and read after a restart.

use crate::client::Answer;
use crate::once::Repeater;
use crate::paged_clients::{
    PagedClient, RestartedServer, change_while_moving, change_while_owners_die,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Items of a list when the test begins: about 300 pages.
const ITEMS: usize = 30_000;

/// Items that one command adds when the list is filled.
const ITEMS_AT_ONCE: usize = 100;

/// Items from an end within which most commands work.
const NEAR: usize = 400;

/// A client with one list.
struct ListClient {
    repeater: Repeater,
    random: fastrand::Rng,
    /// Set if changes are exactly-once requests, which are repeated.
    once: bool,
    key: String,
    items: VecDeque<String>,
    /// Number of items so far.
    created: usize,
}

impl ListClient {
    fn new(addresses: &[SocketAddr], seed: u64, once: bool) -> ListClient {
        ListClient {
            repeater: Repeater::new(addresses, seed),
            random: fastrand::Rng::with_seed(seed),
            once,
            key: format!("list:{seed}"),
            items: VecDeque::new(),
            created: 0,
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

    fn new_item(&mut self) -> String {
        self.created += 1;
        format!("item:{}{}", self.created, "x".repeat(self.random.usize(..30)))
    }

    fn near(&mut self) -> usize {
        let at = self.random.usize(..NEAR);
        if self.random.bool() { at } else { self.items.len() - 1 - at }
    }

    fn end(&mut self) -> bool {
        self.random.bool()
    }

    /// Executes a command at both ends of the list.
    fn step_at_end(&mut self) {
        let is_left = self.end();
        let letter = if is_left { "L" } else { "R" };
        let end = if is_left { "LEFT" } else { "RIGHT" };
        match self.random.u8(..4) {
            0 | 1 => {
                let new: Vec<String> = (0..3).map(|_| self.new_item()).collect();
                for item in &new {
                    match is_left {
                        true => self.items.push_front(item.clone()),
                        false => self.items.push_back(item.clone()),
                    }
                }
                let words: Vec<&str> = new.iter().map(String::as_str).collect();
                let length = self.change(&format!("{letter}PUSH"), &words).number();
                assert_eq!(length, self.items.len() as i64);
            }
            2 => {
                let count = self.random.usize(1..6);
                let found = self.change(&format!("{letter}POP"), &[&count.to_string()]).items();
                for found in found {
                    let item = if is_left { self.items.pop_front() } else { self.items.pop_back() };
                    assert_eq!(Some(found.text()), item);
                }
            }
            _ => {
                let other = if is_left { "RIGHT" } else { "LEFT" };
                let key = self.key.clone();
                let moved = self.change("LMOVE", &[&key, end, other]).text();
                match is_left {
                    true => self.items.rotate_left(1),
                    false => self.items.rotate_right(1),
                }
                let expected = if is_left { self.items.back() } else { self.items.front() };
                assert_eq!(Some(&moved), expected);
            }
        }
    }

    /// Executes a command on an item or some items inside the list.
    fn step_inside(&mut self) {
        let at = self.near();
        let place = at.to_string();
        match self.random.u8(..8) {
            0 => {
                let item = self.new_item();
                assert_eq!(self.change("LSET", &[&place, &item]).text(), "OK");
                self.items[at] = item;
            }
            1 => {
                let item = self.items[at].clone();
                let count = if at < NEAR { "1" } else { "-1" };
                assert_eq!(self.change("LREM", &[count, &item]).number(), 1);
                self.items.remove(at);
            }
            2 => {
                let at = self.random.usize(..NEAR);
                let (pivot, item) = (self.items[at].clone(), self.new_item());
                let length = self.change("LINSERT", &["BEFORE", &pivot, &item]).number();
                self.items.insert(at, item);
                assert_eq!(length, self.items.len() as i64);
            }
            3 if self.random.u8(..16) == 0 => {
                let kept = self.items.len() - NEAR;
                assert_eq!(self.change("LTRIM", &["0", &(kept - 1).to_string()]).text(), "OK");
                self.items.truncate(kept);
            }
            4 => {
                let item = self.items[self.items.len() / 2].clone();
                let found = self.read("LPOS", &[&item]).number();
                assert_eq!(self.items.get(found as usize), Some(&item));
            }
            _ => {
                assert_eq!(self.read("LINDEX", &[&place]).text(), self.items[at]);
                let last = (at + 20).min(self.items.len() - 1);
                let found = self.read("LRANGE", &[&place, &last.to_string()]).items();
                let found: Vec<String> = found.iter().map(Answer::text).collect();
                assert!(found.iter().eq(self.items.range(at..=last)));
            }
        }
    }
}

impl PagedClient for ListClient {
    fn fill(&mut self) {
        while self.items.len() < ITEMS {
            let new: Vec<String> = (0..ITEMS_AT_ONCE).map(|_| self.new_item()).collect();
            let words: Vec<&str> = new.iter().map(String::as_str).collect();
            self.items.extend(new.iter().cloned());
            assert_eq!(self.change("RPUSH", &words).number(), self.items.len() as i64);
        }
    }

    fn step(&mut self) {
        if self.items.len() < 4 * NEAR {
            self.fill();
        }
        match self.random.bool() {
            true => self.step_at_end(),
            false => self.step_inside(),
        }
    }

    fn check(&mut self) {
        assert_eq!(self.read("LLEN", &[]).number(), self.items.len() as i64);
        let all: Vec<String> =
            self.read("LRANGE", &["0", "-1"]).items().iter().map(Answer::text).collect();
        assert!(all.iter().eq(&self.items), "the list has other items than were written");
    }

    fn repeater(&mut self) -> &mut Repeater {
        &mut self.repeater
    }
}

/// Returns two clients.
fn clients(addresses: &[SocketAddr], once: bool) -> Vec<ListClient> {
    (1..=2).map(|seed| ListClient::new(addresses, seed, once)).collect()
}

#[test]
fn long_lists_are_changed_while_they_move() {
    change_while_moving(|addresses| clients(addresses, false));
}

#[test]
fn long_lists_survive_the_death_of_their_owners() {
    change_while_owners_die(|addresses| clients(addresses, true));
}

#[test]
fn a_restarted_server_has_its_long_lists_and_forgets_removed_items() {
    let new = |addresses: &[SocketAddr], seed| ListClient::new(addresses, seed, false);
    let mut server = RestartedServer::after(new, |other| {
        assert_eq!(other.change("LTRIM", &["0", "999"]).text(), "OK");
        other.items.truncate(1_000);
    });
    server.wait_for_sweep();
    // The numbers of the removed pages are used again.
    server.other.fill();
    [&mut server.one, &mut server.other].into_iter().for_each(ListClient::check);
}
