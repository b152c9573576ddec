//! Planted bugs: each breaks one rule of the protocol, and a run must find it.
//!
//! Most are planted from outside, by the effect of a wrong implementation: a message is changed
//! in transit, an answer is taken from the wrong source, or the store gets wrong information. For
//! a rule inside the real code, that code has a hook ([`Bug`]), which compiles to nothing in
//! normal builds.

use crate::typed;
use crate::workload::TABLE;
use ::planted::Bug;
use std::cell::Cell;
use std::fmt;
use store::{Key, TabletState, Worker};
use types::{HashRange, KeyHash, TableId, TypedValue, UnixMillis, ValueType, Version, key_hash};
use values::{Element, Form, Packed, PageName, encode_new};
use wire::batch::{BatchEntry, BatchReader, BatchWriter};
use wire::entry::Body;
use wire::peer::{PeerMessage, PriorityAnswer, PullReply};

/// Defines the bugs: those planted from outside, each with the rule that it breaks, and those with
/// a hook inside the real code, which describes its rule.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident $(= $hook:ident)?,)*) => {
        /// Rule that is broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Planted {
            $($(#[$doc])* $(#[doc = concat!("See [`Bug::", stringify!($hook), "`].")])? $bug,)*
        }

        impl Planted {
            /// All bugs.
            pub const ALL: &[Planted] = &[$(Planted::$bug),*];

            /// Returns the hook inside the real code, unless the bug is planted from outside.
            pub(crate) fn inside(self) -> Option<Bug> {
                match self {
                    $(Planted::$bug => [$(Bug::$hook)?].first().copied(),)*
                }
            }
        }
    };
}

