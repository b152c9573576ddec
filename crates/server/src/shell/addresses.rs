//! Address lookup for other servers, without blocking a reactor.
//!
//! A server may announce a host name instead of an address. A name lookup can take many seconds, so
//! each one runs on a thread of its own, and reactors only read the results. The last successful
//! result is used until the next one, so a failing resolver removes no address.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Resolves a host name. May block for a long time.
type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The addresses of all hosts looked up by this process. Its reactors share them.
pub struct AddressBook {
    resolve: Box<Resolve>,
    names: Mutex<BTreeMap<String, Name>>,
}

/// The state of one name.
#[derive(Debug, Default)]
struct Name {
    /// Addresses of the last successful lookup, in the order in which they are tried.
    addresses: Vec<IpAddr>,
    /// True while a lookup is running.
    is_asked: bool,
}

impl AddressBook {
    /// Creates an address book that uses the system's resolver.
    pub fn of_system() -> Arc<AddressBook> {
        AddressBook::new(|host| {
            // The port is irrelevant, but the system's interface requires one.
            Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
        })
    }

    /// Creates an address book that resolves names by `resolve`.
    pub fn new(
        resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Arc<AddressBook> {
        Arc::new(AddressBook { resolve: Box::new(resolve), names: Mutex::default() })
    }

    /// Returns the address of a host, if it is already known. Starts a lookup for a new name.
    pub fn look_up(self: &Arc<Self>, host: &str) -> Option<IpAddr> {
        if let Ok(address) = host.parse() {
            return Some(address);
        }
        let mut names = self.names();
        if let Some(address) = names.get(host).and_then(|name| name.addresses.first()) {
            return Some(*address);
        }
        self.ask(host, &mut names);
        None
    }

    /// Records a failed connection to an address. The host's next address is tried next, and its
    /// name is looked up again.
    pub fn failed(self: &Arc<Self>, host: &str, address: IpAddr) {
        let mut names = self.names();
        let Some(name) = names.get_mut(host) else { return };
        if name.addresses.first() == Some(&address) {
            name.addresses.rotate_left(1);
        }
        self.ask(host, &mut names);
    }

    fn ask(self: &Arc<Self>, host: &str, names: &mut BTreeMap<String, Name>) {
        let name = names.entry(host.to_owned()).or_default();
        if std::mem::replace(&mut name.is_asked, true) {
            return;
        }
        let (book, host) = (Arc::clone(self), host.to_owned());
        let asking = move || {
            let answer = (book.resolve)(&host);
            book.answered(&host, answer);
        };
        if let Err(error) = std::thread::Builder::new().name("resolver".into()).spawn(asking) {
            tracing::warn!(%error, "cannot start a thread to resolve a server's address");
            name.is_asked = false;
        }
    }

    fn answered(&self, host: &str, answer: io::Result<Vec<IpAddr>>) {
        let mut names = self.names();
        let name = names.entry(host.to_owned()).or_default();
        name.is_asked = false;
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                // If the set is unchanged, keep the order: a failed address stays last.
                let is_known = name.addresses.iter().all(|known| addresses.contains(known));
                if name.addresses.len() != addresses.len() || !is_known {
                    name.addresses = addresses;
                }
            }
            Ok(_) => {
                tracing::warn!(host, "a server's name resolves to no address, check the resolver")
            }
            Err(error) => tracing::warn!(host, %error, "cannot resolve a server's address"),
        }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// Returns a book with a resolver controlled by the test: its questions, and its answers.
    fn slow() -> (Arc<AddressBook>, Receiver<String>, Sender<io::Result<Vec<IpAddr>>>) {
        let (asked, questions) = channel();
        let (answers, given) = channel();
        let given = Mutex::new(given);
        let book = AddressBook::new(move |host| {
            asked.send(host.to_owned()).expect("the test listens");
            given.lock().expect("nobody panics").recv().expect("the test answers")
        });
        (book, questions, answers)
    }

    /// Waits until the book has processed its answer.
    fn until_idle(book: &AddressBook) {
        while book.names().values().any(|name| name.is_asked) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_looks_up_a_name_does_not_wait_for_the_resolver() {
        let (book, questions, answers) = slow();
        for _ in 0..3 {
            assert_eq!(book.look_up("one.example"), None);
        }
        assert_eq!(questions.recv().as_deref(), Ok("one.example"));
        // A numeric address needs no lookup.
        assert_eq!(book.look_up("10.0.0.2"), Some(TWO));
        answers.send(Ok(vec![ONE])).expect("it waits");
        until_idle(&book);
        assert_eq!(book.look_up("one.example"), Some(ONE));
        assert!(questions.try_recv().is_err(), "a name is asked for once");
    }

    #[test]
    fn the_last_good_answer_stays_when_the_resolver_fails() {
        let (book, questions, answers) = slow();
        assert_eq!(book.look_up("one.example"), None);
        answers.send(Ok(vec![ONE])).expect("it waits");
        until_idle(&book);
        for bad in [Err(io::Error::other("no answer")), Ok(Vec::new())] {
            book.failed("one.example", ONE);
            assert_eq!(book.look_up("one.example"), Some(ONE), "while the resolver is asked");
            answers.send(bad).expect("it waits");
            until_idle(&book);
            assert_eq!(book.look_up("one.example"), Some(ONE));
        }
        book.failed("one.example", ONE);
        answers.send(Ok(vec![TWO])).expect("it waits");
        until_idle(&book);
        assert_eq!(book.look_up("one.example"), Some(TWO));
        assert_eq!(questions.try_iter().count(), 4);
    }

    #[test]
    fn an_address_where_nobody_is_gives_way_to_the_next_one_of_the_name() {
        let (book, _questions, answers) = slow();
        assert_eq!(book.look_up("two.example"), None);
        answers.send(Ok(vec![ONE, TWO])).expect("it waits");
        until_idle(&book);
        assert_eq!(book.look_up("two.example"), Some(ONE));
        book.failed("two.example", ONE);
        assert_eq!(book.look_up("two.example"), Some(TWO));
        answers.send(Ok(vec![ONE, TWO])).expect("it waits");
        until_idle(&book);
        assert_eq!(book.look_up("two.example"), Some(TWO), "the same answer changes nothing");
        // A failure of an abandoned address does not affect the current one.
        book.failed("two.example", ONE);
        assert_eq!(book.look_up("two.example"), Some(TWO));
        answers.send(Ok(vec![ONE, TWO])).expect("it waits");
        until_idle(&book);
    }
}
