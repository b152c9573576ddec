//! The source's side of one migration: it decides when the source serves, holds, redirects or
//! forgets the range. See `docs/design/migration.md`, "Freeze" and "Decision".
//!
//! The source answers pulls without keeping state about them, so pulls do not pass through this
//! machine; [`MigrationSource::keeps`] decides whether the source may still answer for a hash.
//!
//! Invariants:
//! - A flip leaves only after every reactor has begun a turn since the range was frozen.
//! - After a flip has left, the source serves the range again only if the target has committed
//!   itself, to the source or to the coordinator, never to accept it.
//! - The set of kept hashes only shrinks, and each hash is forgotten once.

mod events;

pub use events::{FrozenState, SourceEffect, SourceEvent};

use super::ranges;
use super::timing::{
    FLIP_AGAIN, FLIP_UNANSWERED, FREEZE_AGAIN, FREEZE_LONGEST, FREEZE_MAX, FREEZES_MAX,
    FREEZING_MAX, TELL_AGAIN,
};
use crate::{Machine, Outbox};
use planted::Bug;
use std::fmt;
use std::time::Duration;
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId};
use wire::control::{Intent, MigrationUpdate};
use wire::peer::{Flip, PeerMessage};
use wire::text::list;

/// The source of one migration. The driver creates it at the first message about the migration.
#[derive(Debug)]
pub struct MigrationSource {
    migration: MigrationId,
    /// The intent, once the coordinator has sent it. It outlives the states that act on it: late
    /// messages are judged by it.
    intent: Option<Box<Intent>>,
    state: SourceState,
}

#[derive(Debug)]
enum SourceState {
    /// The coordinator has not asked for the flip yet; the range is served.
    Waiting,
    /// The range is served, and the writes so far are being acknowledged.
    CatchingUp { attempt: FreezeAttempt, since: Instant },
    /// New operations on the range are held, and earlier ones are finishing.
    Freezing { attempt: FreezeAttempt, since: Instant },
    /// The range is served again for a while, because freezing took too long.
    Resting { attempt: FreezeAttempt, until: Instant },
    /// The range is served; the coordinator and the target must end the intent.
    GivenUp { ask_at: Instant },
    /// A flip is in flight. The range is held until the outcome is known.
    Flipping { flip: Box<Flip>, target: ServerId, flip_at: Instant, ask_at: Instant },
    /// The target serves the range, and still needs the source's copy of `kept`.
    Leaving { kept: Vec<HashRange>, forgetting: Vec<HashRange> },
    /// The source holds nothing of the range.
    Released,
    /// The intent was withdrawn; the range is served.
    Withdrawn,
}

/// One attempt to freeze the range, with the time limits of all attempts.
#[derive(Clone, Debug)]
struct FreezeAttempt {
    intent: Box<Intent>,
    /// Number of the attempt, from 1 to [`FREEZES_MAX`].
    number: u32,
    /// End of the time for all attempts together.
    until: Instant,
    /// Time for which one attempt may hold the range.
    freeze_max: Duration,
}

impl FreezeAttempt {
    fn first(now: Instant, intent: Box<Intent>) -> FreezeAttempt {
        FreezeAttempt { intent, number: 1, until: now + FREEZING_MAX, freeze_max: FREEZE_MAX }
    }

    /// Returns the attempt that follows this one.
    fn next(&self) -> FreezeAttempt {
        assert!(self.number < FREEZES_MAX, "no attempt follows attempt {FREEZES_MAX}");
        FreezeAttempt { number: self.number + 1, ..self.clone() }
    }

    /// Adapts the limit to a measured acknowledgment time. A write just before the freeze may
    /// take as long again, plus once more for the write it waits behind.
    fn record_acknowledgment(&mut self, took: Duration) {
        let wanted = (FREEZE_MAX + 2 * took).min(FREEZE_LONGEST);
        self.freeze_max = self.freeze_max.max(wanted);
        assert!(
            (FREEZE_MAX..=FREEZE_LONGEST).contains(&self.freeze_max),
            "an attempt holds the range for a bounded time: {:?}",
            self.freeze_max
        );
    }

    /// Returns the pause after an attempt: the range is frozen for at most a fifth of the time.
    fn pause(&self) -> Duration {
        FREEZE_AGAIN.max(4 * self.freeze_max)
    }
}

