//! All reactors of a process: starting, stopping, and reading their counters.

use crate::counters::ReactorCounters;
use crate::cpus;
use crate::driver::epoll::{Epoll, EventWaker};
use crate::driver::uring::{self, Uring};
use crate::driver::{Driver, DriverKind};
use crate::mailbox::{Mailbox, Mailboxes, MessageQueue, ReactorMessage};
use crate::placement::{ConnectionPlacement, ReactorLoad};
use crate::reactor::{Parts, Reactor};
use crate::service::Service;
use crate::sharing::Processors;
use crate::socket::Listener;
use crate::turns::Turns;
use crate::vital::spawn_vital;
use crossbeam_utils::CachePadded;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use types::ReactorId;
use types::limits::REACTORS_MAX;
use types::{PollPolicy, ReactorCounts};

/// The configuration of the reactors.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of reactors, from 1 to [`REACTORS_MAX`].
    pub reactors: u16,
    /// Waiting policy of an idle reactor.
    pub poll: PollPolicy,
    /// Other threads need these cores too (more threads than cores, or a client on the same
    /// machine), so that sharing need not be detected. `Adaptive` then does not spin, and `Busy`
    /// yields the core after every background quantum, as the others always do.
    pub cores_shared: bool,
    /// Binds each reactor to a processor of its own. Only sensible for a process that has the
    /// machine to itself: two such processes would share the same processors.
    pub pin: bool,
    /// Driver of the reactors; `None` selects io_uring if it is usable, otherwise epoll.
    pub driver: Option<DriverKind>,
}

impl Config {
    /// Returns a configuration with one reactor per available processor, or with the given
    /// number. Reactors share cores if there are more of them than processors.
    pub fn for_this_machine(reactors: Option<u16>) -> Config {
        let cpus = cpus::cpu_count().min(REACTORS_MAX) as u16;
        let reactors = reactors.unwrap_or(cpus).clamp(1, REACTORS_MAX as u16);
        let cores_shared = reactors > cpus;
        let (poll, pin) = (PollPolicy::default(), reactors == cpus);
        Config { reactors, poll, cores_shared, pin, driver: None }
    }
}

/// The running reactors.
pub struct Reactors<M> {
    driver: DriverKind,
    why_not_uring: Option<io::Error>,
    mailboxes: Mailboxes<M>,
    counters: Vec<Arc<ReactorCounters>>,
    threads: Vec<JoinHandle<()>>,
}

impl<M: Send + 'static> Reactors<M> {
    /// Starts the reactors. `make_service` is called once on each reactor's thread, so a service
    /// may contain data that must not leave its thread. The first reactor accepts from `listeners`.
    pub fn start<S, F>(
        config: &Config,
        listeners: Vec<Listener>,
        make_service: F,
    ) -> io::Result<Reactors<M>>
    where
        S: Service<Mail = M>,
        F: Fn(ReactorId, Mailboxes<M>) -> S + Send + Sync + 'static,
    {
        let probed = match config.driver {
            None | Some(DriverKind::Uring) => uring::probe(),
            Some(DriverKind::Epoll) => Ok(()),
        };
        match (config.driver, probed) {
            (Some(DriverKind::Epoll), _) => {
                Start::new(config, listeners, make_service, Epoll::new)?.reactors(None)
            }
            (None | Some(DriverKind::Uring), Ok(())) => {
                Start::new(config, listeners, make_service, Uring::new)?.reactors(None)
            }
            (Some(DriverKind::Uring), Err(error)) => Err(error),
            (None, Err(error)) => {
                Start::new(config, listeners, make_service, Epoll::new)?.reactors(Some(error))
            }
        }
    }

    /// Returns the driver in use.
    pub fn driver(&self) -> DriverKind {
        self.driver
    }

    /// Returns why io_uring is not used, if no driver was configured and the probe failed.
    pub fn why_not_uring(&self) -> Option<&io::Error> {
        self.why_not_uring.as_ref()
    }

    /// Returns the mailboxes of the reactors' services, usable from any thread.
    pub fn mailboxes(&self) -> &Mailboxes<M> {
        &self.mailboxes
    }

    /// Returns the current counters of each reactor.
    pub fn counts(&self) -> Vec<ReactorCounts> {
        self.counters.iter().map(|counters| counters.read()).collect()
    }

    /// Returns a function that reads the counters, for callers that must not own the reactors.
    pub fn watch(&self) -> impl Fn() -> Vec<ReactorCounts> + Send + Sync + use<M> {
        let counters = self.counters.clone();
        move || counters.iter().map(|counters| counters.read()).collect()
    }

    /// Waits until all reactors have stopped because of `Mailboxes::stop`.
    pub fn join(self) {
        for thread in self.threads {
            // A reactor that panicked has already aborted the process.
            let _ = thread.join();
        }
    }

    /// Stops the reactors: they send remaining output for at most a second. Waits for their end.
    pub fn stop(self) {
        self.mailboxes.stop();
        self.join();
    }
}

