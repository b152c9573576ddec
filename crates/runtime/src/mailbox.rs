//! Messages from any thread to one reactor.
//!
//! A sender appends to a list under a short lock and raises a flag; the reactor looks at the flag
//! once per turn and takes the whole list. Only a reactor that has announced that it is going to
//! wait costs its senders a system call.
//!
//! Why no message is slept over: a sender first raises `pending`, then looks at `asleep`; the
//! reactor first raises `asleep`, then looks at `pending`. All four are sequentially consistent,
//! so at least one of the two sees the other. Checked by shuttle in the tests.

use crate::sync::{AtomicBool, Mutex, Ordering};
use std::sync::Arc;
use types::ReactorId;

/// Ends a reactor's waiting, from another thread.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

/// The reactor's end, shared with the senders.
pub(crate) struct Inbox<M> {
    messages: Mutex<Vec<M>>,
    /// There may be messages, or somebody wants a turn.
    pending: AtomicBool,
    /// The reactor waits, or is about to: it must be woken.
    asleep: AtomicBool,
    waker: Box<dyn Wake>,
}

impl<M> Inbox<M> {
    pub(crate) fn new(waker: Box<dyn Wake>) -> Arc<Inbox<M>> {
        Arc::new(Inbox {
            messages: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            waker,
        })
    }

    pub(crate) fn push(&self, message: M) {
        self.messages.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(message);
        self.nudge();
    }

    /// Makes the reactor take a turn.
    pub(crate) fn nudge(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Takes what is there, in the order of each sender. `into` is empty and comes back filled.
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        if self.pending.load(Ordering::Relaxed) && self.pending.swap(false, Ordering::SeqCst) {
            let mut messages = self.messages.lock().unwrap_or_else(|p| p.into_inner());
            std::mem::swap(&mut *messages, into);
        }
    }

    /// The reactor is about to wait. False: there is something to do, it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// The reactor has stopped waiting.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// What stands in an inbox: the service's messages, and the reactors' own.
pub(crate) enum Letter<M> {
    Mail(M),
    Handed(crate::driver::Accepted),
    Stop,
}

/// Sends to one reactor. Cheap to clone; never blocks for long; never fails: what is sent to a
/// reactor that has stopped is dropped with it.
pub struct Mailbox<M> {
    inbox: Arc<Inbox<Letter<M>>>,
}

impl<M> Mailbox<M> {
    pub(crate) fn new(inbox: Arc<Inbox<Letter<M>>>) -> Mailbox<M> {
        Mailbox { inbox }
    }

    /// The reactor's service gets `mail` in one of its next turns. Mail of one sender arrives in
    /// order.
    pub fn send(&self, mail: M) {
        self.inbox.push(Letter::Mail(mail));
    }

    /// The reactor takes a turn soon, as when there is background work that any reactor may do.
    pub fn wake(&self) {
        self.inbox.nudge();
    }

    pub(crate) fn post(&self, letter: Letter<M>) {
        self.inbox.push(letter);
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox { inbox: Arc::clone(&self.inbox) }
    }
}

/// The mailboxes of all reactors of a process.
pub struct Mailboxes<M> {
    all: Arc<[Mailbox<M>]>,
}

impl<M> Mailboxes<M> {
    pub(crate) fn new(all: Vec<Mailbox<M>>) -> Mailboxes<M> {
        Mailboxes { all: all.into() }
    }

    /// One reactor's mailbox.
    pub fn of(&self, reactor: ReactorId) -> &Mailbox<M> {
        &self.all[usize::from(reactor.0)]
    }

    /// All of them, in the order of the reactors.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Mailbox<M>> {
        self.all.iter()
    }

    /// How many reactors there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Never: there is at least one reactor.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Asks all reactors to send what they have, to close their connections and to end.
    pub fn stop(&self) {
        for mailbox in self.iter() {
            mailbox.post(Letter::Stop);
        }
    }
}

impl<M> Clone for Mailboxes<M> {
    fn clone(&self) -> Mailboxes<M> {
        Mailboxes { all: Arc::clone(&self.all) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "shuttle"))]
    #[test]
    fn messages_come_out_in_order_and_keep_the_reactor_awake() {
        struct Nobody;
        impl Wake for Nobody {
            fn wake(&self) {}
        }

        let inbox = Inbox::new(Box::new(Nobody));
        let mut taken = Vec::new();
        assert!(inbox.may_sleep());
        inbox.awake();
        inbox.push(1);
        inbox.push(2);
        assert!(!inbox.may_sleep());
        inbox.take(&mut taken);
        assert_eq!(taken, [1, 2]);
        assert!(inbox.may_sleep());
        inbox.nudge();
        assert!(!inbox.may_sleep(), "woken without a message");
    }

    /// All interleavings that shuttle finds of senders and a reactor that waits whenever it may: if
    /// a wake-up were lost the reactor would wait for ever, and shuttle reports a deadlock.
    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_finds_no_message_slept_over() {
        use shuttle::sync::{Condvar, Mutex};
        use shuttle::thread;

        struct Bell(Arc<(Mutex<bool>, Condvar)>);
        impl Wake for Bell {
            fn wake(&self) {
                *self.0.0.lock().expect("nobody panics") = true;
                self.0.1.notify_one();
            }
        }

        fn deliver() {
            let bell = Arc::new((Mutex::new(false), Condvar::new()));
            let inbox = Inbox::new(Box::new(Bell(Arc::clone(&bell))));
            let senders: Vec<_> = (0..2)
                .map(|sender| {
                    let inbox = Arc::clone(&inbox);
                    thread::spawn(move || (0..2).for_each(|round| inbox.push((sender, round))))
                })
                .collect();
            let (mut taken, mut all) = (Vec::new(), Vec::new());
            while all.len() < 4 {
                if inbox.may_sleep() {
                    let mut rung = bell.0.lock().expect("nobody panics");
                    while !*rung {
                        rung = bell.1.wait(rung).expect("nobody panics");
                    }
                    *rung = false;
                    drop(rung);
                    inbox.awake();
                }
                inbox.take(&mut taken);
                all.append(&mut taken);
            }
            for sender in senders {
                sender.join().expect("nobody panics");
            }
            for sender in 0..2 {
                let rounds =
                    all.iter().filter(|(from, _)| *from == sender).map(|(_, round)| *round);
                assert!(rounds.eq([0, 1]), "mail of one sender is out of order");
            }
        }

        shuttle::check_random(deliver, 20_000);
        shuttle::check_pct(deliver, 20_000, 3);
    }
}