impl MigrationSource {
    /// Creates the source of a migration of which only the id is known.
    pub fn new(migration: MigrationId) -> MigrationSource {
        MigrationSource { migration, intent: None, state: SourceState::Waiting }
    }

    /// Returns whether a pull may be answered from the index for this hash. If not, the source
    /// has forgotten the hash or is about to, and the answer is *gone*.
    pub fn keeps(&self, hash: KeyHash) -> bool {
        // An answer to a pull proves to the target that the source knows of the acceptance. A pull
        // that arrives before the answer to the flip is itself that answer: see
        // [`MigrationSource::expects_answer`].
        let SourceState::Leaving { kept, .. } = &self.state else { return false };
        kept.iter().any(|range| range.contains(hash))
    }

    /// Returns whether the outcome of the flip is open. A pull from the target then first counts
    /// as the answer to the flip ([`SourceEvent::FlipAnswered`]).
    pub fn expects_answer(&self) -> bool {
        matches!(self.state, SourceState::Flipping { .. })
    }

    /// Returns the id of the migration.
    pub fn migration(&self) -> MigrationId {
        self.migration
    }

    /// Returns the intent, once the coordinator has sent it.
    pub fn intent(&self) -> Option<&Intent> {
        self.intent.as_deref()
    }

    /// Returns whether the migration has ended here. The driver keeps the machine as a record.
    pub fn is_over(&self) -> bool {
        matches!(self.state, SourceState::Released | SourceState::Withdrawn)
    }
}

impl Machine for MigrationSource {
    type Event = SourceEvent;
    type Effect = SourceEffect;

    const TICK: SourceEvent = SourceEvent::Tick;

    fn handle(&mut self, now: Instant, event: SourceEvent, out: &mut Outbox<SourceEffect>) {
        let (was_over, has_flipped) = (self.is_over(), self.has_flipped());
        match event {
            SourceEvent::Start(intent) => self.start(now, intent, out),
            SourceEvent::CaughtUp { attempt } => self.caught_up(now, attempt, out),
            SourceEvent::Frozen { attempt, at } => self.flip(now, attempt, *at, out),
            SourceEvent::FreezeRefused { attempt } => self.refuse(now, attempt, out),
            SourceEvent::FlipAnswered { from, accepted } => {
                if self.target() == Some(from) {
                    self.end_flip(accepted, out);
                    if !accepted {
                        self.report_withdrawn(out);
                    }
                }
            }
            SourceEvent::Outcome { accepted } => self.end_flip(accepted, out),
            SourceEvent::Forget { remaining } => self.forget(&remaining, out),
            SourceEvent::Returned { range } => self.returned(range, out),
            SourceEvent::Forgotten { range } => self.forgotten(range, out),
            SourceEvent::Tick => {}
        }
        self.reconcile(now, out);
        assert!(!was_over || self.is_over(), "an ended migration begins again: {self}");
        assert!(!has_flipped || self.has_flipped(), "the target serves the range: {self}");
        self.check();
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            SourceState::CatchingUp { attempt, .. } => Some(attempt.until),
            SourceState::Freezing { attempt, since } => Some(*since + attempt.freeze_max),
            SourceState::Resting { until, .. } => Some(*until),
            SourceState::GivenUp { ask_at } => Some(*ask_at),
            SourceState::Flipping { flip_at, ask_at, .. } => Some(*flip_at.min(ask_at)),
            SourceState::Waiting
            | SourceState::Leaving { .. }
            | SourceState::Released
            | SourceState::Withdrawn => None,
        }
    }
}

impl MigrationSource {
    /// Returns whether the target is known to serve the range.
    fn has_flipped(&self) -> bool {
        matches!(self.state, SourceState::Leaving { .. } | SourceState::Released)
    }

    /// Checks the invariants of the state.
    fn check(&self) {
        match &self.state {
            SourceState::CatchingUp { attempt, .. }
            | SourceState::Freezing { attempt, .. }
            | SourceState::Resting { attempt, .. } => {
                assert!((1..=FREEZES_MAX).contains(&attempt.number), "{self}");
            }
            SourceState::Flipping { flip, .. } => {
                assert_eq!(flip.migration, self.migration, "a flip is of its source's migration");
            }
            SourceState::Leaving { kept, forgetting } => {
                assert!(ranges::are_disjoint(kept), "a hash is kept twice: {self}");
                assert!(
                    forgetting.iter().all(|gone| kept.iter().all(|kept| !kept.overlaps(*gone))),
                    "a hash is kept and forgotten: {self}"
                );
            }
            SourceState::Waiting
            | SourceState::GivenUp { .. }
            | SourceState::Released
            | SourceState::Withdrawn => {}
        }
    }

