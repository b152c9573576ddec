//! The source's side of one migration: when it serves, holds, redirects, and may forget.
//!
//! The source answers pulls without keeping any state about them, so they do not pass through
//! here; [`Source::keeps`] tells whether it may still answer for a hash. What matters here is the
//! flip: from the moment the first one leaves until its outcome is known, the source neither
//! serves the range nor sends its clients elsewhere.
//!
//! Freezing waits until every earlier write of the server is acknowledged. So that clients are held
//! only for what comes in last, the source first *catches up* while it serves: it waits for what
//! has been written by then. How long that took tells how long the frozen range may be held.
//!
//! Invariants:
//! - a flip leaves only after every reactor has begun a turn since the range was frozen;
//! - after a flip has left, the range is served here again only if the target has bound itself
//!   never to accept it (it said so itself, or to the coordinator);
//! - what is kept only shrinks, and each hash is forgotten once.

use super::ranges;
use super::text;
use super::timing::{
    FLIP_AGAIN, FLIP_UNANSWERED, FREEZE_AGAIN, FREEZE_LONGEST, FREEZE_MAX, FREEZES_MAX,
    FREEZING_MAX, TELL_AGAIN,
};
use crate::Outbox;
use std::fmt;
use std::time::Duration;
use types::{
    HashRange, Instant, KeyHash, MigrationId, OwnershipEpoch, ServerId, UnixMillis, Version,
};
use wire::control::{Intent, ToCoordinator};
use wire::peer::{Flip, PeerMessage, RecordCounts};

/// The source of one migration. Made when the migration is first heard of, whatever the message.
#[derive(Debug)]
pub struct Source {
    migration: MigrationId,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The coordinator has not asked for the flip yet. The range is served.
    Waiting,
    /// The range is served; what has been written so far is being acknowledged.
    CatchingUp { intent: Box<Intent>, attempt: u32, since: Instant, patience: Patience },
    /// New operations on the range are held; earlier ones are coming to their end.
    Freezing { intent: Box<Intent>, attempt: u32, since: Instant, patience: Patience },
    /// The range is served again for a while because freezing took too long.
    Resting { intent: Box<Intent>, attempt: u32, until: Instant, patience: Patience },
    /// The range is served; somebody else has to end the intent.
    GivenUp { ask_at: Instant },
    /// A flip is on its way. The range is held until the outcome is known.
    Flipping { flip: Box<Flip>, target: ServerId, flip_at: Instant, ask_at: Instant },
    /// The target serves. The copy is kept as far as the target still depends on it.
    Leaving { kept: Vec<HashRange>, forgetting: Vec<HashRange> },
    /// Nothing is left here.
    Released,
    /// The intent was withdrawn; the range is served.
    Withdrawn,
}

/// Time that attempts to freeze may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// When all of them together have taken too long.
    until: Instant,
    /// How long the range may be held in one of them.
    freeze_max: Duration,
}

impl Patience {
    fn from(now: Instant) -> Patience {
        Patience { until: now + FREEZING_MAX, freeze_max: FREEZE_MAX }
    }

    /// Acknowledgments have taken so long: a write that comes just before the freeze may need as
    /// long again, and one more that it waits behind.
    fn note_acknowledged(&mut self, took: Duration) {
        let wanted = (FREEZE_MAX + 2 * took).min(FREEZE_LONGEST);
        self.freeze_max = self.freeze_max.max(wanted);
    }

    /// Pause after an attempt: at most a fifth of the time is frozen.
    fn pause(self) -> Duration {
        FREEZE_AGAIN.max(4 * self.freeze_max)
    }
}

