//! Completion records: what remains of an exactly-once request after its execution.
//!
//! All are in the table [`types::TableId::COMPLETIONS`], in the slot of the request's first key, so that
//! they move, are recovered and are cleaned as other records are. There are two kinds; the tag of
//! the slot ([`Slot::tag`]) stands in braces before the letter, and numbers in keys are big-endian:
//!
//! | key | value |
//! | --- | --- |
//! | `{tag}c`, key hash, lease | [`CompletionRecord`]: the replies to requests of one client whose first key has this hash |
//! | `{tag}s` | [`SlotFloors`]: which records of the slot may have been dropped |
//!
//! Design: `docs/design/exactly-once.md`.

use planted::Bug;
use std::collections::BTreeMap;
use types::limits::COMPLETION_BYTES_MAX;
use types::{KeyHash, LeaseId, Slot};

/// Longest recorded reply, in bytes.
pub const REPLY_BYTES_MAX: usize = 16 << 10;

/// Bytes of the number that begins a record, and of each number within.
const NUMBER_BYTES: usize = 8;
/// Bytes before each recorded reply: sequence number and length.
const REPLY_HEADER_BYTES: usize = NUMBER_BYTES + 4;
/// Bytes of a client's floor: lease, and first incomplete sequence number.
const FLOOR_BYTES: usize = 2 * NUMBER_BYTES;
/// Bytes of a key before its numbers.
const PREFIX_BYTES: usize = 5;

const _: () = assert!(REPLY_BYTES_MAX < COMPLETION_BYTES_MAX);

/// Place of the completion records of one client for first keys with one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiledUnder {
    /// Hash of the first key.
    pub hash: KeyHash,
    /// The client.
    pub lease: LeaseId,
}

impl FiledUnder {
    /// Returns the key of the completion record.
    pub fn key(self) -> [u8; PREFIX_BYTES + 2 * NUMBER_BYTES] {
        let mut key = [0; PREFIX_BYTES + 2 * NUMBER_BYTES];
        key[..PREFIX_BYTES].copy_from_slice(&prefix(self.hash.slot(), b'c'));
        key[PREFIX_BYTES..][..NUMBER_BYTES].copy_from_slice(&self.hash.0.to_be_bytes());
        key[PREFIX_BYTES + NUMBER_BYTES..].copy_from_slice(&self.lease.0.to_be_bytes());
        key
    }

    /// Returns the place of a completion record with this key; `None`: it is not the key of one.
    pub(crate) fn parse(key: &[u8]) -> Option<FiledUnder> {
        let (prefix, numbers) = key.split_first_chunk::<PREFIX_BYTES>()?;
        let (hash, lease) = numbers.split_first_chunk::<NUMBER_BYTES>()?;
        let hash = KeyHash(u64::from_be_bytes(*hash));
        let lease = LeaseId(u64::from_be_bytes(lease.try_into().ok()?));
        (prefix[PREFIX_BYTES - 1] == b'c').then_some(FiledUnder { hash, lease })
    }
}

/// Returns the key of the floors of a slot.
pub fn floors_key(slot: Slot) -> [u8; PREFIX_BYTES] {
    prefix(slot, b's')
}

fn prefix(slot: Slot, kind: u8) -> [u8; PREFIX_BYTES] {
    let [first, second] = slot.tag();
    [b'{', first, second, b'}', kind]
}

/// Replies to the requests of one client whose first key has one hash, from the first request that
/// the client had not completed when it sent the last one. Encoded: that number, then for each
/// reply the sequence number, its length in four bytes, and its bytes. Numbers are little-endian,
/// sequence numbers ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRecord<'v> {
    first_incomplete: u64,
    replies: &'v [u8],
}

impl<'v> CompletionRecord<'v> {
    /// Record of a client that has executed nothing.
    pub const EMPTY: CompletionRecord<'static> =
        CompletionRecord { first_incomplete: 0, replies: &[] };