    /// Returns the target, the only server that may answer a flip.
    fn target(&self) -> Option<ServerId> {
        let SourceState::Flipping { target, .. } = self.state else { return None };
        Some(target)
    }

    fn start(&mut self, now: Instant, intent: Box<Intent>, out: &mut Outbox<SourceEffect>) {
        self.intent = Some(intent.clone());
        match &self.state {
            SourceState::Waiting => self.catch_up(now, FreezeAttempt::first(now, intent), out),
            // The coordinator has not heard of the withdrawal.
            SourceState::Withdrawn => self.report_withdrawn(out),
            SourceState::Leaving { .. } => {
                out.push(SourceEffect::Tell(MigrationUpdate::Flipped {
                    migration: self.migration,
                }));
            }
            // The source asks by itself if necessary, or the message is late.
            SourceState::CatchingUp { .. }
            | SourceState::Freezing { .. }
            | SourceState::Resting { .. }
            | SourceState::GivenUp { .. }
            | SourceState::Flipping { .. }
            | SourceState::Released => {}
        }
    }

    /// Asks the coordinator to query the target, which may have withdrawn its promise by itself.
    fn report_withdrawn(&self, out: &mut Outbox<SourceEffect>) {
        out.push(SourceEffect::Tell(MigrationUpdate::FlipUnanswered { migration: self.migration }));
    }

    fn catch_up(&mut self, now: Instant, attempt: FreezeAttempt, out: &mut Outbox<SourceEffect>) {
        out.push(SourceEffect::CatchUp { attempt: attempt.number });
        self.state = SourceState::CatchingUp { attempt, since: now };
    }

    fn caught_up(&mut self, now: Instant, number: u32, out: &mut Outbox<SourceEffect>) {
        let SourceState::CatchingUp { attempt, since } = &self.state else { return };
        if attempt.number != number {
            return;
        }
        let mut attempt = attempt.clone();
        attempt.record_acknowledgment(now.since(*since));
        let (range, epoch) = (attempt.intent.range, attempt.intent.source_epoch);
        out.push(SourceEffect::Freeze { range, epoch, attempt: number });
        self.state = SourceState::Freezing { attempt, since: now };
    }

    fn flip(&mut self, now: Instant, number: u32, at: FrozenState, out: &mut Outbox<SourceEffect>) {
        let SourceState::Freezing { attempt, .. } = &self.state else { return };
        if attempt.number != number {
            return;
        }
        let intent = &attempt.intent;
        let flip = Flip {
            migration: self.migration,
            range: intent.range,
            source_epoch: intent.source_epoch,
            target_epoch: intent.target_epoch,
            version_floor: at.version_floor,
            expiry_clock: at.expiry_clock,
            records: at.records,
        };
        let target = intent.target;
        out.push(SourceEffect::Send { to: target, message: PeerMessage::Flip(flip.clone()) });
        self.state = SourceState::Flipping {
            flip: Box::new(flip),
            target,
            flip_at: now + FLIP_AGAIN,
            ask_at: now + FLIP_UNANSWERED,
        };
    }

    fn refuse(&mut self, now: Instant, number: u32, out: &mut Outbox<SourceEffect>) {
        if matches!(&self.state, SourceState::Freezing { attempt, .. } if attempt.number == number)
        {
            self.give_up(now, out);
        }
    }

    /// Gives up freezing. No flip was sent, so the coordinator can end the intent at the target.
    fn give_up(&mut self, now: Instant, out: &mut Outbox<SourceEffect>) {
        assert!(!self.expects_answer() && !self.has_flipped(), "a flip was sent: {self}");
        out.push(SourceEffect::Tell(MigrationUpdate::FlipUnanswered { migration: self.migration }));
        self.state = SourceState::GivenUp { ask_at: now + TELL_AGAIN };
    }

    fn end_flip(&mut self, accepted: bool, out: &mut Outbox<SourceEffect>) {
        if accepted { self.leave(out) } else { self.withdraw(out) }
    }

