//! A durable store, its log on a disk, and crashes.

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod inherited;
mod marked;
mod marks;
mod ordered;
mod random;
mod scenario;
mod simple;
mod transfers;
mod world;