    /// Decodes a record. `None`: the bytes are not one.
    pub fn parse(value: &'v [u8]) -> Option<CompletionRecord<'v>> {
        let (first, replies) = value.split_first_chunk()?;
        let record = CompletionRecord { first_incomplete: u64::from_le_bytes(*first), replies };
        let mut rest = replies;
        let mut last = None;
        while !rest.is_empty() {
            let (sequence, _, behind) = split_reply(rest)?;
            if last.is_some_and(|last| last >= sequence) {
                return None;
            }
            (last, rest) = (Some(sequence), behind);
        }
        Some(record)
    }

    /// Returns the highest first incomplete number that a request filed here has named.
    pub fn first_incomplete(&self) -> u64 {
        self.first_incomplete
    }

    /// Returns the reply to the request of this number, if it was executed.
    pub fn reply(&self, sequence: u64) -> Option<&'v [u8]> {
        self.replies().find(|(number, _)| *number == sequence).map(|(_, reply)| reply)
    }

    /// Returns whether the client has completed all requests that are recorded here, if it has
    /// completed all below this number.
    fn is_completed_below(&self, first_incomplete: u64) -> bool {
        self.replies().all(|(sequence, _)| sequence < first_incomplete)
    }

    fn replies(&self) -> impl Iterator<Item = (u64, &'v [u8])> {
        let mut rest = self.replies;
        std::iter::from_fn(move || {
            let (sequence, reply, behind) = split_reply(rest)?;
            rest = behind;
            Some((sequence, reply))
        })
    }

    /// Returns the bytes of the record after [`CompletionRecord::write_with`].
    pub fn bytes_with(&self, first_incomplete: u64, reply: usize) -> usize {
        let kept = self.replies().filter(|(sequence, _)| *sequence >= first_incomplete);
        let kept: usize = kept.map(|(_, reply)| REPLY_HEADER_BYTES + reply.len()).sum();
        NUMBER_BYTES + kept + REPLY_HEADER_BYTES + reply
    }

    /// Appends the encoded record with one more reply, and without those to requests that the
    /// client has completed, to `value`.
    ///
    /// # Panics
    /// If the request was executed before, or is not among those that the client has not
    /// completed: it must not be executed then.
    pub fn write_with(
        &self,
        first_incomplete: u64,
        sequence: u64,
        reply: &[u8],
        value: &mut Vec<u8>,
    ) {
        let first_incomplete = first_incomplete.max(self.first_incomplete);
        assert!(sequence >= first_incomplete, "{sequence} is executed below {first_incomplete}");
        assert!(self.reply(sequence).is_none(), "{sequence} is executed twice");
        let start = value.len();
        value.extend_from_slice(&first_incomplete.to_le_bytes());
        let kept = || self.replies().filter(|(number, _)| *number >= first_incomplete);
        let before = kept().take_while(|(number, _)| *number < sequence);
        let behind = kept().skip_while(|(number, _)| *number < sequence);
        for (number, reply) in before.chain([(sequence, reply)]).chain(behind) {
            value.extend_from_slice(&number.to_le_bytes());
            value.extend_from_slice(&(reply.len() as u32).to_le_bytes());
            value.extend_from_slice(reply);
        }
        let written = &value[start..];
        debug_assert!(CompletionRecord::parse(written).is_some(), "an encoded record is readable");
    }
}

/// Splits off the first reply: returns its sequence number, its bytes, and the rest.
fn split_reply(replies: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (sequence, rest) = replies.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (reply, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((u64::from_le_bytes(*sequence), reply, rest))
}

/// Bounds below which completion records of a slot may have been dropped. Requests below them are
/// refused. Encoded: the lease horizon, then for each client its lease and the first sequence
/// number that it had not completed. Numbers are little-endian, leases ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotFloors<'v> {
    /// Leases below this one have ended.
    pub horizon: LeaseId,
    floors: &'v [u8],
}