/// What happens to a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEvent {
    /// The coordinator: the target is prepared, flip.
    Start(Box<Intent>),
    /// Everything that was written before [`SourceEffect::CatchUp`] is acknowledged.
    CaughtUp {
        /// As in the effect.
        attempt: u32,
    },
    /// The range is frozen: every reactor has begun a turn since [`SourceEffect::Freeze`].
    Frozen {
        /// As in the effect.
        attempt: u32,
        /// What was found, after the last reactor had begun its turn.
        at: Box<FrozenState>,
    },
    /// The range cannot be frozen, because it is not served here under the intent's epoch.
    FreezeRefused {
        /// As in the effect.
        attempt: u32,
    },
    /// How the flip ended.
    FlipAnswered {
        /// Who says so: only the target's word counts.
        from: ServerId,
        /// Whether the target serves the range.
        accepted: bool,
    },
    /// The coordinator: how the flip ended, or that there will be none.
    Outcome {
        /// Whether the target serves the range.
        accepted: bool,
    },
    /// The coordinator: only these ranges are still needed.
    Forget {
        /// In ascending order.
        remaining: Vec<HashRange>,
    },
    /// The target has died, and this part of what it did not have is ours again: it is not the
    /// migration's business any more.
    Returned {
        /// What of the range.
        range: HashRange,
    },
    /// A [`SourceEffect::Forget`] has been carried out.
    Forgotten {
        /// As in the effect.
        range: HashRange,
    },
    /// Time has passed: [`Source::next_deadline`].
    Tick,
}

/// What the source knows of a range that nobody can change any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenState {
    /// Not below any version of the range: the server's counter.
    pub version_floor: Version,
    /// The highest clock by which expiry was judged here.
    pub expiry_clock: UnixMillis,
    /// Records per table and slot.
    pub records: RecordCounts,
}

/// What a source wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEffect {
    /// Once everything that the server has written by now is acknowledged, say
    /// [`SourceEvent::CaughtUp`]. Ends an earlier one.
    CatchUp {
        /// Number of this attempt, from 1.
        attempt: u32,
    },
    /// Hold every operation on the range; once every reactor has begun a turn since then, say
    /// [`SourceEvent::Frozen`].
    Freeze {
        /// What to freeze.
        range: HashRange,
        /// Epoch under which it must be served here.
        epoch: OwnershipEpoch,
        /// Number of this attempt, from 1.
        attempt: u32,
    },
    /// Serve the range again. Ends an attempt to freeze.
    Thaw {
        /// The range.
        range: HashRange,
    },
    /// Send this to a server.
    Send {
        /// To whom.
        to: ServerId,
        /// What.
        message: PeerMessage,
    },
    /// Answer what was held and what still comes with a redirection.
    Leave {
        /// The range.
        range: HashRange,
        /// Who serves it.
        to: ServerId,
        /// Under which epoch.
        epoch: OwnershipEpoch,
    },
    /// Drop the records of a range, in the background, then say [`SourceEvent::Forgotten`].
    /// Independent work.
    Forget {
        /// The range.
        range: HashRange,
    },
    /// The index holds no record of the range: drop its tablet.
    Release,
    /// Tell the coordinator.
    Tell(ToCoordinator),
}

impl Source {
    /// A source that has heard nothing but the migration's number.
    pub fn new(migration: MigrationId) -> Source {
        Source { migration, state: State::Waiting }
    }

    /// The only way to change a source.
    pub fn handle(&mut self, now: Instant, event: SourceEvent, out: &mut Outbox<SourceEffect>) {
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
        self.settle(now, out);
    }

    /// When [`SourceEvent::Tick`] is due, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::CatchingUp { patience, .. } => Some(patience.until),
            State::Freezing { since, patience, .. } => Some(*since + patience.freeze_max),
            State::Resting { until, .. } => Some(*until),
            State::GivenUp { ask_at } => Some(*ask_at),
            State::Flipping { flip_at, ask_at, .. } => Some(*flip_at.min(ask_at)),
            State::Waiting | State::Leaving { .. } | State::Released | State::Withdrawn => None,
        }
    }

    /// Whether a pull may be answered with what is in the index under this hash. If not, the
    /// source has forgotten it or is about to, and the answer is *gone*.
    pub fn keeps(&self, hash: KeyHash) -> bool {
        match &self.state {
            State::Leaving { kept, .. } => kept.iter().any(|range| range.contains(hash)),
            // Whoever gets an answer may conclude that we know of the acceptance: a pull that comes
            // before the answer to the flip is that answer, [`Source::expects_answer`].
            State::Flipping { .. }
            | State::Waiting
            | State::CatchingUp { .. }
            | State::Freezing { .. }
            | State::Resting { .. }
            | State::GivenUp { .. }
            | State::Released
            | State::Withdrawn => false,
        }
    }

    /// Returns whether it is open how the flip ended. Then a pull of the target's is the answer to
    /// it ([`SourceEvent::FlipAnswered`]), before it is one itself.
    pub fn expects_answer(&self) -> bool {
        matches!(self.state, State::Flipping { .. })
    }

    /// Whether nothing is left to do. The machine is kept as the memory of how it ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Released | State::Withdrawn)
    }
}

