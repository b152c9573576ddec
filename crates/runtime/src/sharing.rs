//! Detection of shared processors: other threads make this reactor wait for a processor. See
//! `docs/design/reactor.md`, "Shared processors".

use crate::cpus;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use types::Instant;

/// Interval at which a reactor looks at its waiting time: a microsecond each time.
const INTERVAL: Duration = Duration::from_millis(10);

/// Part of an interval, in percent, that a reactor waits for a processor when it shares it with
/// another busy thread. Kernel threads on a processor of its own cost it less than 1 %.
const SHARED_PERCENT: u128 = 4;

/// Part of an interval, in percent, below which an interval is calm.
const CALM_PERCENT: u128 = 1;

/// Part of each wait that does not count: a wake-up costs 2 to 5 us on a processor of its own as
/// well, 20,000 times a second when one client sends one request at a time, and a reactor that
/// offers its processor to that client waits for its turn of 20 us. Another busy thread keeps a
/// processor for hundreds.
const WAKE_UP: Duration = Duration::from_micros(40);

/// Duration of calm after which the processor counts as the reactor's own again.
const CALM: Duration = Duration::from_secs(2);

/// Decides from a thread's waiting times if its processor is shared.
#[derive(Debug)]
pub(crate) struct CoreSharing {
    is_shared: bool,
    /// Time of the last look, and the totals then; `None` before the first look.
    last: Option<(Instant, ProcessorWaits)>,
    next: Instant,
    /// End of the last interval that was not calm.
    disturbed: Instant,
    /// Mean duration of the waits of the last interval.
    mean_wait: Duration,
}

impl CoreSharing {
    /// Creates the state of a thread that has its processor for itself.
    pub(crate) fn new() -> CoreSharing {
        let zero = Instant(0);
        let mean_wait = Duration::ZERO;
        CoreSharing { is_shared: false, last: None, next: zero, disturbed: zero, mean_wait }
    }

    /// Returns whether to look at the waiting time.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Processes the thread's total waiting time. Returns whether the processor is shared.
    pub(crate) fn observe(&mut self, now: Instant, waits: ProcessorWaits) -> bool {
        let (before, earlier) = self.last.unwrap_or((now, waits));
        self.last = Some((now, waits));
        self.next = now + INTERVAL;
        let interval = now.since(before).as_nanos();
        let count = waits.count.saturating_sub(earlier.count);
        let wake_ups = WAKE_UP.as_nanos() * u128::from(count);
        let waited = waits.time.saturating_sub(earlier.time);
        self.mean_wait = waited / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let waiting = 100 * waited.as_nanos().saturating_sub(wake_ups);
        if waiting > CALM_PERCENT * interval {
            self.disturbed = now;
        }
        if waiting > SHARED_PERCENT * interval {
            self.is_shared = true;
        } else if now.since(self.disturbed) >= CALM {
            self.is_shared = false;
        }
        self.is_shared
    }
}

/// Times at which a thread could run and waited for a processor, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessorWaits {
    /// Total duration.
    pub(crate) time: Duration,
    /// Number of times that the thread got a processor.
    pub(crate) count: u64,
}

/// The system's count of the time that a thread has waited for a processor although it could run.
#[derive(Debug)]
pub(crate) struct RunQueueWait {
    /// `None` if the system does not count it.
    file: Option<File>,
}