    fn leave(&mut self, out: &mut Outbox<SourceEffect>) {
        // Only a flip in flight can be accepted; a later acceptance is a repetition.
        let SourceState::Flipping { flip, target, .. } = &self.state else { return };
        let (range, to, epoch) = (flip.range, *target, flip.target_epoch);
        out.push(SourceEffect::Leave { range, to, epoch });
        out.push(SourceEffect::Tell(MigrationUpdate::Flipped { migration: self.migration }));
        self.state = SourceState::Leaving { kept: vec![range], forgetting: Vec::new() };
    }

    fn withdraw(&mut self, out: &mut Outbox<SourceEffect>) {
        match &self.state {
            SourceState::Freezing { attempt, .. } => {
                out.push(SourceEffect::Thaw { range: attempt.intent.range });
            }
            SourceState::Flipping { flip, .. } => {
                out.push(SourceEffect::Thaw { range: flip.range })
            }
            SourceState::Waiting
            | SourceState::CatchingUp { .. }
            | SourceState::Resting { .. }
            | SourceState::GivenUp { .. } => {}
            // The target never changes its answer, so this outcome does not apply to this state.
            SourceState::Leaving { .. } | SourceState::Released | SourceState::Withdrawn => return,
        }
        self.state = SourceState::Withdrawn;
        assert!(!self.expects_answer(), "a withdrawn migration expects no answer: {self}");
    }

    fn forget(&mut self, remaining: &[HashRange], out: &mut Outbox<SourceEffect>) {
        // The target has replayed records, hence it has accepted; this message overtook the answer.
        self.leave(out);
        match &mut self.state {
            SourceState::Leaving { kept, forgetting } => {
                let unneeded = ranges::without(kept, remaining);
                *kept = ranges::without(kept, &unneeded);
                for range in unneeded {
                    out.push(SourceEffect::Forget { range });
                    forgetting.push(range);
                }
                self.release_if_empty(out);
            }
            // The first report was lost.
            SourceState::Released => {
                out.push(SourceEffect::Tell(MigrationUpdate::Released {
                    migration: self.migration,
                }));
            }
            // The target died and counts as having accepted. The ranges that it did not have
            // returned to this source, which never sent a flip. The request to start may arrive
            // after their return, so the source may have begun to freeze a range that it keeps.
            SourceState::Waiting
            | SourceState::CatchingUp { .. }
            | SourceState::Freezing { .. }
            | SourceState::Resting { .. }
            | SourceState::GivenUp { .. }
            | SourceState::Withdrawn
                if remaining.is_empty() =>
            {
                if let SourceState::Freezing { attempt, .. } = &self.state {
                    out.push(SourceEffect::Thaw { range: attempt.intent.range });
                }
                out.push(SourceEffect::Tell(MigrationUpdate::Released {
                    migration: self.migration,
                }));
                self.state = SourceState::Released;
            }
            SourceState::Waiting
            | SourceState::CatchingUp { .. }
            | SourceState::Freezing { .. }
            | SourceState::Resting { .. }
            | SourceState::GivenUp { .. }
            | SourceState::Flipping { .. }
            | SourceState::Withdrawn => {}
        }
    }

    fn forgotten(&mut self, range: HashRange, out: &mut Outbox<SourceEffect>) {
        let SourceState::Leaving { forgetting, .. } = &mut self.state else {
            unreachable!("{} deleted {range} without a request: {:?}", self.migration, self.state);
        };
        let place = forgetting.iter().position(|&asked| asked == range);
        forgetting.swap_remove(place.expect("a range is deleted once, and only on request"));
        self.release_if_empty(out);
    }

    fn release_if_empty(&mut self, out: &mut Outbox<SourceEffect>) {
        if let SourceState::Leaving { kept, forgetting } = &self.state
            && kept.is_empty()
            && forgetting.is_empty()
        {
            out.push(SourceEffect::Release);
            out.push(SourceEffect::Tell(MigrationUpdate::Released { migration: self.migration }));
            self.state = SourceState::Released;
        }
    }

