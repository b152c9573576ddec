//! Quorums of manifest segments: how many replicas must answer, and how many a recovery must
//! fence. The segment's id encodes both numbers, so the id alone determines the rule.
//!
//! Any [`Quorum::needed`] replicas and any [`Quorum::fences`] replicas have one in common.
//! Correctness follows from that: acknowledged bytes are on one of the fenced replicas, and too
//! few replicas remain unfenced to renew the master's lease.

use types::SegmentId;

/// Bit that is set in the ids of manifest segments.
const MANIFEST: u64 = SegmentId::FIRST_OF_MANIFEST.0;

/// Bit that is set if the id encodes the quorum. Earlier versions issued ids without this bit.
const TELLS_QUORUM: u64 = 1 << 62;

/// Width in bits of each of the two counts: all replicas, and the needed ones.
const COUNT_BITS: u32 = 8;

/// Bit that is set if the segment's only replica is on its master's own disk. It is the highest
/// bit of the replica count, which no count needs.
const OWN_DISK: u64 = 1 << (2 * COUNT_BITS - 1);

/// Maximum number of replicas that an id can encode.
const REPLICAS_MAX: usize = (1 << (COUNT_BITS - 1)) - 1;

/// Number of manifest segments that ids can tell apart.
const PLACES_MAX: u64 = TELLS_QUORUM >> (2 * COUNT_BITS);

/// The replication quorum of a manifest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Number of replicas (N).
    pub replicas: usize,
    /// Number of replicas that must have a record before it counts, and that renew the lease (q).
    pub needed: usize,
    /// Set if the only replica is on the master's own disk, since there is no other server.
    pub is_own: bool,
}

impl Quorum {
    /// Returns the quorum for a master that wants `replicas` replicas of its data and has
    /// `others` other servers.
    ///
    /// With enough servers the number is odd and at least three, so that one replica may be
    /// silent. With fewer servers all replicas are needed, and a silent one is replaced.
    pub fn of_log(replicas: usize, others: usize) -> Quorum {
        let wide = (2 * replicas).saturating_sub(3).max(3);
        let narrow = replicas.min(others).max(1);
        let replicas = if others >= wide { wide } else { narrow }.min(REPLICAS_MAX);
        let is_odd = replicas % 2 == 1 && replicas >= 3;
        let needed = if is_odd { replicas.div_ceil(2) } else { replicas };
        let quorum = Quorum { replicas, needed, is_own: false };
        assert!(
            needed + quorum.fences() > replicas,
            "a recovery may miss acknowledged bytes: {quorum:?}"
        );
        quorum
    }

    /// The quorum of a master that has only its own disk, because no other server lives.
    pub const OWN_DISK: Quorum = Quorum { replicas: 1, needed: 1, is_own: true };

    /// Returns the quorum encoded in a segment's id. `None`: every replica is needed, however
    /// many there are.
    pub fn of_segment(segment: SegmentId) -> Option<Quorum> {
        let tells = segment.0 & (MANIFEST | TELLS_QUORUM) == MANIFEST | TELLS_QUORUM;
        let count = |at: u32| (segment.0 >> (COUNT_BITS * at)) as usize & ((1 << COUNT_BITS) - 1);
        let is_own = segment.0 & OWN_DISK != 0;
        let quorum = Quorum { replicas: count(1) & REPLICAS_MAX, needed: count(0), is_own };
        let is_sound = quorum.needed >= 1 && quorum.needed <= quorum.replicas;
        (tells && is_sound).then_some(quorum)
    }

    /// Returns the id of the `place`th manifest segment that the master begins, with this quorum.
    pub fn segment(self, place: u64) -> SegmentId {
        assert!(place < PLACES_MAX, "{place} manifest segments have begun");
        let counts = (self.replicas << COUNT_BITS | self.needed) as u64;
        let own = if self.is_own { OWN_DISK } else { 0 };
        let id = SegmentId(MANIFEST | TELLS_QUORUM | place << (2 * COUNT_BITS) | counts | own);
        assert_eq!(Quorum::of_segment(id), Some(self), "the id of a segment tells its quorum");
        id
    }

