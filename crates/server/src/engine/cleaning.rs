//! When this reactor cleans, and what writers may expect of it.
//!
//! As long as a good part of the memory is free, cleaning is background work like any other. When
//! less is free than half of what the cleaner aims at, its share of every reactor rises, up to a
//! quantum after each turn when nothing is left: writers are slowed down to what can be cleaned.
//! A write that finds no memory waits for it, and is refused only when nothing more can be won.

use super::Engine;
use crate::operators::counts::Background;
use std::time::Duration;
use types::Instant;

/// How long the cleaner rests when it finds nothing worth cleaning: a full server that nobody
/// writes to sleeps, and one that is written to at 1 GB/s has overwritten a quarter of a segment.
const PAUSE: Duration = Duration::from_millis(2);

/// How long it rests when it must wait for other reactors: for a quantum of theirs.
const PAUSE_FOR_OTHERS: Duration = Duration::from_micros(50);

/// A reactor's part in cleaning.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    /// Until when it rests although memory is low.
    rests: Option<Instant>,
    /// Whether it had the quantum before this one, ahead of other work.
    was_first: bool,
}

impl Cleaner {
    pub(super) fn begin_turn(&mut self, now: Instant) {
        self.rests = self.rests.filter(|until| *until > now);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.rests
    }
}

impl Engine {
    pub(super) fn may_clean(&self) -> bool {
        self.cleaner.rests.is_none() && self.node.store().log().is_low()
    }

    /// A quantum of cleaning. `None`: nothing is to be cleaned, or nothing can be now.
    pub(super) fn clean(&mut self, now: Instant) -> Option<Background> {
        if self.worker.clean() {
            return Some(Background::Clean);
        }
        let is_exhausted = self.node.store().log().is_exhausted();
        let pause = if is_exhausted { PAUSE } else { PAUSE_FOR_OTHERS };
        self.cleaner.rests = Some(now + pause);
        None
    }

    /// Cleaning ahead of other background work, every other time, when writers find no memory.
    pub(super) fn clean_first(&mut self, now: Instant) -> Option<Background> {
        let is_turn = !std::mem::take(&mut self.cleaner.was_first);
        if !is_turn || self.node.store().log().has_free() || !self.may_clean() {
            return None;
        }
        self.cleaner.was_first = true;
        self.clean(now)
    }

    /// The background's minimum share of this reactor's running time, in percent.
    pub fn background_share(&self) -> u8 {
        let share = self.node.background_share();
        match self.may_clean() {
            true => share.max(self.node.store().log().shortage_percent()),
            false => share,
        }
    }

    /// Whether a write that has found no memory may find some later.
    pub(crate) fn may_win_memory(&self) -> bool {
        !self.node.store().log().is_exhausted()
    }

    /// Whether requests that wait for memory are to be tried again: there is some, or there will
    /// be none.
    pub(crate) fn has_news_of_memory(&self) -> bool {
        self.node.store().log().has_free() || !self.may_win_memory()
    }
}
