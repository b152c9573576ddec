//! The only place of this crate that reads the clock or sleeps.

#![allow(clippy::disallowed_methods, reason = "a load generator measures time and waits for it")]

use std::sync::LazyLock;
use std::time::Duration;
use types::Instant;

/// Time at which the process first read the clock; every [`Instant`] counts from here.
static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// Returns the current time.
#[inline]
pub fn now() -> Instant {
    Instant(START.elapsed().as_nanos() as u64)
}

/// Sleeps at least this long.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Returns the processor time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
