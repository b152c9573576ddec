//! The order of the members of a sorted set whose elements are in pages: an index in memory.
//!
//! Chunks of members in order have the very bytes of a [`super::SortedSet`]. Blocks of neighboring
//! chunks have the number of their members. A member, a rank or a bound is found by a search over the
//! blocks, one over the chunks of a block, and a walk over the members of a chunk. So an operation on
//! n members costs about the square root of n steps over small arrays, and a move of bytes within a
//! chunk. The index knows neither pages nor versions.
//!
//! Invariants: no chunk and no block is empty; members are in ascending order, each once.

use super::{MemberRange, ScoredMember, read_member, write_member};
use std::cmp::Ordering;
use std::ops::Range;

/// Most bytes of a chunk with several members.
const CHUNK_BYTES_MAX: usize = 768;

/// Chunks that are together shorter than this become one.
const JOINED_BYTES_MAX: usize = CHUNK_BYTES_MAX / 2;

/// Most chunks of a block.
const BLOCK_CHUNKS_MAX: usize = 256;

/// Members of a sorted set in order.
#[derive(Clone, Debug, Default)]
pub struct MemberOrder {
    blocks: Vec<ChunkBlock>,
    count: usize,
    /// Number of chunks.
    chunks: usize,
    /// Memory of all chunks' bytes.
    allocated: usize,
}

/// Neighboring chunks.
#[derive(Clone, Debug)]
struct ChunkBlock {
    chunks: Vec<MemberChunk>,
    /// Number of members.
    count: usize,
}

/// Neighboring members.
#[derive(Clone, Debug)]
struct MemberChunk {
    /// Score of the first member, so that a search seldom needs the bytes.
    first: f64,
    count: usize,
    bytes: Vec<u8>,
}

/// The place before a member or behind the last one.
#[derive(Clone, Copy, Debug)]
struct OrderPlace {
    block: usize,
    chunk: usize,
    /// Number of members of the chunk before it.
    before: usize,
    /// Their bytes.
    offset: usize,
}

/// Iterator over the members in encoded bytes.
struct ChunkMembers<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for ChunkMembers<'a> {
    type Item = ScoredMember<'a>;

    #[inline]
    fn next(&mut self) -> Option<ScoredMember<'a>> {
        let (member, rest) = read_member(self.bytes)?;
        self.bytes = rest;
        Some(member)
    }
}

impl MemberChunk {
    fn of_one(new: ScoredMember<'_>) -> MemberChunk {
        let mut bytes = Vec::new();
        write_member(new, &mut bytes);
        MemberChunk { first: new.score, count: 1, bytes }
    }