    /// Returns the place of a manifest segment among those of its log; 0 for an id of an earlier
    /// version.
    pub fn place(segment: SegmentId) -> u64 {
        match segment.0 & TELLS_QUORUM {
            0 => 0,
            _ => (segment.0 & !(MANIFEST | TELLS_QUORUM)) >> (2 * COUNT_BITS),
        }
    }

    /// Returns whether the log of this segment can go on: after a data segment always, and after a
    /// manifest segment unless its place is the last one. No master comes that far.
    pub fn has_next(segment: SegmentId) -> bool {
        !segment.is_manifest() || Quorum::place(segment) + 1 < PLACES_MAX
    }

    /// Returns the number of replicas that a recovery must fence.
    pub fn fences(self) -> usize {
        assert!((1..=self.replicas).contains(&self.needed), "{self:?} is no quorum");
        self.replicas - self.needed + 1
    }
}

/// Returns how many backups of this manifest segment a recovery must fence.
pub fn fences(segment: SegmentId) -> usize {
    Quorum::of_segment(segment).map_or(1, Quorum::fences)
}

/// Returns whether the only replica of this manifest segment is on its master's own disk.
pub fn is_on_own_disk(segment: SegmentId) -> bool {
    Quorum::of_segment(segment).is_some_and(|quorum| quorum.is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "is no quorum")]
    fn not_more_replicas_are_needed_than_there_are() {
        Quorum { replicas: 2, needed: 3, is_own: false }.fences();
    }

    #[test]
    fn one_backup_may_be_silent_where_there_are_three() {
        let quorum = |replicas, others| {
            let Quorum { replicas, needed, .. } = Quorum::of_log(replicas, others);
            (replicas, needed)
        };
        assert_eq!(quorum(2, 3), (3, 2));
        assert_eq!(quorum(1, 9), (3, 2));
        assert_eq!(quorum(3, 4), (3, 2));
        assert_eq!(quorum(4, 5), (5, 3));
        assert_eq!(quorum(2, 2), (2, 2), "too few servers: all are needed");
        assert_eq!(quorum(4, 4), (4, 4));
        assert_eq!(quorum(2, 1), (1, 1));
        assert_eq!(quorum(3, 0), (1, 1), "it waits for the first one");
        assert_eq!(quorum(10_000, 100_000), (127, 64), "the largest encodable numbers");
    }

    #[test]
    fn what_is_needed_and_what_is_fenced_meet() {
        for replicas in 1..=8 {
            for others in 0..=20 {
                let quorum = Quorum::of_log(replicas, others);
                assert!(quorum.needed + quorum.fences() > quorum.replicas, "{quorum:?}");
                assert!(quorum.fences() <= quorum.replicas, "{quorum:?}");
            }
        }
    }

    #[test]
    fn a_segment_s_number_tells_its_quorum() {
        let quorum = Quorum::of_log(2, 3);
        assert_eq!(Quorum::of_segment(quorum.segment(7)), Some(quorum));
        assert_eq!(fences(quorum.segment(7)), 2);
        let next = Quorum::of_log(2, 2).segment(8);
        assert!(next > quorum.segment(7), "later segments have higher numbers");
        let earlier = SegmentId(MANIFEST | 9);
        assert!(earlier < quorum.segment(1), "also than those of earlier versions");
        assert_eq!((Quorum::of_segment(earlier), fences(earlier)), (None, 1));
        assert_eq!(Quorum::of_segment(SegmentId(9)), None);
        let own = Quorum::OWN_DISK.segment(9);
        assert!(
            own > next && Quorum::of_log(2, 3).segment(10) > own,
            "also before and after those"
        );
        assert_eq!((Quorum::of_segment(own), fences(own)), (Some(Quorum::OWN_DISK), 1));
        assert!(is_on_own_disk(own) && !is_on_own_disk(next) && !is_on_own_disk(earlier));
        let nonsense = SegmentId(MANIFEST | TELLS_QUORUM | 1 << 8 | 2);
        assert_eq!(Quorum::of_segment(nonsense), None);
    }
}