impl Source {
    /// Whose answer to a flip counts.
    fn target(&self) -> Option<ServerId> {
        match &self.state {
            State::Flipping { target, .. } => Some(*target),
            State::Waiting
            | State::CatchingUp { .. }
            | State::Freezing { .. }
            | State::Resting { .. }
            | State::GivenUp { .. }
            | State::Leaving { .. }
            | State::Released
            | State::Withdrawn => None,
        }
    }

    fn start(&mut self, now: Instant, intent: Box<Intent>, out: &mut Outbox<SourceEffect>) {
        match &self.state {
            State::Waiting => self.catch_up(now, (intent, 1), Patience::from(now), out),
            // The coordinator has not heard of it.
            State::Withdrawn => self.report_withdrawn(out),
            State::Leaving { .. } => {
                out.push(SourceEffect::Tell(ToCoordinator::Flipped { migration: self.migration }));
            }
            // It asks by itself what it does not know, or this comes late.
            State::CatchingUp { .. }
            | State::Freezing { .. }
            | State::Resting { .. }
            | State::GivenUp { .. }
            | State::Flipping { .. }
            | State::Released => {}
        }
    }

    /// The target may have said never by itself. Being asked, it will say so to the coordinator.
    fn report_withdrawn(&self, out: &mut Outbox<SourceEffect>) {
        out.push(SourceEffect::Tell(ToCoordinator::FlipUnanswered { migration: self.migration }));
    }

    fn catch_up(
        &mut self,
        now: Instant,
        (intent, attempt): (Box<Intent>, u32),
        patience: Patience,
        out: &mut Outbox<SourceEffect>,
    ) {
        out.push(SourceEffect::CatchUp { attempt });
        self.state = State::CatchingUp { intent, attempt, since: now, patience };
    }

    fn caught_up(&mut self, now: Instant, attempt: u32, out: &mut Outbox<SourceEffect>) {
        let State::CatchingUp { intent, attempt: current, since, patience } = &self.state else {
            return;
        };
        if *current != attempt {
            return;
        }
        let (intent, mut patience) = (intent.clone(), *patience);
        patience.note_acknowledged(now.since(*since));
        let (range, epoch) = (intent.range, intent.source_epoch);
        out.push(SourceEffect::Freeze { range, epoch, attempt });
        self.state = State::Freezing { intent, attempt, since: now, patience };
    }

    fn flip(
        &mut self,
        now: Instant,
        attempt: u32,
        at: FrozenState,
        out: &mut Outbox<SourceEffect>,
    ) {
        let State::Freezing { intent, attempt: current, .. } = &self.state else { return };
        if *current != attempt {
            return;
        }
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
        self.state = State::Flipping {
            flip: Box::new(flip),
            target,
            flip_at: now + FLIP_AGAIN,
            ask_at: now + FLIP_UNANSWERED,
        };
    }

    fn refuse(&mut self, now: Instant, attempt: u32, out: &mut Outbox<SourceEffect>) {
        if matches!(&self.state, State::Freezing { attempt: current, .. } if *current == attempt) {
            self.give_up(now, out);
        }
    }

    /// Nothing has been sent to the target, so the coordinator's question to it will end the
    /// intent.
    fn give_up(&mut self, now: Instant, out: &mut Outbox<SourceEffect>) {
        out.push(SourceEffect::Tell(ToCoordinator::FlipUnanswered { migration: self.migration }));
        self.state = State::GivenUp { ask_at: now + TELL_AGAIN };
    }

    fn end_flip(&mut self, accepted: bool, out: &mut Outbox<SourceEffect>) {
        if accepted { self.leave(out) } else { self.withdraw(out) }
    }

