//! The leaves of a slot, detached from the index as a whole. So flushing a table needs no work in
//! advance.

use super::bucket::{Cell, Child, Node};
use super::leaf::Leaf;
use super::slab::Slab;
use super::tree::{FAN_BITS, for_each_leaf, for_each_node, spin};
use super::word::Word;
use super::{Contended, Index};
use crate::log::Turn;
use std::sync::{Arc, atomic::Ordering};
use types::Slot;

/// Former content of a slot. The holder drains its words in steps, which also frees the memory.
#[must_use = "words that are not drained are lost"]
pub struct DetachedLeaves {
    slab: Arc<Slab>,
    /// Remaining nodes, the next one last.
    nodes: Vec<Node>,
}

impl Index {
    /// Detaches all leaves of the slot; returns `None` if it has none. The caller must ensure
    /// that no thread inserts into the slot. Another thread (the cleaner) may hold a leaf
    /// briefly: then the call detaches nothing and may be retried.
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
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} bytes are detached of {before}");
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
    /// Passes the words of the next leaves, of about `buckets` buckets, to `visit` and frees the
    /// leaves. Returns whether all are drained.
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
