//! Tests of recovery masters, with backups that hold replicas of a dead server's log.
//!
//! `scripts` runs the golden scripts in `src/recovery/scripts`. `model` recovers random logs while
//! messages are lost, replicas are damaged and backups die, and checks the reported results.

mod backups;
mod model;
mod scripts;