bugs! {
    /// The progress is advanced when a reply is received, before it is replayed.
    ProgressOnReceipt,
    /// The target continues with its own version counter, as Rocksteady does with a safe version
    /// that is no upper bound.
    FloorNotRaised,
    /// A delete above the progress leaves no tombstone.
    DeleteWithoutTombstone,
    /// The source releases entries when it has sent them, before they are replayed and committed.
    ForgottenWhenSent,
    /// The coordinator lets the source release everything at the first cut.
    ForgottenBeforeCut,
    /// A target that has answered *never* accepts the flip when it arrives after all.
    NeverNotKept,
    /// A source without an answer to its flip serves again without asking for the outcome.
    ThawedWithoutAsking,
    DecidedOnMissing = DecidedOnMissing,
    MissingReadAsAbsent = MissingReadAsAbsent,
    CopyServedAfterLeaving = CopyServedAfterLeaving,
    /// A late answer to a priority pull is inserted below the progress.
    LateReplyInserted,
    PartnerReadAsAbsent = PartnerReadAsAbsent,
    /// A source that cannot look at a leaf at once answers that there is no record.
    BusyReadAsAbsent,
    /// The target does not remember that the source has no such record.
    AbsentNotRemembered,
    /// A server accepts a map that is older than its own.
    StaleMapAccepted,
    RedirectedWhileHeld = RedirectedWhileHeld,
    /// A pull counts as answered although its reply is lost.
    LostReplyTakenForEmpty,
    /// An expired record above the progress is reclaimed without a tombstone.
    ReclaimedWithoutTombstone,
    /// The target judges expiry by its own clock instead of continuing the source's.
    ClockGoesBack,
    LifeFromWallClock = LifeFromWallClock,
    /// Pulled records expire a tenth of a second later than at their source.
    PulledExpireLate,
    /// Held operations are not woken when the owner of the range is decided.
    HeldForgotten,
    /// The metadata store applies transactions without checking their expectations.
    StoreWithoutCompare,
    ReplyOvertakes = ReplyOvertakes,
    KeyOvertaken = KeyOvertaken,
    TurnForgotten = TurnForgotten,
    FlushedArrives = FlushedArrives,
    WalkNotWaiting = ScanNotWaiting,
    OldCopyKept = OldCopyKept,
    FrozenWithoutGrace = FrozenWithoutGrace,
    OlderVersionReplayed = OlderVersionReplayed,
    PullNotRepeated = PullNotRepeated,
    OutcomeAskedOnce = OutcomeAskedOnce,
    EndToldOnce = EndToldOnce,
    SilenceTakenForNever = SilenceTakenForNever,
    TombstonesLeft = TombstonesLeft,
    RangeClockIgnored = RangeClockIgnored,
    LeavingTabletKept = LeavingTabletKept,
    AbsentSideAwaited = AbsentSideAwaited,
    ClockJumpsAhead = ClockJumpsAhead,
    BarrierOvertaken = BarrierOvertaken,
    BarrierTooEarly = BarrierTooEarly,
    LifetimeNotKept = LifetimeNotKept,
    LifetimeNotChanged = LifetimeNotChanged,
    RemainingFromWallClock = RemainingFromWallClock,
    FieldsNotJudged = FieldsNotJudged,
    FieldLifetimeLost = FieldLifetimeLost,
    FieldLifetimeKept = FieldLifetimeKept,
    FieldsSweptEarly = FieldsSweptEarly,
    /// Pulled fields do not expire any more.
    FieldLifetimeNotMoved,
    VersionNotChecked = VersionNotChecked,
    IdReused = IdReused,
    ArrivingPageSwept = ArrivingPageSwept,
    LastIdForgotten = LastIdForgotten,
    DeliveredAgain = DeliveredAgain,
    PendingNotCopied = PendingNotCopied,
    PagesRemovedAlone = PagesRemovedAlone,
    /// A page of an earlier value of a key is read as one of its present value.
    PageOfOtherId,
    PoppedItemKept = PoppedItemKept,
    PushedAtOtherEnd = PushedAtOtherEnd,
    EqualScoresUnordered = EqualScoresUnordered,
    OrderNotFollowed = OrderNotFollowed,
    OrderVersionIgnored = OrderVersionIgnored,
    LostWriteRepeated = LostWriteRepeated,
    AbsenceRepeated = AbsenceRepeated,
    AmbiguityForgotten = AmbiguityForgotten,
    AmbiguousTakenForRefused = AmbiguousTakenForRefused,
    SentTakenForUnsent = SentTakenForUnsent,
    OlderMapAdopted = OlderMapAdopted,
    EarlierConnectionHeard = EarlierConnectionHeard,
    OverdueReplyNotExpected = OverdueReplyNotExpected,
    RedirectionIgnored = RedirectionIgnored,
    DeadlineForgotten = DeadlineForgotten,
    MarkedBeforeSynced = MarkedBeforeSynced,
    KeptAboveMark = KeptAboveMark,
    MemoryNotSynced = MemoryNotSynced,
    LeftBeforeMark = LeftBeforeMark,
    AcknowledgedBeforeReplicas = AcknowledgedBeforeReplicas,
    TypeLost = TypeLost,
    PageNotMoved = PageNotMoved,
    PageNotRecovered = PageNotRecovered,
    DataBeforeOpen = DataBeforeOpen,
    DroppedBeforeSafe = LeftBeforeSynced,
    TombstoneDroppedEarly = TombstoneDroppedEarly,
    StaleReplicaUsed = StaleReplicaUsed,
    DependencyDroppedEarly = DependencyDroppedEarly,
    TakenBackWithoutTarget = TakenBackWithoutTarget,
    ServedBeforeReplayed = ServedBeforeReplayed,
    NilBeforeTombstoneIsSafe = TombstoneRemovedEarly,
    CutBeforeHeadsAreSafe = CutBeforeHeadsAreSafe,
    ZombieServes = ZombieServes,
    VersionsGoBack = VersionsGoBack,
    /// Recovered records are judged by their new owner's clock instead of the dead server's.
    RecoveredWithoutClock,
    /// The clock of a recovered range begins a second ahead.
    RecoveredClockAhead,
    FreedWhileDependedOn = FreedWhileDependedOn,
    FreedBeforeCommit = FreedBeforeCommit,
    RecoveryDependencyForgotten = RecoveryDependencyForgotten,
    DivergentShown = DivergentShown,
    /// A coordinator waits for no server when it starts, and no server reports its newest mark.
    OldStoreTrusted,
    /// A process does not report the cluster to which the data of its disk belongs.
    ForeignDiskAdmitted,
    SentBeforeCommit = SentBeforeCommit,
    /// After the first death, servers go on refusing reads when all is recovered, as long as
    /// clients work.
    RefusedAfterRecovery,
    SilentBackupKept = SilentBackupKept,
    SlowBackupCleaned = SlowBackupCleaned,
    RefusalForgotten = RefusalForgotten,
    LapsedLeaseWaits = LapsedLeaseWaits,
    GateReleasesAll = GateReleasesAll,
    ShortestManifestUsed = ShortestManifestUsed,
    ReplacedStaysLive = ReplacedStaysLive,
    WriteNotGated = WriteNotGated,
    ReadNotGated = ReadNotGated,
    TombstoneNotReplayed = TombstoneNotReplayed,
    IncarnationOfSource = IncarnationOfSource,
    IncarnationNotRenewed = IncarnationNotRenewed,
    CutBeforeSplice = CutBeforeSplice,
    SealedBeforeReplicated = SealedBeforeReplicated,
    LostReplicaNotCopied = LostReplicaNotCopied,
    DeadBackupKept = DeadBackupKept,
    HeartbeatForgotten = HeartbeatForgotten,
    LostPieceForgotten = LostPieceForgotten,
    ReportedBeforeMeasured = ReportedBeforeMeasured,
    ReportedBeforeSynced = ReportedBeforeSynced,
    DamageNotReported = DamageNotReported,
    OrphanNotReassigned = OrphanNotReassigned,
    RecoveryReadNotRepeated = RecoveryReadNotRepeated,
    PromisedUnreached = PromisedUnreached,
    ArrivalWithoutEnd = ArrivalWithoutEnd,
    SentBeforeItsSource = SentBeforeItsSource,
    CompletionDroppedEarly = CompletionDroppedEarly,
    CompletionNotMoved = CompletionNotMoved,
    CompletionNotRecovered = CompletionNotRecovered,
    CompletionsFlushed = CompletionsFlushed,
}