impl<'v> SlotFloors<'v> {
    /// Floors of a slot of which nothing was dropped.
    pub const NONE: SlotFloors<'static> = SlotFloors { horizon: LeaseId(0), floors: &[] };

    /// Decodes floors. `None`: the bytes are not floors.
    pub fn parse(value: &'v [u8]) -> Option<SlotFloors<'v>> {
        let (horizon, floors) = value.split_first_chunk()?;
        let horizon = LeaseId(u64::from_le_bytes(*horizon));
        let parsed = SlotFloors { horizon, floors };
        let is_sorted = parsed.clients().is_sorted_by(|low, high| low.0 < high.0);
        (floors.len() % FLOOR_BYTES == 0 && is_sorted).then_some(parsed)
    }

    /// Returns the number below which requests of this client are refused.
    pub fn of(&self, lease: LeaseId) -> u64 {
        self.clients().find(|(client, _)| *client == lease).map_or(0, |(_, first)| first)
    }

    fn clients(&self) -> impl Iterator<Item = (LeaseId, u64)> {
        self.floors.chunks_exact(FLOOR_BYTES).filter_map(|floor| {
            let (lease, first) = floor.split_first_chunk()?;
            let first = u64::from_le_bytes(first.try_into().ok()?);
            Some((LeaseId(u64::from_le_bytes(*lease)), first))
        })
    }

    /// Returns the encoded floors, raised to these. Those of ended leases are left out. `None`:
    /// there are too many for one record.
    pub(crate) fn raised(
        &self,
        horizon: LeaseId,
        floors: &BTreeMap<LeaseId, u64>,
    ) -> Option<Vec<u8>> {
        let horizon = horizon.max(self.horizon);
        let mut all: BTreeMap<LeaseId, u64> = self.clients().collect();
        for (&lease, &first) in floors {
            let floor = all.entry(lease).or_default();
            *floor = first.max(*floor);
        }
        let mut value = horizon.0.to_le_bytes().to_vec();
        for (lease, first) in all.range(horizon..) {
            value.extend_from_slice(&lease.0.to_le_bytes());
            value.extend_from_slice(&first.to_le_bytes());
        }
        debug_assert!(SlotFloors::parse(&value).is_some(), "encoded floors are readable");
        (value.len() <= COMPLETION_BYTES_MAX).then_some(value)
    }
}

/// A request for exactly-once execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnceRequest {
    /// The client.
    pub lease: LeaseId,
    /// Number of the request among the client's.
    pub sequence: u64,
    /// Lowest number of a request whose reply the client had not received when it sent this one.
    pub first_incomplete: u64,
}

/// The way to handle a request, by the completion records of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceDecision<'v> {
    /// The request was executed: reply the same again.
    Repeat(&'v [u8]),
    /// The request is executed now, and its reply is added to this record.
    Execute(CompletionRecord<'v>),
    /// The client had received the reply. Its record may be gone.
    Acknowledged,
    /// The lease has ended. The record may be gone.
    LeaseEnded,
    /// The records cannot be decoded.
    Damaged,
}

impl OnceRequest {
    /// Decides by the request's completion record and the floors of its slot, if there are any,
    /// and by the lease horizon that this server knows.
    pub fn decide<'v>(
        &self,
        completion: Option<&'v [u8]>,
        floors: Option<&[u8]>,
        horizon: LeaseId,
    ) -> OnceDecision<'v> {
        let completion = completion.map_or(Some(CompletionRecord::EMPTY), CompletionRecord::parse);
        let floors = floors.map_or(Some(SlotFloors::NONE), SlotFloors::parse);
        let (Some(completion), Some(floors)) = (completion, floors) else {
            return OnceDecision::Damaged;
        };
        if self.lease < horizon.max(floors.horizon) {
            return OnceDecision::LeaseEnded;
        }
        let named = self.first_incomplete.max(completion.first_incomplete);
        if self.sequence < named.max(floors.of(self.lease)) {
            return OnceDecision::Acknowledged;
        }
        match completion.reply(self.sequence) {
            Some(reply) => OnceDecision::Repeat(reply),
            None => OnceDecision::Execute(completion),
        }
    }
}

