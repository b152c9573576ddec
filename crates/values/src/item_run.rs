//! Consecutive items of a list while a command changes them: pieces of packed lists, which are not
//! copied before they are written.

use crate::list::{ListEnd, PackedList, write_packed};
use crate::packed::Damaged;
use std::collections::VecDeque;

/// Consecutive items of a list.
#[derive(Clone, Debug)]
pub struct ItemRun<'a> {
    first: PackedList<'a>,
    /// No piece is empty.
    rest: VecDeque<PackedList<'a>>,
}

impl<'a> From<PackedList<'a>> for ItemRun<'a> {
    fn from(items: PackedList<'a>) -> ItemRun<'a> {
        ItemRun { first: items, rest: VecDeque::new() }
    }
}

impl<'a> ItemRun<'a> {
    /// The run without items.
    pub const EMPTY: ItemRun<'static> = ItemRun { first: PackedList::EMPTY, rest: VecDeque::new() };

    /// Returns the pieces from left to right.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = PackedList<'a>> + Clone {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Returns the number of items.
    pub fn count(&self) -> u64 {
        self.parts().map(|part| part.count() as u64).sum()
    }

    /// Returns the bytes of all encoded items together.
    pub fn byte_count(&self) -> u64 {
        self.parts().map(|part| part.byte_count() as u64).sum()
    }

    /// Returns the items from left to right.
    pub fn items(&self) -> impl Iterator<Item = Result<&'a [u8], Damaged>> + use<'a> {
        let parts: Vec<PackedList<'a>> = self.parts().collect();
        parts.into_iter().flat_map(PackedList::items)
    }

    /// Adds items at an end, in their order.
    pub(crate) fn push(&mut self, end: ListEnd, items: PackedList<'a>) {
        match end {
            _ if items.count() == 0 => {}
            ListEnd::Left if self.first.count() == 0 => self.first = items,
            ListEnd::Right if self.rest.is_empty() && self.first.count() == 0 => self.first = items,
            ListEnd::Left => self.rest.push_front(std::mem::replace(&mut self.first, items)),
            ListEnd::Right => self.rest.push_back(items),
        }
    }

    /// Adds the pieces of another run at an end, which costs time in proportion to that run.
    fn push_run(&mut self, end: ListEnd, other: ItemRun<'a>) {
        match end {
            ListEnd::Left => other.parts().rev().for_each(|part| self.push(end, part)),
            ListEnd::Right => other.parts().for_each(|part| self.push(end, part)),
        }
    }

    /// Adds another run at an end.
    pub(crate) fn join(&mut self, end: ListEnd, other: ItemRun<'a>) {
        let before = match end {
            ListEnd::Left => std::mem::replace(self, other),
            ListEnd::Right => other,
        };
        self.push_run(ListEnd::Right, before);
    }

    /// Returns runs together that were read from an end on, from left to right.
    pub(crate) fn together(mut runs: Vec<ItemRun<'a>>, end: ListEnd) -> ItemRun<'a> {
        if end == ListEnd::Right {
            runs.reverse();
        }
        let mut all = ItemRun::EMPTY;
        runs.into_iter().for_each(|run| all.join(ListEnd::Right, run));
        all
    }

    /// Appends the items as a packed list.
    pub fn encode(&self, out: &mut Vec<u8>) {
        write_packed(self.parts(), out);
    }

    /// Removes the items at an end: so many, or all if there are fewer. Returns them.
    pub(crate) fn take(&mut self, end: ListEnd, count: u64) -> Result<ItemRun<'a>, Damaged> {
        let at = match end {
            ListEnd::Left => count,
            ListEnd::Right => self.count().saturating_sub(count),
        };
        let [left, right] = self.split_at(at)?;
        let (taken, rest) = match end {
            ListEnd::Left => (left, right),
            ListEnd::Right => (right, left),
        };
        *self = rest;
        Ok(taken)
    }

    /// Returns the items before a position, and the others.
    pub(crate) fn split_at(&self, at: u64) -> Result<[ItemRun<'a>; 2], Damaged> {
        let (mut left, mut right) = (ItemRun::EMPTY, ItemRun::EMPTY);
        let mut to_pass = at;
        for part in self.parts() {
            let passed = to_pass.min(part.count() as u64);
            to_pass -= passed;
            let [before, after] = part.split_at(passed as usize)?;
            left.push(ListEnd::Right, before);
            right.push(ListEnd::Right, after);
        }
        Ok([left, right])
    }

