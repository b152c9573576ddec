//! Positions in the history of a cluster's configuration.

use serde::{Deserialize, Serialize};

/// A position in the history of a cluster's configuration: the transaction that a coordinator has
/// committed last.
///
/// Whoever hears of a mark knows that the history has come so far. A coordinator that is told of a
/// mark which its own store does not contain has a store that is older than the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Term of the coordinator that committed it.
    pub term: u64,
    /// Random number of that term: two stores that were copied from one may count the same terms.
    pub term_id: u64,
    /// Number of the transaction.
    pub transaction: u64,
}

impl Mark {
    /// Returns whether the history has come further here than at the other mark.
    pub fn is_after(&self, other: &Mark) -> bool {
        (self.term, self.transaction) > (other.term, other.transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_term_is_after_all_transactions_of_an_earlier_one() {
        let mark = |term, transaction| Mark { term, term_id: 9, transaction };
        assert!(mark(2, 1).is_after(&mark(1, 50)));
        assert!(mark(1, 51).is_after(&mark(1, 50)));
        assert!(!mark(1, 50).is_after(&mark(1, 50)) && !mark(1, 50).is_after(&mark(2, 1)));
    }
}