    fn members(&self) -> ChunkMembers<'_> {
        ChunkMembers { bytes: &self.bytes }
    }

    /// Returns whether the first member is before a place, given the function that tells it.
    #[inline]
    fn begins_before(&self, is_before: &impl Fn(ScoredMember<'_>) -> bool) -> bool {
        self.members().next().is_some_and(is_before)
    }

    /// Returns the number of members before a place, and their bytes.
    fn before(&self, is_before: &impl Fn(ScoredMember<'_>) -> bool) -> (usize, usize) {
        let (mut count, mut members) = (0, self.members());
        loop {
            let left = members.bytes.len();
            match members.next() {
                Some(one) if is_before(one) => count += 1,
                Some(_) | None => return (count, self.bytes.len() - left),
            }
        }
    }

    /// Returns the bytes of the first `count` members.
    fn bytes_of(&self, count: usize) -> usize {
        let mut members = self.members();
        members.by_ref().take(count).for_each(drop);
        self.bytes.len() - members.bytes.len()
    }

    /// Moves the members behind the first `count` into a chunk of their own.
    fn divide(&mut self, count: usize) -> MemberChunk {
        assert!(0 < count && count < self.count, "a chunk without members");
        let bytes = self.bytes.split_off(self.bytes_of(count));
        self.bytes.shrink_to_fit();
        let mut chunk = MemberChunk { first: 0.0, count: self.count - count, bytes };
        self.count = count;
        chunk.note_first();
        chunk
    }

    fn note_first(&mut self) {
        let first = self.members().next();
        self.first = first.map_or(f64::NAN, |one| one.score);
        debug_assert!(!self.first.is_nan(), "a chunk without members");
    }
}

impl MemberOrder {
    /// Returns the number of members.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of memory that the index takes.
    pub fn memory_bytes(&self) -> usize {
        // Vectors of chunks have room for up to twice as many.
        let chunk = size_of::<MemberChunk>() * 4 / 3 + ALLOCATION_BYTES;
        size_of::<MemberOrder>()
            + self.allocated
            + self.chunks * chunk
            + self.blocks.len() * (size_of::<ChunkBlock>() + ALLOCATION_BYTES)
    }

    /// Returns the place in front of which all members are before it. `is_before` is true for the
    /// members up to some place, and false behind it. `begins_before` tells the same of a chunk.
    fn place(
        &self,
        begins_before: impl Fn(&MemberChunk) -> bool,
        is_before: &impl Fn(ScoredMember<'_>) -> bool,
    ) -> Option<OrderPlace> {
        let begins = |block: &ChunkBlock| block.chunks.first().is_some_and(&begins_before);
        let block = self.blocks.partition_point(begins).saturating_sub(1);
        let chunks = &self.blocks.get(block)?.chunks;
        let chunk = chunks.partition_point(&begins_before).saturating_sub(1);
        let (before, offset) = chunks.get(chunk)?.before(is_before);
        Some(OrderPlace { block, chunk, before, offset })
    }

    /// Returns the place in front of the first member that is not less than this one.
    fn place_of(&self, one: ScoredMember<'_>) -> Option<OrderPlace> {
        let is_before = |other: ScoredMember<'_>| other.order(&one).is_lt();
        let begins_before = |chunk: &MemberChunk| match chunk.first.partial_cmp(&one.score) {
            Some(Ordering::Less) => true,
            Some(Ordering::Greater) => false,
            Some(Ordering::Equal) | None => {
                chunk.members().next().is_some_and(|first| first.order(&one).is_le())
            }
        };
        self.place(begins_before, &is_before)
    }

    /// Returns the member at a place.
    fn at(&self, place: OrderPlace) -> Option<ScoredMember<'_>> {
        let chunk = self.blocks.get(place.block)?.chunks.get(place.chunk)?;
        let (member, _) = read_member(chunk.bytes.get(place.offset..)?)?;
        Some(member)
    }

    /// Returns the number of members before a place.
    fn rank_at(&self, place: OrderPlace) -> usize {
        let blocks = self.blocks[..place.block].iter().map(|block| block.count);
        let chunks = &self.blocks[place.block].chunks[..place.chunk];
        blocks.sum::<usize>() + chunks.iter().map(|chunk| chunk.count).sum::<usize>() + place.before
    }

    /// Returns the number of members before this one; `None`: it is not there.
    pub fn rank(&self, one: ScoredMember<'_>) -> Option<usize> {
        let place = self.place_of(one)?;
        let is_there = self.at(place).is_some_and(|found| found.order(&one).is_eq());
        is_there.then(|| self.rank_at(place))
    }

    /// Returns the ranks of the members within a range.
    pub fn ranks_within(&self, range: &MemberRange<'_>) -> Range<usize> {
        let rank_of = |is_before: &dyn Fn(ScoredMember<'_>) -> bool| {
            let is_before = |one: ScoredMember<'_>| is_before(one);
            let begins_before = |chunk: &MemberChunk| chunk.begins_before(&is_before);
            self.place(begins_before, &is_before).map_or(0, |place| self.rank_at(place))
        };
        let start = rank_of(&|one| !range.begins_before(one));
        let end = rank_of(&|one| range.ends_behind(one));
        start..end.max(start)
    }

    /// Returns the members of these ranks, in order.
    pub fn members(&self, ranks: Range<usize>) -> Vec<ScoredMember<'_>> {
        let ranks = ranks.start.min(self.count)..ranks.end.min(self.count);
        let mut members = Vec::with_capacity(ranks.len());
        let (mut skip, mut first) = (ranks.start, 0);
        while let Some(block) = self.blocks.get(first).filter(|block| block.count <= skip) {
            (skip, first) = (skip - block.count, first + 1);
        }
        for chunk in self.blocks[first..].iter().flat_map(|block| &block.chunks) {
            if members.len() == ranks.len() {
                break;
            }
            if skip >= chunk.count {
                skip -= chunk.count;
                continue;
            }
            let wanted = ranks.len() - members.len();
            members.extend(chunk.members().skip(skip).take(wanted));
            skip = 0;
        }
        assert!(members.len() == ranks.len(), "members are miscounted");
        members
    }

    /// Adds a member, unless it is there with this score. Returns whether it is new.
    pub fn insert(&mut self, new: ScoredMember<'_>) -> bool {
        let Some(place) = self.place_of(new) else {
            let chunk = MemberChunk::of_one(new);
            self.allocated += chunk.bytes.capacity();
            self.blocks.push(ChunkBlock { chunks: vec![chunk], count: 1 });
            (self.count, self.chunks) = (1, 1);
            return true;
        };
        if self.at(place).is_some_and(|found| found.order(&new).is_eq()) {
            return false;
        }
        self.count += 1;
        let is_last_block = place.block + 1 == self.blocks.len();
        let block = &mut self.blocks[place.block];
        block.count += 1;
        let is_last = is_last_block && place.chunk + 1 == block.chunks.len();
        let chunk = &mut block.chunks[place.chunk];
        self.allocated -= chunk.bytes.capacity();
        let is_at_end = place.offset == chunk.bytes.len();
        insert_bytes(&mut chunk.bytes, place.offset, new);
        chunk.count += 1;
        if place.offset == 0 {
            chunk.first = new.score;
        }
        if chunk.bytes.len() > CHUNK_BYTES_MAX && chunk.count > 1 {
            // Members that are added in order leave full chunks behind.
            let kept = if is_last && is_at_end { chunk.count - 1 } else { chunk.count / 2 };
            let behind = chunk.divide(kept);
            self.allocated += chunk.bytes.capacity() + behind.bytes.capacity();
            self.chunks += 1;
            block.chunks.insert(place.chunk + 1, behind);
            self.divide_block(place.block);
        } else {
            self.allocated += chunk.bytes.capacity();
        }
        true
    }

    /// Divides a block that has too many chunks.
    fn divide_block(&mut self, at: usize) {
        let is_last = at + 1 == self.blocks.len();
        let block = &mut self.blocks[at];
        if block.chunks.len() <= BLOCK_CHUNKS_MAX {
            return;
        }
        let kept = if is_last { BLOCK_CHUNKS_MAX } else { block.chunks.len() / 2 };
        let chunks = block.chunks.split_off(kept);
        let count = chunks.iter().map(|chunk| chunk.count).sum();
        block.count -= count;
        self.blocks.insert(at + 1, ChunkBlock { chunks, count });
    }

    /// Removes a member with this score. Returns whether it was there.
    pub fn remove(&mut self, old: ScoredMember<'_>) -> bool {
        let Some(place) = self.place_of(old) else { return false };
        if self.at(place).is_none_or(|found| found.order(&old).is_ne()) {
            return false;
        }
        self.count -= 1;
        let block = &mut self.blocks[place.block];
        block.count -= 1;
        let chunk = &mut block.chunks[place.chunk];
        self.allocated -= chunk.bytes.capacity();
        let behind = chunk.bytes.len() - read_behind(&chunk.bytes[place.offset..]);
        chunk.bytes.drain(place.offset..behind);
        chunk.count -= 1;
        if chunk.count > 0 {
            if place.offset == 0 {
                chunk.note_first();
            }
            if chunk.bytes.len() < chunk.bytes.capacity() / 4 {
                chunk.bytes.shrink_to_fit();
            }
            self.allocated += chunk.bytes.capacity();
            self.join_chunks(place.block, place.chunk);
            return true;
        }
        block.chunks.remove(place.chunk);
        self.chunks -= 1;
        if block.chunks.is_empty() {
            self.blocks.remove(place.block);
        } else {
            self.join_blocks(place.block);
        }
        true
    }

    /// Joins a chunk with the next one of its block if they are short.
    fn join_chunks(&mut self, block: usize, at: usize) {
        let chunks = &mut self.blocks[block].chunks;
        let at = at.min(chunks.len().saturating_sub(2));
        let [first, second, ..] = &mut chunks[at..] else { return };
        if first.bytes.len() + second.bytes.len() >= JOINED_BYTES_MAX {
            return;
        }
        self.allocated -= first.bytes.capacity() + second.bytes.capacity();
        first.bytes.extend_from_slice(&second.bytes);
        first.count += second.count;
        self.allocated += first.bytes.capacity();
        chunks.remove(at + 1);
        self.chunks -= 1;
        self.join_blocks(block);
    }

    /// Joins a block with the next one if they have few chunks.
    fn join_blocks(&mut self, at: usize) {
        let at = at.min(self.blocks.len().saturating_sub(2));
        let [first, second, ..] = &mut self.blocks[at..] else { return };
        if first.chunks.len() + second.chunks.len() < BLOCK_CHUNKS_MAX / 2 {
            first.chunks.append(&mut second.chunks);
            first.count += second.count;
            self.blocks.remove(at + 1);
        }
    }
}

