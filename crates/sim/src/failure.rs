//! What comes of a run, and the rules that it may break.

use std::fmt;
use std::time::Duration;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Fingerprint of everything that happened.
    pub trace: u64,
    /// Operations that clients have finished.
    pub operations: usize,
    /// Migrations that have ended with a change of owner, and without.
    pub moved: usize,
    /// Migrations that were refused, cancelled or given up.
    pub not_moved: usize,
    /// The longest time that a client waited for an operation.
    pub longest: Duration,
    /// The rule that was broken, if one was.
    pub failure: Option<Failure>,
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What clients saw has no explanation.
    NotLinearizable(String),
    /// The checker could not decide.
    GaveUp(String),
    /// A pair of keys was seen half written.
    Torn(String),
    /// A range is served by two servers.
    TwoOwners(String),
    /// What does not exist is asked for again and again.
    AskedAgain(String),
    /// Servers point at each other.
    Circles(String),
    /// The progress has passed a record that is not there.
    ProgressAhead(String),
    /// An operation or a migration does not end.
    Stuck(String),
    /// Records are where they do not belong, or their number is wrong.
    Misplaced(String),
    /// An assertion of the real code failed.
    Panicked(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, text) = match self {
            Failure::NotLinearizable(text) => ("what clients saw is not linearizable", text),
            Failure::GaveUp(text) => ("the checker gave up", text),
            Failure::Torn(text) => ("a command on two keys was seen half done", text),
            Failure::TwoOwners(text) => ("a range has two owners", text),
            Failure::AskedAgain(text) => ("what does not exist is asked for again and again", text),
            Failure::Circles(text) => ("clients are sent in circles", text),
            Failure::ProgressAhead(text) => ("the progress is ahead of the replay", text),
            Failure::Stuck(text) => ("something does not end", text),
            Failure::Misplaced(text) => ("records are not where they belong", text),
            Failure::Panicked(text) => ("an assertion failed", text),
        };
        write!(f, "{rule}: {text}")
    }
}