impl Planted {
    /// Returns whether the bug breaks a rule of replication; only replicated runs find it.
    pub fn is_of_clusters(self) -> bool {
        self >= Planted::AcknowledgedBeforeReplicas
    }

    /// Returns whether the bug breaks a rule of the native client; only runs with native clients
    /// find it.
    pub fn is_of_clients(self) -> bool {
        (Planted::LostWriteRepeated..=Planted::DeadlineForgotten).contains(&self)
    }

    /// Returns whether the bug breaks a rule of syncs and version marks; only runs whose machines
    /// lose power find it.
    pub fn is_of_marks(self) -> bool {
        (Planted::MarkedBeforeSynced..=Planted::LeftBeforeMark).contains(&self)
    }

    /// Returns whether the bug can be planted in this build.
    pub fn is_possible(self) -> bool {
        ::planted::IS_ON || self.inside().is_none()
    }

    /// Returns the bug with this name, in the form of `Display`.
    pub fn named(name: &str) -> Option<Planted> {
        Planted::ALL.iter().copied().find(|planted| planted.to_string() == name)
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, letter) in format!("{self:?}").char_indices() {
            if letter.is_ascii_uppercase() && place > 0 {
                f.write_str("-")?;
            }
            write!(f, "{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// Removes the version floor from a flip.
pub(crate) fn without_floor(message: &mut PeerMessage) {
    if let PeerMessage::Flip(flip) = message {
        flip.version_floor = Version(0);
    }
}

/// Removes the source's expiry clock from a flip.
pub(crate) fn without_clock(message: &mut PeerMessage) {
    if let PeerMessage::Flip(flip) = message {
        flip.expiry_clock = UnixMillis(0);
    }
}

/// Lets the records of a reply expire later.
pub(crate) fn expire_late(message: &PeerMessage, payload: &mut Vec<u8>) {
    let PeerMessage::PullReply(_) = message else { return };
    let mut late = Vec::new();
    let mut batch = BatchWriter::new(&mut late);
    for BatchEntry { table, slot, mut entry, .. } in BatchReader::new(payload).flatten() {
        if let Body::Object { expiry: Some(expiry), .. } = &mut entry.body {
            expiry.0 += 100;
        }
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        batch.push(table, slot, &bytes);
    }
    drop(batch);
    *payload = late;
}

/// Removes the times to live of fields from the records of a reply.
pub(crate) fn without_field_lifetimes(message: &PeerMessage, payload: &mut Vec<u8>) {
    let PeerMessage::PullReply(_) = message else { return };
    let mut lasting = Vec::new();
    let mut batch = BatchWriter::new(&mut lasting);
    for BatchEntry { table, slot, mut entry, .. } in BatchReader::new(payload).flatten() {
        let mut changed = Vec::new();
        if let Body::Object { value, .. } = &mut entry.body
            && typed::has_expiring_fields(table, *value)
            && let Ok(packed) = Packed::parse(TypedValue { value_type: ValueType::Hash, ..*value })
        {
            let elements: Vec<Element<'_>> = packed.elements().flatten().collect();
            encode_new(ValueType::Hash, elements.into_iter(), &mut changed);
            value.bytes = &changed;
        }
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        batch.push(table, slot, &bytes);
    }
    drop(batch);
    *payload = lasting;
}

/// Advances the progress past everything in a reply.
pub(crate) fn advance_on_receipt(worker: &Worker, reply: &PullReply) {
    let tablets = worker.store().tablets();
    if let Some(TabletState::Arriving(arrival)) = tablets.at(reply.cursor).map(|t| &t.state)
        && arrival.migration() == reply.migration
    {
        arrival.advance(reply.partition, reply.next);
    }
}

pub(crate) fn drop_range(worker: &mut Worker, range: HashRange) {
    let mut cursor = Some(range.first());
    while let Some(at) = cursor {
        cursor = worker.forget(range, at, 1 << 16);
    }
}

/// Gives each page without a root to the present value of its key, if that has no page of this number.
pub(crate) fn adopt_orphans(worker: &mut Worker) {
    let mut pages = Vec::new();
    let mut cursor = Some(KeyHash(0));
    while let Some(at) = cursor {
        cursor = worker.own_table(TableId::PAGES).walk(at, usize::MAX, |name, record| {
            let name = PageName::parse(name);
            pages.extend(name.map(|name| (name, record.value.bytes.to_vec())));
        });
    }
    for (page, bytes) in pages {
        let root = Cell::new(None);
        let note = |record: store::Record<'_>| {
            if let Ok(Form::Split(found)) = Form::of(record.value) {
                root.set(Some(found));
            }
            true
        };
        let found = worker.own_table(TableId::PAGES).other_has(page.table, page.root, note);
        let Some(root) = root.get().filter(|root| found == Ok(true) && root.id != page.id) else {
            continue;
        };
        let (hash, name) = PageName { id: root.id, ..page }.key(worker.store().seed());
        if page.page < root.pages && worker.knows(TableId::PAGES, hash) == Ok(false) {
            let _ = worker.put(TableId::PAGES, Key { hash, bytes: &name }, &bytes, None);
        }
    }
}

/// Writes records below the progress again that are no longer here.
pub(crate) fn insert_regardless(worker: &mut Worker, batch: &[u8]) {
    let tablets = worker.store().tablets();
    for entry in BatchReader::new(batch).flatten() {
        let key =
            Key { hash: key_hash(worker.store().seed(), entry.entry.key), bytes: entry.entry.key };
        let state = tablets.at(key.hash).map(|tablet| &tablet.state);
        let is_passed = matches!(
            state,
            Some(TabletState::Arriving(arrival)) if arrival.is_below_progress(key.hash)
        );
        let is_here = worker.collect_hash(TABLE, key.hash, &mut Vec::new()) == Ok(true);
        if let Body::Object { value, .. } = entry.entry.body
            && is_passed
            && !is_here
        {
            let _ = worker.put(TABLE, key, value.bytes, None);
        }
    }
}

/// Turns all answers of a priority reply into *absent*.
pub(crate) fn without_records(message: &mut PeerMessage, payload: &mut Vec<u8>) {
    if let PeerMessage::PriorityReply(reply) = message {
        reply.answers.iter_mut().for_each(|(_, _, answer)| *answer = PriorityAnswer::Absent);
        payload.clear();
    }
}

/// Turns the answers *absent* of a priority reply into *gone*.
pub(crate) fn without_absent(message: &mut PeerMessage) {
    if let PeerMessage::PriorityReply(reply) = message {
        let absent =
            reply.answers.iter_mut().filter(|(_, _, answer)| *answer == PriorityAnswer::Absent);
        absent.for_each(|(_, _, answer)| *answer = PriorityAnswer::Gone);
    }
}

/// Returns a reply to a pull that claims that there is nothing more.
pub(crate) fn emptied(message: &PeerMessage) -> Option<PeerMessage> {
    let PeerMessage::PullReply(reply) = message else { return None };
    Some(PeerMessage::PullReply(PullReply { next: None, ..*reply }))
}
