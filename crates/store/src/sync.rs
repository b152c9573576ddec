//! Atomics and locks: the standard ones, or shuttle's when the feature `shuttle` explores
//! interleavings. All shared state of this crate is built from these.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
