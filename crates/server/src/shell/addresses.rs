//! Addresses of other servers, found without keeping a reactor waiting.
//!
//! A server may announce a name instead of an address. Asking for a name can take many seconds, so
//! each question is asked on a thread of its own; reactors only look at the answers. The last good
//! answer is used until there is another one: a resolver that fails takes nothing away.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Finds the addresses of a name. May take long.
type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The addresses of all hosts that this process has asked for. Shared by its reactors.
pub struct AddressBook {
    resolve: Box<Resolve>,
    names: Mutex<BTreeMap<String, Name>>,
}

/// The state of one name.
#[derive(Debug, Default)]
struct Name {
    /// The last good answer. The first one is tried first.
    addresses: Vec<IpAddr>,
    /// A thread is asking.
    is_asked: bool,
}

impl AddressBook {
    /// Creates a book that asks the system's resolver.
    pub fn of_system() -> Arc<AddressBook> {
        AddressBook::new(|host| {
            // The port does not matter, but the system's interface asks for one.
            Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
        })
    }

    /// Creates a book that asks `resolve`.
    pub fn new(
        resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Arc<AddressBook> {
        Arc::new(AddressBook { resolve: Box::new(resolve), names: Mutex::default() })
    }

    /// Returns the address of a host, if it is known by now. Begins to ask for a name that is new.
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

    /// Notes that nobody could be reached at an address: another one of the host is tried next, and
    /// its name is asked for again.
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
            tracing::warn!(%error, "no thread can be started to find a server's address");
            name.is_asked = false;
        }
    }

    fn answered(&self, host: &str, answer: io::Result<Vec<IpAddr>>) {
        let mut names = self.names();
        let name = names.entry(host.to_owned()).or_default();
        name.is_asked = false;
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                // An address that has just failed need not come first again.
                let is_known = name.addresses.iter().all(|known| addresses.contains(known));
                if name.addresses.len() != addresses.len() || !is_known {
                    name.addresses = addresses;
                }
            }
            Ok(_) => tracing::warn!(host, "a server's name has no address: check the resolver"),
            Err(error) => tracing::warn!(host, %error, "a server's address cannot be found"),
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

    /// A book whose resolver answers when the test says so: what it was asked, and its answers.
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

    /// Waits until the book has taken an answer.
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
        // Addresses are there meanwhile, without a question.
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
        // A failure of an address that was given up is none of the present one.
        book.failed("two.example", ONE);
        assert_eq!(book.look_up("two.example"), Some(TWO));
        answers.send(Ok(vec![ONE, TWO])).expect("it waits");
        until_idle(&book);
    }
}