/// A driver whose reactor's thread has not started yet.
trait Startable: Driver + Send + Sized + 'static {
    const KIND: DriverKind;

    fn waker(&self) -> EventWaker;
}

impl Startable for Epoll {
    const KIND: DriverKind = DriverKind::Epoll;

    fn waker(&self) -> EventWaker {
        Epoll::waker(self)
    }
}

impl Startable for Uring {
    const KIND: DriverKind = DriverKind::Uring;

    fn waker(&self) -> EventWaker {
        Uring::waker(self)
    }
}

/// Reactors that have a driver but no thread yet, with their shared state.
struct Start<M, F, D> {
    config: Config,
    cpus: Vec<usize>,
    drivers: Vec<(D, Arc<MessageQueue<ReactorMessage<M>>>)>,
    mailboxes: Mailboxes<M>,
    loads: Arc<[CachePadded<ReactorLoad>]>,
    counters: Vec<Arc<ReactorCounters>>,
    make_service: Arc<F>,
}

impl<M: Send + 'static, F, D: Startable> Start<M, F, D> {
    fn new(
        config: &Config,
        listeners: Vec<Listener>,
        make_service: F,
        make_driver: impl Fn() -> io::Result<D>,
    ) -> io::Result<Start<M, F, D>> {
        let count = usize::from(config.reactors);
        assert!((1..=REACTORS_MAX).contains(&count), "{count} reactors");
        let mut drivers = (0..count).map(|_| make_driver()).collect::<io::Result<Vec<_>>>()?;
        for listener in listeners {
            drivers[0].listen(listener)?;
        }
        let queues: Vec<_> =
            drivers.iter().map(|driver| MessageQueue::new(Box::new(driver.waker()))).collect();
        Ok(Start {
            config: config.clone(),
            cpus: cpus::cpu_numbers(),
            mailboxes: Mailboxes::new(queues.iter().cloned().map(Mailbox::new).collect()),
            drivers: drivers.into_iter().zip(queues).collect(),
            loads: (0..count).map(|_| CachePadded::new(ReactorLoad::default())).collect(),
            counters: Vec::new(),
            make_service: Arc::new(make_service),
        })
    }

    fn reactors<S>(mut self, why_not_uring: Option<io::Error>) -> io::Result<Reactors<M>>
    where
        S: Service<Mail = M>,
        F: Fn(ReactorId, Mailboxes<M>) -> S + Send + Sync + 'static,
    {
        let mut threads = Vec::new();
        for (driver, queue) in std::mem::take(&mut self.drivers) {
            threads.push(self.thread(driver, queue)?);
        }
        let Start { mailboxes, counters, .. } = self;
        Ok(Reactors { driver: D::KIND, why_not_uring, mailboxes, counters, threads })
    }

    fn thread<S>(
        &mut self,
        driver: D,
        queue: Arc<MessageQueue<ReactorMessage<M>>>,
    ) -> io::Result<JoinHandle<()>>
    where
        S: Service<Mail = M>,
        F: Fn(ReactorId, Mailboxes<M>) -> S + Send + Sync + 'static,
    {
        let reactor = ReactorId(self.counters.len() as u16);
        let counters = Arc::new(ReactorCounters::default());
        self.counters.push(Arc::clone(&counters));
        let mailboxes = self.mailboxes.clone();
        let placement =
            ConnectionPlacement::new(reactor, Arc::clone(&self.loads), mailboxes.clone());
        let make_service = Arc::clone(&self.make_service);
        let cores_shared = self.config.cores_shared;
        let turns = Turns::new(self.config.poll, cores_shared);
        let own = self.cpus.get(usize::from(reactor.0)).copied().filter(|_| self.config.pin);
        let all = self.cpus.clone();
        let run = move || {
            let processors = Processors::of_this_thread(own, all, !cores_shared);
            cpus::wake_punctually();
            let service = make_service(reactor, mailboxes);
            let parts = Parts { service, driver, queue, placement, counters, turns, processors };
            Reactor::new(parts).run();
        };
        spawn_vital(&format!("reactor-{}", reactor.0), run)
    }
}