    /// Removes as many items at an end as `bytes_max` bytes hold. Returns them.
    pub(crate) fn take_bytes(
        &mut self,
        end: ListEnd,
        bytes_max: usize,
    ) -> Result<ItemRun<'a>, Damaged> {
        let (mut taken, mut left) = (ItemRun::EMPTY, bytes_max);
        while let Some(part) = self.pop_part(end) {
            let [before, after] = part.split_bytes(end, left)?;
            let (items, rest) = match end {
                ListEnd::Left => (before, after),
                ListEnd::Right => (after, before),
            };
            left -= items.byte_count();
            taken.push(end.other(), items);
            if rest.count() > 0 {
                self.push(end, rest);
                break;
            }
        }
        Ok(taken)
    }

    /// Removes the piece at an end; `None`: there are no items.
    fn pop_part(&mut self, end: ListEnd) -> Option<PackedList<'a>> {
        if self.first.count() == 0 {
            self.first = self.rest.pop_front()?;
        }
        let part = match end {
            ListEnd::Left => {
                let next = self.rest.pop_front().unwrap_or(PackedList::EMPTY);
                std::mem::replace(&mut self.first, next)
            }
            ListEnd::Right => match self.rest.pop_back() {
                Some(part) => part,
                None => std::mem::replace(&mut self.first, PackedList::EMPTY),
            },
        };
        assert!(part.count() > 0, "a piece behind the first one has items");
        Some(part)
    }

    /// Divides the items into runs of at most `bytes_max` bytes or one item, from left to right. The
    /// runs are filled from `end` on, so only the one at the other end may have few items.
    pub(crate) fn divide(
        mut self,
        end: ListEnd,
        bytes_max: usize,
    ) -> Result<Vec<ItemRun<'a>>, Damaged> {
        let mut runs = Vec::new();
        loop {
            let mut run = self.take_bytes(end, bytes_max)?;
            if run.count() == 0 {
                // The next item is longer than a run, or there is none.
                let Some(part) = self.pop_part(end) else { break };
                let mut part = ItemRun::from(part);
                run = part.take(end, 1)?;
                self.push_run(end, part);
            }
            runs.push(run);
        }
        if end == ListEnd::Right {
            runs.reverse();
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{items, list, packed};

    fn some_items(random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
        (0..random.usize(..4)).map(|_| vec![random.u8(..); random.usize(..20)]).collect()
    }

    #[test]
    fn runs_are_joined_taken_apart_and_divided_like_vectors() {
        let mut random = fastrand::Rng::with_seed(41);
        for _ in 0..3_000 {
            let pieces: Vec<Vec<Vec<u8>>> =
                (0..random.usize(1..6)).map(|_| some_items(&mut random)).collect();
            let encoded: Vec<Vec<u8>> = pieces.iter().map(|piece| packed(piece)).collect();
            let (mut run, mut twin) = (ItemRun::EMPTY, Vec::new());
            for (piece, bytes) in pieces.iter().zip(&encoded) {
                if random.bool() {
                    run.push(ListEnd::Right, list(bytes));
                    twin.extend(piece.iter().cloned());
                } else {
                    run.join(ListEnd::Left, list(bytes).into());
                    twin.splice(0..0, piece.iter().cloned());
                }
            }
            assert_eq!((run.count(), items(&run)), (twin.len() as u64, twin.clone()));
            let at = random.usize(..=twin.len());
            let [left, right] = run.split_at(at as u64).unwrap();
            assert_eq!((items(&left), items(&right)), (twin[..at].to_vec(), twin[at..].to_vec()));
            let (end, bytes_max) = (end(&mut random), random.usize(1..60));
            let divided = run.clone().divide(end, bytes_max).unwrap();
            assert_eq!(divided.iter().flat_map(items).collect::<Vec<_>>(), twin);
            assert!(divided.iter().all(|run| run.byte_count() <= bytes_max as u64
                || (run.count() == 1 && run.byte_count() > 0)));
            let taken = run.take(end, at as u64).unwrap();
            let place = if end == ListEnd::Left { at } else { twin.len() - at };
            let [left, right] = [twin[..place].to_vec(), twin[place..].to_vec()];
            let expected = if end == ListEnd::Left { (left, right) } else { (right, left) };
            assert_eq!((items(&taken), items(&run)), expected);
        }
    }

    fn end(random: &mut fastrand::Rng) -> ListEnd {
        if random.bool() { ListEnd::Left } else { ListEnd::Right }
    }
}
