//! The synchronization that is checked by shuttle: the standard library's, or its stand-in.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