impl RunQueueWait {
    /// Opens the count of the calling thread.
    pub(crate) fn of_this_thread() -> RunQueueWait {
        RunQueueWait { file: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// Returns the waits of the thread; `None` if the system does not count them.
    pub(crate) fn total(&self) -> Option<ProcessorWaits> {
        let mut text = [0; 64];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(std::str::from_utf8(text.get(..length)?).ok()?)
    }
}

/// The processors on which a reactor runs.
#[derive(Debug)]
pub(crate) struct Processors {
    /// The reactor is bound to this one while it does not share it; `None`: never bound.
    own: Option<usize>,
    /// All processors of the process.
    all: Vec<usize>,
    /// `None` if sharing is not detected.
    detection: Option<(RunQueueWait, CoreSharing)>,
    is_shared: bool,
}

impl Processors {
    /// Creates the state of the calling thread, and binds it to its own processor if it has one.
    pub(crate) fn of_this_thread(own: Option<usize>, all: Vec<usize>, detects: bool) -> Processors {
        let detection = detects.then(|| (RunQueueWait::of_this_thread(), CoreSharing::new()));
        let processors = Processors { own, all, detection, is_shared: false };
        processors.bind();
        processors
    }

    /// Looks at the waiting time if that is due. Returns whether the processors are shared if
    /// that has changed. A reactor that shares its processor is not bound to it any more.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant) -> Option<bool> {
        let (wait, sharing) = self.detection.as_mut().filter(|(_, it)| it.is_due(now))?;
        let Some(waits) = wait.total() else {
            self.detection = None;
            return None;
        };
        let is_shared = sharing.observe(now, waits);
        if is_shared == self.is_shared {
            return None;
        }
        self.is_shared = is_shared;
        self.bind();
        Some(is_shared)
    }

    /// Returns for how long this thread has waited for a processor each time, on average of the
    /// last interval; zero if that is not detected.
    pub(crate) fn mean_wait(&self) -> Duration {
        self.detection.as_ref().map_or(Duration::ZERO, |(_, sharing)| sharing.mean_wait)
    }

    fn bind(&self) {
        if let Some(own) = &self.own {
            cpus::pin_to(if self.is_shared { &self.all } else { std::slice::from_ref(own) });
        }
    }
}

/// Parses "running waiting slices", of which the first two are in nanoseconds.
fn parse(text: &str) -> Option<ProcessorWaits> {
    let mut numbers = text.split_whitespace().skip(1).map(|number| number.parse().ok());
    let time = numbers.next()?.map(Duration::from_nanos)?;
    Some(ProcessorWaits { time, count: numbers.next()?? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    #[test]
    fn a_thread_that_waits_shares_its_processor_until_it_was_calm_for_long() {
        let mut sharing = CoreSharing::new();
        let ms = |millis| ProcessorWaits { time: Duration::from_millis(millis), count: 7 };
        assert!(!sharing.observe(at(0), ms(700)), "earlier waiting does not count");
        assert!(!sharing.is_due(at(9)) && sharing.is_due(at(10)));
        assert!(!sharing.observe(at(50), ms(701)), "2 %");
        assert!(sharing.observe(at(100), ms(704)), "6 %");
        assert!(sharing.observe(at(150), ms(705)), "2 % is not calm");
        assert!(sharing.observe(at(2_100), ms(706)), "1.95 s");
        assert!(!sharing.observe(at(2_150), ms(706)));
        assert!(sharing.observe(at(2_200), ms(709)));
    }

    #[test]
    fn wake_ups_are_no_sharing() {
        let mut sharing = CoreSharing::new();
        let waits = |micros, count| ProcessorWaits { time: Duration::from_micros(micros), count };
        assert!(!sharing.observe(at(0), waits(0, 0)));
        assert!(!sharing.observe(at(10), waits(2_000, 400)), "400 wake-ups of 5 us");
        assert!(sharing.observe(at(20), waits(4_000, 404)), "four waits of 500 us");
        assert_eq!(sharing.mean_wait, Duration::from_micros(500));
        assert!(sharing.observe(at(30), waits(4_000, 404)));
        assert_eq!(sharing.mean_wait, Duration::ZERO, "no wait in an interval");
    }

    #[test]
    fn the_waits_are_the_second_and_third_number() {
        let waits = ProcessorWaits { time: Duration::from_nanos(143_424), count: 2 };
        assert_eq!(parse("297834 143424 2\n"), Some(waits));
        assert_eq!(parse("297834 143424"), None);
        assert_eq!(parse("a b c"), None);
    }

    #[test]
    fn the_system_counts_the_waiting_time_of_a_thread() {
        let wait = RunQueueWait::of_this_thread();
        let is_counted = std::path::Path::new("/proc/thread-self/schedstat").exists();
        assert_eq!(wait.total().is_some(), is_counted);
    }
}
