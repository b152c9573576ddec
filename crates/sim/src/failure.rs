//! The rules that a run may break, and what comes of one.

use std::fmt;
use std::time::Duration;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Fingerprint of everything that happened.
    pub trace: u64,
    /// Operations that clients have finished.
    pub operations: usize,
    /// Migrations that have ended with a change of owner.
    pub moved: usize,
    /// Migrations that were refused, cancelled or given up.
    pub not_moved: usize,
    /// How long clients worked, by virtual time.
    pub worked: Duration,
    /// Operations that servers refused.
    pub refused: usize,
    /// The longest time that a client waited for an operation.
    pub longest: Duration,
    /// The rule that was broken, if one was.
    pub failure: Option<Failure>,
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub rule: Rule,
    /// How.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// Defines the rules, each with its name and its sentence.
macro_rules! rules {
    ($($rule:ident, $name:literal, $sentence:literal;)*) => {
        /// What must hold in every run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = $sentence] $rule,)*
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Rule] = &[$(Rule::$rule),*];

            /// Its name, as it is printed.
            pub fn name(self) -> &'static str {
                match self { $(Rule::$rule => $name,)* }
            }

            /// What it says.
            pub fn sentence(self) -> &'static str {
                match self { $(Rule::$rule => $sentence,)* }
            }
        }
    };
}

rules! {
    Linearizable, "linearizable",
        "What clients saw can have happened, register by register, in one order.";
    Decided, "decided",
        "The checker follows every possibility to its end.";
    InOrder, "in-order",
        "Replies come in the order of their requests, and each makes sense as an answer to its own.";
    WalksComplete, "walks-complete",
        "A walk shows every key that is there from its beginning to its end and does not move.";
    WholePairs, "whole-pairs",
        "Two keys that are only written together are never seen half written.";
    OneOwner, "one-owner",
        "No hash is served by two servers.";
    EpochsRise, "epochs-rise",
        "A hash is never served under an epoch that has passed.";
    MapsRise, "maps-rise",
        "No server goes back to an older map.";
    LostStaysLost, "lost-stays-lost",
        "What a server held that has died is served by nobody who holds an old copy.";
    ProgressFollowsReplay, "progress-follows-replay",
        "What the progress has passed is at the target, unless it was deleted there or has expired.";
    AskedOnce, "asked-once",
        "What the source has not is not asked for again and again.";
    NoCircles, "no-circles",
        "Servers do not send a client in circles.";
    Answered, "answered",
        "Every operation is answered, and every server whose range is not lost answers with data.";
    MigrationsEnd, "migrations-end",
        "Every migration that was asked for ends, unless one of its servers has died.";
    AsksAnswered, "asks-answered",
        "Every request for a move is refused, or each of its moves gets a number of its own.";
    ServersSettle, "servers-settle",
        "When everything has ended, every server hears the coordinator and serves all that it holds.";
    NothingLost, "nothing-lost",
        "What the last read of a register saw is found at one server.";
    NothingStray, "nothing-stray",
        "A server holds nothing outside of its ranges, and no record that reads do not see.";
    CountsMatch, "counts-match",
        "Records and live bytes are counted as a walk finds them.";
    NoPanic, "no-panic",
        "No assertion of the real code fails.";
}

impl Rule {
    /// The rule was broken, in this way.
    pub(crate) fn broken(self, text: impl Into<String>) -> Failure {
        Failure { rule: self, text: text.into() }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
