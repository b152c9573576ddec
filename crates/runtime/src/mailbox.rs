//! Messages from any thread to one reactor.
//!
//! A sender appends to a list under a short lock and sets a flag. The reactor checks the flag
//! once per turn and takes the whole list. A sender makes a system call only if the reactor has
//! announced that it is going to wait.
//!
//! No wake-up is lost: a sender first sets `pending`, then reads `asleep`; the reactor first sets
//! `asleep`, then reads `pending`. All four accesses are sequentially consistent, so at least one
//! of the two sees the other's store. Shuttle checks this in the tests.

use crate::sync::{AtomicBool, Mutex, Ordering};
use std::sync::Arc;
use types::ReactorId;

/// Wakes a waiting reactor from another thread.
pub(crate) trait Waker: Send + Sync {
    fn wake(&self);
}

/// The reactor's end of its mailbox, shared with the senders.
pub(crate) struct MessageQueue<M> {
    messages: Mutex<Vec<M>>,
    /// There may be messages, or a sender has requested a turn.
    pending: AtomicBool,
    /// The reactor waits or is about to, and must be woken.
    asleep: AtomicBool,
    waker: Box<dyn Waker>,
}

impl<M> MessageQueue<M> {
    pub(crate) fn new(waker: Box<dyn Waker>) -> Arc<MessageQueue<M>> {
        Arc::new(MessageQueue {
            messages: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            waker,
        })
    }

    pub(crate) fn push(&self, message: M) {
        self.messages.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(message);
        self.request_turn();
    }

    /// Makes the reactor run a turn.
    pub(crate) fn request_turn(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Moves all messages, in the order of each sender, to the empty `into`.
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        if self.pending.load(Ordering::Relaxed) && self.pending.swap(false, Ordering::SeqCst) {
            let mut messages = self.messages.lock().unwrap_or_else(|p| p.into_inner());
            std::mem::swap(&mut *messages, into);
        }
    }

    /// Announces that the reactor is about to wait. Returns `false` if it must not, because there
    /// is something to do.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Announces that the reactor has stopped waiting.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// A message to a reactor: mail for its service, or a message between reactors.
pub(crate) enum ReactorMessage<M> {
    Mail(M),
    Connection(crate::driver::Accepted),
    Stop,
}

/// The sender of one reactor's mail. It is cheap to clone, never blocks for long and never fails:
/// mail to a stopped reactor is dropped.
pub struct Mailbox<M> {
    queue: Arc<MessageQueue<ReactorMessage<M>>>,
}

impl<M> Mailbox<M> {
    pub(crate) fn new(queue: Arc<MessageQueue<ReactorMessage<M>>>) -> Mailbox<M> {
        Mailbox { queue }
    }

    /// Sends `mail` to the reactor's service, which gets it in one of its next turns. Mail of one
    /// sender arrives in order.
    pub fn send(&self, mail: M) {
        self.queue.push(ReactorMessage::Mail(mail));
    }

    /// Makes the reactor run a turn soon, for instance for background work that any reactor may do.
    pub fn wake(&self) {
        self.queue.request_turn();
    }

    pub(crate) fn post(&self, message: ReactorMessage<M>) {
        self.queue.push(message);
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox { queue: Arc::clone(&self.queue) }
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

    /// Returns one reactor's mailbox.
    pub fn of(&self, reactor: ReactorId) -> &Mailbox<M> {
        &self.all[usize::from(reactor.0)]
    }

    /// Returns all mailboxes, in the order of the reactors.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Mailbox<M>> {
        self.all.iter()
    }

    /// Asks all reactors to send their output, close their connections and end.
    pub fn stop(&self) {
        for mailbox in self.iter() {
            mailbox.post(ReactorMessage::Stop);
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
        impl Waker for Nobody {
            fn wake(&self) {}
        }

        let queue = MessageQueue::new(Box::new(Nobody));
        let mut taken = Vec::new();
        assert!(queue.may_sleep());
        queue.awake();
        queue.push(1);
        queue.push(2);
        assert!(!queue.may_sleep());
        queue.take(&mut taken);
        assert_eq!(taken, [1, 2]);
        assert!(queue.may_sleep());
        queue.request_turn();
        assert!(!queue.may_sleep(), "woken without a message");
    }

    /// Runs random interleavings of senders and a reactor that waits whenever it may. After a
    /// lost wake-up the reactor would wait forever, which shuttle reports as a deadlock.
    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_finds_no_message_slept_over() {
        use shuttle::sync::{Condvar, Mutex};
        use shuttle::thread;

        struct Signal(Arc<(Mutex<bool>, Condvar)>);
        impl Waker for Signal {
            fn wake(&self) {
                *self.0.0.lock().expect("no thread panics") = true;
                self.0.1.notify_one();
            }
        }

        fn deliver() {
            let signal = Arc::new((Mutex::new(false), Condvar::new()));
            let queue = MessageQueue::new(Box::new(Signal(Arc::clone(&signal))));
            let senders: Vec<_> = (0..2)
                .map(|sender| {
                    let queue = Arc::clone(&queue);
                    thread::spawn(move || (0..2).for_each(|round| queue.push((sender, round))))
                })
                .collect();
            let (mut taken, mut all) = (Vec::new(), Vec::new());
            while all.len() < 4 {
                if queue.may_sleep() {
                    let mut is_set = signal.0.lock().expect("no thread panics");
                    while !*is_set {
                        is_set = signal.1.wait(is_set).expect("no thread panics");
                    }
                    *is_set = false;
                    drop(is_set);
                    queue.awake();
                }
                queue.take(&mut taken);
                all.append(&mut taken);
            }
            for sender in senders {
                sender.join().expect("no thread panics");
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
