//! Address lookup for other servers, without blocking a reactor.
//!
//! A server may announce a host name instead of an address. A name lookup can take many seconds, so
//! each one runs on a thread of its own, and reactors only read the results. [`Addresses`] decides
//! when a name is looked up and which address is used.

use links::Addresses;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Resolves a host name. May block for a long time.
type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The addresses of all hosts looked up by this process. Its reactors share them.
pub struct AddressBook {
    resolve: Box<Resolve>,
    addresses: Mutex<Addresses>,
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
        Arc::new(AddressBook { resolve: Box::new(resolve), addresses: Mutex::default() })
    }

    /// Returns the address of a host, if it is already known. Starts a lookup for a new name.
    pub fn look_up(self: &Arc<Self>, host: &str) -> Option<IpAddr> {
        let lookup = self.addresses().look_up(host);
        if lookup.must_resolve {
            self.resolve(host);
        }
        lookup.address
    }

    /// Records a failed connection to an address. The host's next address is tried next, and its
    /// name is looked up again.
    pub fn failed(self: &Arc<Self>, host: &str, address: IpAddr) {
        let must_resolve = self.addresses().failed(host, address);
        if must_resolve {
            self.resolve(host);
        }
    }

    fn resolve(self: &Arc<Self>, host: &str) {
        let (book, name) = (Arc::clone(self), host.to_owned());
        let asking = move || {
            let answer = (book.resolve)(&name);
            book.answered(&name, answer);
        };
        if let Err(error) = std::thread::Builder::new().name("resolver".into()).spawn(asking) {
            tracing::warn!(%error, "cannot start a thread to resolve a server's address");
            self.addresses().answered(host, Vec::new());
        }
    }

    fn answered(&self, host: &str, answer: io::Result<Vec<IpAddr>>) {
        match &answer {
            Ok(addresses) if addresses.is_empty() => {
                tracing::warn!(host, "a server's name resolves to no address, check the resolver");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(host, %error, "cannot resolve a server's address"),
        }
        self.addresses().answered(host, answer.unwrap_or_default());
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

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
        while book.addresses().is_resolving() {
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
        answers.send(Ok(vec![ONE])).expect("it waits");
        until_idle(&book);
        assert_eq!(book.look_up("one.example"), Some(ONE));
        assert!(questions.try_recv().is_err(), "a name is asked for once");
    }

    #[test]
    fn a_resolver_that_fails_is_asked_again_after_a_failure() {
        let (book, questions, answers) = slow();
        assert_eq!(book.look_up("one.example"), None);
        for answer in [Ok(vec![ONE]), Err(io::Error::other("no answer")), Ok(Vec::new())] {
            answers.send(answer).expect("it waits");
            until_idle(&book);
            book.failed("one.example", ONE);
            assert_eq!(book.look_up("one.example"), Some(ONE), "while the resolver is asked");
        }
        answers.send(Ok(Vec::new())).expect("it waits");
        until_idle(&book);
        assert_eq!(questions.try_iter().count(), 4);
    }
}