    fn returned(&mut self, range: HashRange, out: &mut Outbox<SourceEffect>) {
        // The target counts as having accepted.
        self.leave(out);
        match &mut self.state {
            SourceState::Leaving { kept, .. } => *kept = ranges::without(kept, &[range]),
            // No flip was sent, and none will be: the range never left this server.
            SourceState::Freezing { attempt, .. } => {
                out.push(SourceEffect::Thaw { range: attempt.intent.range });
                self.state = SourceState::Leaving { kept: Vec::new(), forgetting: Vec::new() };
            }
            SourceState::Waiting
            | SourceState::CatchingUp { .. }
            | SourceState::Resting { .. }
            | SourceState::GivenUp { .. } => {
                self.state = SourceState::Leaving { kept: Vec::new(), forgetting: Vec::new() };
            }
            SourceState::Flipping { .. } | SourceState::Released | SourceState::Withdrawn => {}
        }
    }

    /// Takes the steps that are due.
    fn reconcile(&mut self, now: Instant, out: &mut Outbox<SourceEffect>) {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let migration = self.migration;
        match &mut self.state {
            SourceState::Freezing { attempt, .. } => {
                out.push(SourceEffect::Thaw { range: attempt.intent.range });
                let again = now + attempt.pause();
                if attempt.number == FREEZES_MAX || again >= attempt.until {
                    self.give_up(now, out);
                } else {
                    self.state = SourceState::Resting { attempt: attempt.clone(), until: again };
                }
            }
            SourceState::Resting { attempt, .. } => {
                let next = attempt.next();
                self.catch_up(now, next, out);
            }
            SourceState::CatchingUp { .. } | SourceState::GivenUp { .. } => self.give_up(now, out),
            SourceState::Flipping { flip, target, flip_at, ask_at } => {
                if now >= *flip_at {
                    let message = PeerMessage::Flip(Flip::clone(flip));
                    out.push(SourceEffect::Send { to: *target, message });
                    *flip_at = now + FLIP_AGAIN;
                }
                if now >= *ask_at {
                    out.push(SourceEffect::Tell(MigrationUpdate::FlipUnanswered { migration }));
                    let is_last = planted::is(Bug::OutcomeAskedOnce);
                    *ask_at = if is_last { Instant(u64::MAX) } else { now + TELL_AGAIN };
                }
            }
            SourceState::Waiting
            | SourceState::Leaving { .. }
            | SourceState::Released
            | SourceState::Withdrawn => {}
        }
    }
}

impl fmt::Display for MigrationSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source of {}: ", self.migration)?;
        match &self.state {
            SourceState::Waiting => f.write_str("waiting"),
            SourceState::CatchingUp { attempt, .. } => {
                write!(f, "catching up, attempt {}", attempt.number)
            }
            SourceState::Freezing { attempt, .. } => {
                write!(f, "freezing, attempt {}", attempt.number)
            }
            SourceState::Resting { attempt, .. } => {
                write!(f, "resting after attempt {}", attempt.number)
            }
            SourceState::GivenUp { .. } => f.write_str("given up"),
            SourceState::Flipping { target, .. } => write!(f, "flipping to {target}"),
            SourceState::Leaving { kept, forgetting } => {
                write!(f, "leaving, keeps {}", list(kept))?;
                if forgetting.is_empty() {
                    return Ok(());
                }
                write!(f, ", forgets {}", list(forgetting))
            }
            SourceState::Released => f.write_str("released"),
            SourceState::Withdrawn => f.write_str("withdrawn"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{OwnershipEpoch, UnixMillis, Version};
    use wire::peer::RecordCounts;

    #[test]
    #[should_panic(expected = "a hash is kept and forgotten")]
    fn a_hash_is_not_kept_and_forgotten() {
        let range = HashRange::ALL;
        let state = SourceState::Leaving { kept: vec![range], forgetting: vec![range] };
        MigrationSource { migration: MigrationId(1), intent: None, state }.check();
    }

    #[test]
    #[should_panic(expected = "a flip is of its source's migration")]
    fn a_flip_is_of_its_migration() {
        let flip = Flip {
            migration: MigrationId(2),
            range: HashRange::ALL,
            source_epoch: OwnershipEpoch(1),
            target_epoch: OwnershipEpoch(2),
            version_floor: Version(0),
            expiry_clock: UnixMillis(0),
            records: RecordCounts::default(),
        };
        let (target, at) = (ServerId(2), Instant(0));
        let state = SourceState::Flipping { flip: Box::new(flip), target, flip_at: at, ask_at: at };
        MigrationSource { migration: MigrationId(1), intent: None, state }.check();
    }
}
