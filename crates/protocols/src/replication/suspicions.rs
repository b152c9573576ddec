//! Rate-limited reports to the coordinator about backups that do not answer. A master notices a
//! silent backup before the coordinator does.

use super::timing::SUSPECT_AGAIN;
use std::collections::BTreeMap;
use types::{Instant, ServerId};

/// The earliest time of the next report about each reported backup.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspicions {
    again: BTreeMap<ServerId, Instant>,
}

impl Suspicions {
    /// Records that a backup has not answered for long. Returns whether to report that now.
    pub(super) fn is_news(&mut self, now: Instant, backup: ServerId) -> bool {
        let is_news = self.again.get(&backup).is_none_or(|at| *at <= now);
        if is_news {
            self.again.insert(backup, now + SUSPECT_AGAIN);
        }
        is_news
    }

    pub(super) fn record_death(&mut self, backup: ServerId) {
        self.again.remove(&backup);
    }
}
