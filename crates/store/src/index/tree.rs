//! The path from a slot's cell down to its leaves.
//!
//! A cell is empty, or refers to a leaf, or refers to a directory of eight cells, one for each
//! value of the next three hash bits. A cell changes only from empty to a node, or from a leaf to
//! its replacement. Only the holder of the leaf's lock replaces it. So no directory needs a lock.

use super::bucket::{Cell, Child, Node, WORDS, pause};
use super::leaf::Leaf;
use super::word::{TAG_BITS, Tag};
use crate::log::Turn;

/// Tag bits that one directory decides: its eight cells fill one cache line.
pub(super) const FAN_BITS: u32 = 3;
/// Cells of a directory.
pub(super) const FAN: usize = 1 << FAN_BITS;
const _: () = assert!(FAN == WORDS);

/// Maximum depth of directories: six tag bits are left, so leaves have at most 64 buckets. A slot
/// then holds up to about 100 million records.
pub(super) const DEPTH_MAX: u32 = 18;

/// Checks of a lock before its holder is assumed to be descheduled: a few microseconds.
const SPINS: u32 = 64;

/// Position of a tag in the tree.
#[derive(Clone, Copy)]
pub(super) struct TreePosition<'t> {
    /// Lowest cell on the path.
    pub(super) cell: &'t Cell,
    /// Number of tag bits decided on the path to the cell.
    pub(super) depth: u32,
    /// Leaf in the cell, if it is not empty.
    pub(super) leaf: Option<(Node, Leaf<'t>)>,
}

/// Returns the index of the directory cell to which the tag belongs.
#[inline]
pub(super) fn digit(tag: Tag, depth: u32) -> usize {
    debug_assert!(depth + FAN_BITS <= TAG_BITS, "a directory at depth {depth}");
    (tag.0 >> (TAG_BITS - depth - FAN_BITS)) as usize & (FAN - 1)
}

/// Descends from `cell` to the leaf of the tag.
#[inline]
pub(super) fn descend<'t>(
    mut cell: &'t Cell,
    mut depth: u32,
    tag: Tag,
    turn: &'t Turn<'_>,
) -> TreePosition<'t> {
    loop {
        let Some(node) = Node::in_cell(cell) else {
            return TreePosition { cell, depth, leaf: None };
        };
        match node.open(turn) {
            Child::Leaf(buckets) => {
                return TreePosition { cell, depth, leaf: Some((node, Leaf::new(buckets, depth))) };
            }
            Child::Directory(cells) => {
                cell = &cells[digit(tag, depth)];
                depth += FAN_BITS;
            }
        }
    }
}

/// Visits all leaves below the cell, in hash order.
pub(super) fn for_each_leaf<'t>(
    cell: &'t Cell,
    depth: u32,
    turn: &'t Turn<'_>,
    visit: &mut impl FnMut(Leaf<'t>),
) {
    match Node::in_cell(cell).map(|node| node.open(turn)) {
        None => {}
        Some(Child::Leaf(buckets)) => visit(Leaf::new(buckets, depth)),
        Some(Child::Directory(cells)) => {
            for cell in cells {
                for_each_leaf(cell, depth + FAN_BITS, turn, visit);
            }
        }
    }
}

/// Visits all nodes from this one down, a directory after its children.
pub(super) fn for_each_node(node: Node, turn: &Turn<'_>, visit: &mut impl FnMut(Node)) {
    if let Child::Directory(cells) = node.open(turn) {
        for below in cells.iter().filter_map(Node::in_cell) {
            for_each_node(below, turn, visit);
        }
    }
    visit(node);
}

/// Repeats `attempt` until it returns a value, for at most a few microseconds.
#[inline(always)]
pub(super) fn spin<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..SPINS {
        if let Some(found) = attempt() {
            return Some(found);
        }
        pause();
    }
    None
}
