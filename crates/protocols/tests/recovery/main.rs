//! Recovery masters and backups that hold replicas of a dead server's log.
//!
//! `scripts` runs the golden scripts in `src/recovery/scripts`; `model` recovers random logs while
//! messages get lost, replicas turn out damaged and backups die, and asks whether what is called
//! recovered is.

mod backups;
mod model;
mod scripts;