/// Memory that an allocation takes beside its bytes, about.
const ALLOCATION_BYTES: usize = 16;

/// Returns the number of bytes behind the first member of encoded ones.
fn read_behind(bytes: &[u8]) -> usize {
    read_member(bytes).map_or(0, |(_, rest)| rest.len())
}

/// Inserts an encoded member at an offset.
fn insert_bytes(bytes: &mut Vec<u8>, offset: usize, new: ScoredMember<'_>) {
    let old = bytes.len();
    write_member(new, bytes);
    let added = bytes.len() - old;
    bytes[offset..].rotate_right(added);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sorted_set::{MemberBound, ScoreBound};

    type Twin = Vec<(f64, Vec<u8>)>;

    fn scored((score, member): &(f64, Vec<u8>)) -> ScoredMember<'_> {
        ScoredMember { score: *score, member }
    }

    fn place_in(twin: &Twin, one: ScoredMember<'_>) -> Result<usize, usize> {
        twin.binary_search_by(|other| scored(other).order(&one))
    }

    fn check(order: &MemberOrder, twin: &Twin) {
        assert_eq!(order.count(), twin.len());
        let all: Vec<_> = twin.iter().map(scored).collect();
        assert_eq!(order.members(0..twin.len()), all);
        let allocated: usize =
            order.blocks.iter().flat_map(|it| &it.chunks).map(|it| it.bytes.capacity()).sum();
        assert_eq!(order.allocated, allocated);
        assert_eq!(order.chunks, order.blocks.iter().map(|it| it.chunks.len()).sum::<usize>());
        for block in &order.blocks {
            assert!((1..=BLOCK_CHUNKS_MAX).contains(&block.chunks.len()));
            assert_eq!(block.count, block.chunks.iter().map(|it| it.count).sum::<usize>());
            for chunk in &block.chunks {
                assert!(chunk.bytes.len() <= CHUNK_BYTES_MAX || chunk.count == 1);
                let members: Vec<_> = chunk.members().collect();
                assert_eq!((members.len(), members[0].score), (chunk.count, chunk.first));
            }
        }
    }

    /// Compares searches for random ranks and ranges.
    fn check_searches(order: &MemberOrder, twin: &Twin, random: &mut fastrand::Rng) {
        let (one, other) = (random.usize(..=twin.len()), random.usize(..=twin.len()));
        let ranks = one.min(other)..one.max(other);
        let expected: Vec<_> = twin[ranks.clone()].iter().map(scored).collect();
        assert_eq!(order.members(ranks), expected);
        let bound = |random: &mut fastrand::Rng| ScoreBound {
            score: twin.get(random.usize(..=twin.len())).map_or(0.5, |(score, _)| *score),
            is_included: random.bool(),
        };
        let scores = MemberRange::Scores { low: bound(random), high: bound(random) };
        check_range(order, twin, scores);
    }

    fn check_range(order: &MemberOrder, twin: &Twin, range: MemberRange<'_>) {
        let first = twin.iter().position(|one| range.begins_before(scored(one)));
        let first = first.unwrap_or(twin.len());
        let behind = twin.iter().position(|one| !range.ends_behind(scored(one)));
        let behind = behind.unwrap_or(twin.len()).max(first);
        assert_eq!(order.ranks_within(&range), first..behind, "{range:?}");
    }

    /// Makes random changes, and compares with the twin.
    fn change(rounds: usize, scores: u32, random: &mut fastrand::Rng) {
        let (mut order, mut twin) = (MemberOrder::default(), Twin::new());
        let grows = [9, 2, 8, 0];
        for round in 0..rounds {
            let member = random.u32(..2_000).to_string().repeat(random.usize(1..4)).into_bytes();
            let mut one = (f64::from(random.u32(..scores)), member);
            if random.u8(..10) < grows[4 * round / rounds] || twin.is_empty() {
                let place = place_in(&twin, scored(&one));
                assert_eq!(order.rank(scored(&one)), place.ok());
                assert_eq!(order.insert(scored(&one)), place.is_err());
                if let Err(place) = place {
                    twin.insert(place, one);
                }
            } else {
                if random.u8(..4) > 0 {
                    one = twin[random.usize(..twin.len())].clone();
                }
                let place = place_in(&twin, scored(&one));
                assert_eq!(order.rank(scored(&one)), place.ok());
                assert_eq!(order.remove(scored(&one)), place.is_ok());
                place.ok().map(|place| twin.remove(place));
            }
            if round % 64 == 0 {
                check(&order, &twin);
                check_searches(&order, &twin, random);
            }
        }
        check(&order, &twin);
        for one in std::mem::take(&mut twin) {
            assert!(order.remove(scored(&one)));
        }
        check(&order, &twin);
        assert_eq!(order.allocated, 0);
    }

    #[test]
    fn an_order_behaves_like_a_sorted_list() {
        let mut random = fastrand::Rng::with_seed(41);
        for scores in [1, 3, 50, u32::MAX] {
            for rounds in [20, 400, 12_000] {
                change(rounds, scores, &mut random);
            }
        }
    }

    #[test]
    fn an_order_of_many_blocks_behaves_like_a_sorted_list() {
        let mut random = fastrand::Rng::with_seed(42);
        let mut order = MemberOrder::default();
        let mut twin: Twin = (0..40_000_u32)
            .map(|number| (f64::from(random.u32(..9_000)), format!("member:{number}").into()))
            .collect();
        twin.iter().for_each(|one| assert!(order.insert(scored(one))));
        twin.sort_by(|one, other| scored(one).order(&scored(other)));
        assert!(order.blocks.len() > 4, "{}", order.blocks.len());
        check(&order, &twin);
        (0..200).for_each(|_| check_searches(&order, &twin, &mut random));
        while twin.len() > 100 {
            let first = random.usize(..twin.len());
            let removed = twin.drain(first..(first + 1_000).min(twin.len()));
            removed.for_each(|one| assert!(order.remove(scored(&one))));
            check(&order, &twin);
            check_searches(&order, &twin, &mut random);
        }
        assert!(order.chunks < 20, "{} chunks", order.chunks);
    }

    #[test]
    fn members_between_others_are_found_by_their_bytes() {
        let (mut order, mut twin) = (MemberOrder::default(), Twin::new());
        for number in 0..500_u32 {
            let one = (0.0, format!("{:03}", number * 2).into_bytes());
            assert!(order.insert(scored(&one)));
            twin.push(one);
        }
        let bounds = [&b"000"[..], b"401", b"402", b"998", b"999", b""];
        let bounds = bounds
            .into_iter()
            .flat_map(|member| [MemberBound::Including(member), MemberBound::Excluding(member)]);
        let bounds: Vec<_> = bounds.chain([MemberBound::Lowest, MemberBound::Highest]).collect();
        for &low in &bounds {
            for &high in &bounds {
                check_range(&order, &twin, MemberRange::Members { low, high });
            }
        }
    }

    #[test]
    fn members_that_are_added_in_order_fill_their_chunks() {
        let mut order = MemberOrder::default();
        for number in 0..20_000_u32 {
            let member = format!("{number:010}");
            order.insert(ScoredMember { score: f64::from(number), member: member.as_bytes() });
        }
        let (bytes, memory) = (20_000 * 19, order.memory_bytes());
        assert!(memory < bytes * 5 / 4, "{memory} for {bytes}");
    }
}