    fn leave(&mut self, out: &mut Outbox<SourceEffect>) {
        // Only a flip that was sent can be accepted; later it is a repetition.
        let State::Flipping { flip, target, .. } = &self.state else { return };
        let (range, to, epoch) = (flip.range, *target, flip.target_epoch);
        out.push(SourceEffect::Leave { range, to, epoch });
        out.push(SourceEffect::Tell(ToCoordinator::Flipped { migration: self.migration }));
        self.state = State::Leaving { kept: vec![range], forgetting: Vec::new() };
    }

    fn withdraw(&mut self, out: &mut Outbox<SourceEffect>) {
        match &self.state {
            State::Freezing { intent, .. } => out.push(SourceEffect::Thaw { range: intent.range }),
            State::Flipping { flip, .. } => out.push(SourceEffect::Thaw { range: flip.range }),
            State::Waiting
            | State::CatchingUp { .. }
            | State::Resting { .. }
            | State::GivenUp { .. } => {}
            // The target gives one answer only; this one is not about us.
            State::Leaving { .. } | State::Released | State::Withdrawn => return,
        }
        self.state = State::Withdrawn;
    }

    fn forget(&mut self, remaining: &[HashRange], out: &mut Outbox<SourceEffect>) {
        // The target has replayed something, so it had accepted: this overtook the answer.
        self.leave(out);
        match &mut self.state {
            State::Leaving { kept, forgetting } => {
                for range in ranges::without(kept, remaining) {
                    out.push(SourceEffect::Forget { range });
                    forgetting.push(range);
                }
                *kept = ranges::intersection(kept, remaining);
                self.release_if_empty(out);
            }
            // Our answer was lost.
            State::Released => {
                out.push(SourceEffect::Tell(ToCoordinator::Released { migration: self.migration }));
            }
            // The target died and counts as one that has accepted; what it did not have returned to
            // a source that knew of no flip.
            State::Waiting | State::Withdrawn if remaining.is_empty() => {
                out.push(SourceEffect::Tell(ToCoordinator::Released { migration: self.migration }));
                self.state = State::Released;
            }
            State::Waiting
            | State::CatchingUp { .. }
            | State::Freezing { .. }
            | State::Resting { .. }
            | State::GivenUp { .. }
            | State::Flipping { .. }
            | State::Withdrawn => {}
        }
    }

    fn forgotten(&mut self, range: HashRange, out: &mut Outbox<SourceEffect>) {
        let State::Leaving { forgetting, .. } = &mut self.state else {
            unreachable!("{} forgot {range} unasked: {:?}", self.migration, self.state);
        };
        let place = forgetting.iter().position(|&asked| asked == range);
        forgetting.swap_remove(place.expect("a range is forgotten once, and only if asked"));
        self.release_if_empty(out);
    }

    fn release_if_empty(&mut self, out: &mut Outbox<SourceEffect>) {
        if let State::Leaving { kept, forgetting } = &self.state
            && kept.is_empty()
            && forgetting.is_empty()
        {
            out.push(SourceEffect::Release);
            out.push(SourceEffect::Tell(ToCoordinator::Released { migration: self.migration }));
            self.state = State::Released;
        }
    }

    fn returned(&mut self, range: HashRange, out: &mut Outbox<SourceEffect>) {
        // It had accepted, as far as anybody can tell.
        self.leave(out);
        match &mut self.state {
            State::Leaving { kept, .. } => *kept = ranges::without(kept, &[range]),
            // No flip was sent, and none will be: the range has never left.
            State::Freezing { intent, .. } => {
                out.push(SourceEffect::Thaw { range: intent.range });
                self.state = State::Leaving { kept: Vec::new(), forgetting: Vec::new() };
            }
            State::Waiting
            | State::CatchingUp { .. }
            | State::Resting { .. }
            | State::GivenUp { .. } => {
                self.state = State::Leaving { kept: Vec::new(), forgetting: Vec::new() };
            }
            State::Flipping { .. } | State::Released | State::Withdrawn => {}
        }
    }

