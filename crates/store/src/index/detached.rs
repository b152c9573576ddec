//! A slot's leaves taken out of the index whole, so that emptying a table costs nothing up front.

use super::{
    Contended, Index,
    bucket::{Cell, Child, Node},
    leaf::Leaf,
    slab::Slab,
    tree::{FAN_BITS, for_each_leaf, for_each_node, spin},
    word::Word,
};
use crate::log::Turn;
use std::sync::{Arc, atomic::Ordering};
use types::Slot;

/// What a slot held. Its words are visited in steps, and the memory is freed as they are: whoever
/// has it drains it.
#[must_use = "what is not drained is lost"]
pub struct DetachedLeaves {
    slab: Arc<Slab>,
    /// What is left, the next last.
    nodes: Vec<Node>,
}

impl Index {
    /// Takes all of the slot's leaves out; `None` if it has none. Who does so has made sure that
    /// nobody inserts into the slot. Others may hold a leaf for a moment (the cleaner): then
    /// nothing is taken out, and the same call may succeed later.
    pub fn detach_slot(
        &self,
        slot: Slot,
        turn: &Turn<'_>,
    ) -> Result<Option<DetachedLeaves>, Contended> {
        self.check(turn);
        let cell = self.cell(slot);
        let Some(node) = Node::in_cell(cell) else { return Ok(None) };
        if !lock_all(cell, 0, turn) {
            return Err(Contended);
        }
        let node = Node::in_cell(cell).unwrap_or(node);
        cell.store(0);
        let mut bytes = 0;
        for_each_node(node, turn, &mut |node| bytes += node.bytes());
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(Some(DetachedLeaves { slab: Arc::clone(&self.slab), nodes: vec![node] }))
    }
}

/// Locks every leaf below the cell, or none.
fn lock_all(cell: &Cell, depth: u32, turn: &Turn<'_>) -> bool {
    let locked = spin(|| match Node::in_cell(cell).map(|node| node.open(turn)) {
        None => Some(None),
        Some(Child::Directory(cells)) => Some(Some(cells)),
        Some(Child::Leaf(buckets)) => Leaf::new(buckets, depth).try_lock().then_some(None),
    });
    let Some(below) = locked else { return false };
    let Some(cells) = below else { return true };
    for (place, child) in cells.iter().enumerate() {
        if !lock_all(child, depth + FAN_BITS, turn) {
            for locked in &cells[..place] {
                for_each_leaf(locked, depth + FAN_BITS, turn, &mut Leaf::unlock);
            }
            return false;
        }
    }
    true
}

impl DetachedLeaves {
    /// Visits the words of the next leaves, of about this many buckets, and frees them. Returns
    /// whether all have been visited.
    pub fn drain(&mut self, buckets: usize, turn: &Turn<'_>, mut visit: impl FnMut(Word)) -> bool {
        assert!(self.slab.vouches_for(turn), "a turn of another store");
        let mut seen = 0;
        while seen < buckets
            && let Some(node) = self.nodes.pop()
        {
            seen += node.buckets();
            match node.open(turn) {
                Child::Leaf(buckets) => Leaf::new(buckets, 0).words().for_each(&mut visit),
                Child::Directory(cells) => {
                    self.nodes.extend(cells.iter().rev().filter_map(Node::in_cell));
                }
            }
            self.slab.retire(node);
        }
        self.nodes.is_empty()
    }
}

impl std::fmt::Debug for DetachedLeaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DetachedLeaves").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
