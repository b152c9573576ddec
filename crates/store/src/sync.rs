//! Atomics, locks and fences: the standard ones, or shuttle's when interleavings are explored
//! (feature `shuttle`). Everything in this crate that threads share is built from these.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