    /// Does what is due by now.
    fn settle(&mut self, now: Instant, out: &mut Outbox<SourceEffect>) {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let migration = self.migration;
        match &mut self.state {
            State::Freezing { intent, attempt, patience, .. } => {
                out.push(SourceEffect::Thaw { range: intent.range });
                let again = now + patience.pause();
                if *attempt == FREEZES_MAX || again >= patience.until {
                    self.give_up(now, out);
                } else {
                    let (intent, attempt, patience) = (intent.clone(), *attempt, *patience);
                    self.state = State::Resting { intent, attempt, until: again, patience };
                }
            }
            State::Resting { intent, attempt, patience, .. } => {
                let (intent, attempt, patience) = (intent.clone(), *attempt + 1, *patience);
                self.catch_up(now, (intent, attempt), patience, out);
            }
            State::CatchingUp { .. } | State::GivenUp { .. } => self.give_up(now, out),
            State::Flipping { flip, target, flip_at, ask_at } => {
                if now >= *flip_at {
                    let message = PeerMessage::Flip(Flip::clone(flip));
                    out.push(SourceEffect::Send { to: *target, message });
                    *flip_at = now + FLIP_AGAIN;
                }
                if now >= *ask_at {
                    out.push(SourceEffect::Tell(ToCoordinator::FlipUnanswered { migration }));
                    *ask_at = now + TELL_AGAIN;
                }
            }
            State::Waiting | State::Leaving { .. } | State::Released | State::Withdrawn => {}
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source of {}: ", self.migration)?;
        match &self.state {
            State::Waiting => f.write_str("waiting"),
            State::CatchingUp { attempt, .. } => write!(f, "catching up, attempt {attempt}"),
            State::Freezing { attempt, .. } => write!(f, "freezing, attempt {attempt}"),
            State::Resting { attempt, .. } => write!(f, "resting after attempt {attempt}"),
            State::GivenUp { .. } => f.write_str("given up"),
            State::Flipping { target, .. } => write!(f, "flipping to {target}"),
            State::Leaving { kept, forgetting } => {
                write!(f, "leaving, keeps {}", text::list(kept))?;
                if forgetting.is_empty() {
                    return Ok(());
                }
                write!(f, ", forgets {}", text::list(forgetting))
            }
            State::Released => f.write_str("released"),
            State::Withdrawn => f.write_str("withdrawn"),
        }
    }
}

impl fmt::Display for SourceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceEvent::Start(intent) => write!(f, "start {}", text::intent(intent)),
            SourceEvent::CaughtUp { attempt } => write!(f, "caught up, attempt {attempt}"),
            SourceEvent::Frozen { attempt, at } => write!(
                f,
                "frozen, attempt {attempt}, floor {}, {} records",
                at.version_floor,
                at.records.total()
            ),
            SourceEvent::FreezeRefused { attempt } => {
                write!(f, "freeze refused, attempt {attempt}")
            }
            SourceEvent::FlipAnswered { from, accepted } => {
                write!(f, "{from} answers the flip: {}", text::verdict(*accepted))
            }
            SourceEvent::Outcome { accepted } => write!(f, "outcome {}", text::verdict(*accepted)),
            SourceEvent::Forget { remaining } => write!(f, "keep only {}", text::list(remaining)),
            SourceEvent::Returned { range } => write!(f, "{range} returns"),
            SourceEvent::Forgotten { range } => write!(f, "forgotten {range}"),
            SourceEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for SourceEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceEffect::CatchUp { attempt } => write!(f, "catch up, attempt {attempt}"),
            SourceEffect::Freeze { range, epoch, attempt } => {
                write!(f, "freeze {range} of {epoch}, attempt {attempt}")
            }
            SourceEffect::Thaw { range } => write!(f, "thaw {range}"),
            SourceEffect::Send { to, message } => write!(f, "send {to} {}", text::peer(message)),
            SourceEffect::Leave { range, to, epoch } => write!(f, "leave {range} to {to} {epoch}"),
            SourceEffect::Forget { range } => write!(f, "forget {range}"),
            SourceEffect::Release => f.write_str("release"),
            SourceEffect::Tell(message) => write!(f, "tell {}", text::to_coordinator(message)),
        }
    }
}