/// The requests that clients have completed, as far as a walk over all completion records has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompletedRequests {
    /// Leases below this one have ended.
    pub(crate) horizon: LeaseId,
    /// Highest first incomplete number of each client.
    pub(crate) first_incomplete: BTreeMap<LeaseId, u64>,
}

impl CompletedRequests {
    /// Notes the first incomplete number of a record.
    pub(crate) fn note(&mut self, lease: LeaseId, record: &CompletionRecord<'_>) {
        let first = self.first_incomplete.entry(lease).or_default();
        *first = record.first_incomplete.max(*first);
    }

    /// Returns whether a record is not needed any more.
    pub(crate) fn cover(&self, lease: LeaseId, record: &CompletionRecord<'_>) -> bool {
        let first = self.first_incomplete.get(&lease).copied().unwrap_or(0);
        let is_early = first > 0 && planted::is(Bug::CompletionDroppedEarly);
        lease < self.horizon || record.is_completed_below(first) || is_early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: LeaseId = LeaseId(7);

    fn request(sequence: u64, first_incomplete: u64) -> OnceRequest {
        OnceRequest { lease: LEASE, sequence, first_incomplete }
    }

    fn with(record: &CompletionRecord<'_>, first: u64, sequence: u64, reply: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        record.write_with(first, sequence, reply, &mut value);
        value
    }

    fn record(first: u64, replies: &[(u64, &[u8])]) -> Vec<u8> {
        replies.iter().fold(with(&CompletionRecord::EMPTY, first, u64::MAX, b""), |value, reply| {
            with(&CompletionRecord::parse(&value).unwrap(), first, reply.0, reply.1)
        })
    }

    #[test]
    fn keys_have_the_slot_of_the_first_key() {
        for hash in [KeyHash(0), KeyHash(u64::MAX), KeyHash(0x1234_5678_9abc_def0)] {
            let place = FiledUnder { hash, lease: LEASE };
            assert_eq!(FiledUnder::parse(&place.key()), Some(place));
            assert_eq!(types::slot_of(&place.key()), hash.slot());
            assert_eq!(types::slot_of(&floors_key(hash.slot())), hash.slot());
            assert_eq!(FiledUnder::parse(&floors_key(hash.slot())), None);
        }
    }

    #[test]
    fn a_record_returns_its_replies_in_any_order_of_execution() {
        let value = record(3, &[(5, b"five"), (3, b"three"), (4, b"")]);
        let parsed = CompletionRecord::parse(&value).unwrap();
        assert_eq!(parsed.reply(3), Some(&b"three"[..]));
        assert_eq!(parsed.reply(4), Some(&b""[..]));
        assert_eq!(parsed.reply(5), Some(&b"five"[..]));
        assert_eq!((parsed.reply(6), parsed.first_incomplete()), (None, 3));
        let value = with(&parsed, 5, 9, b"nine");
        let parsed = CompletionRecord::parse(&value).unwrap();
        assert_eq!((parsed.reply(4), parsed.reply(5)), (None, Some(&b"five"[..])));
    }

    #[test]
    fn a_request_is_executed_once() {
        let value = record(3, &[(3, b"three")]);
        let decide =
            |sequence, first| request(sequence, first).decide(Some(&value), None, LeaseId(0));
        assert_eq!(decide(3, 3), OnceDecision::Repeat(b"three"));
        assert!(matches!(decide(4, 3), OnceDecision::Execute(_)));
        assert_eq!(decide(3, 4), OnceDecision::Acknowledged);
        assert_eq!(decide(2, 2), OnceDecision::Acknowledged, "below the record's number");
        assert_eq!(request(2, 2).decide(Some(b"x"), None, LeaseId(0)), OnceDecision::Damaged);
    }

    #[test]
    fn floors_refuse_what_may_have_been_dropped() {
        let floors = SlotFloors::NONE.raised(LeaseId(5), &BTreeMap::from([(LEASE, 4)])).unwrap();
        let decide =
            |sequence, horizon| request(sequence, 1).decide(None, Some(&floors), LeaseId(horizon));
        assert_eq!(decide(3, 0), OnceDecision::Acknowledged);
        assert_eq!(decide(4, 0), OnceDecision::Execute(CompletionRecord::EMPTY));
        assert_eq!(decide(4, 8), OnceDecision::LeaseEnded, "the server knows more than the slot");
        let parsed = SlotFloors::parse(&floors).unwrap();
        let floors = parsed.raised(LeaseId(6), &BTreeMap::from([(LEASE, 2), (LeaseId(9), 1)]));
        let floors = floors.unwrap();
        let parsed = SlotFloors::parse(&floors).unwrap();
        assert_eq!((parsed.of(LEASE), parsed.of(LeaseId(9))), (4, 1), "floors never fall");
        let floors = parsed.raised(LeaseId(8), &BTreeMap::new()).unwrap();
        let parsed = SlotFloors::parse(&floors).unwrap();
        assert_eq!((parsed.horizon, parsed.of(LEASE), parsed.of(LeaseId(9))), (LeaseId(8), 0, 1));
        assert_eq!(request(9, 9).decide(None, Some(&floors), LeaseId(0)), OnceDecision::LeaseEnded);
    }

    #[test]
    fn floors_have_a_limit() {
        let many = |count| (1..=count).map(|lease| (LeaseId(lease), 1)).collect();
        let fit = ((COMPLETION_BYTES_MAX - NUMBER_BYTES) / FLOOR_BYTES) as u64;
        assert!(SlotFloors::NONE.raised(LeaseId(0), &many(fit)).is_some());
        assert!(SlotFloors::NONE.raised(LeaseId(0), &many(fit + 1)).is_none());
        assert!(SlotFloors::NONE.raised(LeaseId(2), &many(fit + 1)).is_some());
    }

    #[test]
    fn truncated_records_are_refused() {
        let value = record(3, &[(3, b"three")]);
        let boundaries = [8, 8 + 12 + 5];
        for length in (0..value.len()).filter(|length| !boundaries.contains(length)) {
            assert_eq!(CompletionRecord::parse(&value[..length]), None, "{length}");
        }
        let floors = SlotFloors::NONE.raised(LeaseId(5), &BTreeMap::from([(LEASE, 4)])).unwrap();
        for length in (0..floors.len()).filter(|length| *length != 8) {
            assert_eq!(SlotFloors::parse(&floors[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_record_is_covered_when_all_of_it_is_completed_or_the_lease_has_ended() {
        let value = record(3, &[(3, b"three")]);
        let value = with(&CompletionRecord::parse(&value).unwrap(), 3, 4, b"four");
        let one = record_without_marker(&value);
        let parsed = CompletionRecord::parse(&one).unwrap();
        let mut seen = CompletedRequests::default();
        seen.note(LEASE, &parsed);
        assert!(!seen.cover(LEASE, &parsed));
        seen.first_incomplete.insert(LEASE, 4);
        assert!(!seen.cover(LEASE, &parsed));
        seen.first_incomplete.insert(LEASE, 5);
        assert!(seen.cover(LEASE, &parsed));
        let ended = CompletedRequests { horizon: LeaseId(8), ..CompletedRequests::default() };
        assert!(ended.cover(LEASE, &parsed) && !ended.cover(LeaseId(8), &parsed));
    }

    /// Removes the reply of the highest number, which `record` adds.
    fn record_without_marker(value: &[u8]) -> Vec<u8> {
        value[..value.len() - REPLY_HEADER_BYTES].to_vec()
    }
}
