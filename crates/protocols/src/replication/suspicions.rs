//! Backups that do not answer, told to the coordinator now and then, so that it need not find out by
//! itself: whoever writes hears of a silent backup first.

use super::timing::SUSPECT_AGAIN;
use std::collections::BTreeMap;
use types::{Instant, ServerId};

/// When each backup may be reported again. Of those that were.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    again: BTreeMap<ServerId, Instant>,
}

impl Suspicions {
    /// A backup has not answered for long. Whether that is to be told now.
    pub(super) fn is_news(&mut self, now: Instant, backup: ServerId) -> bool {
        let is_news = self.again.get(&backup).is_none_or(|at| *at <= now);
        if is_news {
            self.again.insert(backup, now + SUSPECT_AGAIN);
        }
        is_news
    }

    pub(super) fn note_dead(&mut self, backup: ServerId) {
        self.again.remove(&backup);
    }
}
