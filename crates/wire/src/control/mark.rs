//! Positions in the history of a cluster's configuration.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A position in the history of a cluster's configuration: the last transaction that a
/// coordinator has committed.
///
/// A mark proves that the history has reached this position. If a coordinator's own store does
/// not contain a mark that it receives, the store is older than the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryMark {
    /// Term of the coordinator that committed the transaction.
    pub term: u64,
    /// Random number of that term; two copies of one store may reach the same term numbers.
    pub term_id: u64,
    /// Number of the transaction.
    pub transaction: u64,
}

impl fmt::Display for HistoryMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {} of term {}", self.transaction, self.term)
    }
}

impl HistoryMark {
    /// Returns whether this position is later than `other`.
    pub fn is_after(&self, other: &HistoryMark) -> bool {
        (self.term, self.transaction) > (other.term, other.transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_term_is_after_all_transactions_of_an_earlier_one() {
        let mark = |term, transaction| HistoryMark { term, term_id: 9, transaction };
        assert!(mark(2, 1).is_after(&mark(1, 50)));
        assert!(mark(1, 51).is_after(&mark(1, 50)));
        assert!(!mark(1, 50).is_after(&mark(1, 50)) && !mark(1, 50).is_after(&mark(2, 1)));
    }
}
