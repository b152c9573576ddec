//! The way from a slot's cell down to its leaves.
//!
//! A cell is empty, or names a leaf, or names a directory of eight cells, one for each value of
//! the next three hash bits. A cell changes only from empty to a node, or from a leaf to what
//! replaces it, and the latter only by who holds the leaf. So no directory needs a lock.

use super::{
    bucket::{Cell, Child, Node, WORDS, pause},
    leaf::Leaf,
    word::{TAG_BITS, Tag},
};
use crate::log::Turn;

/// Tag bits that one directory decides: its eight cells fill one cache line.
pub(super) const FAN_BITS: u32 = 3;
/// Cells of a directory.
pub(super) const FAN: usize = 1 << FAN_BITS;
const _: () = assert!(FAN == WORDS);

/// Directories stop here: six tag bits are left, so leaves have at most 64 buckets. A slot then
/// holds up to about 100 million records.
pub(super) const DEPTH_MAX: u32 = 18;

/// Looks at a lock before its holder is taken to be away: a few microseconds.
const SPINS: u32 = 64;

/// Where a tag belongs.
#[derive(Clone, Copy)]
pub(super) struct Place<'t> {
    /// The lowest cell on the way.
    pub(super) cell: &'t Cell,
    /// Tag bits that were decided on the way to the cell.
    pub(super) depth: u32,
    /// The leaf in the cell, if it is not empty.
    pub(super) leaf: Option<(Node, Leaf<'t>)>,
}

/// Which of a directory's cells the tag belongs to.
#[inline]
pub(super) fn digit(tag: Tag, depth: u32) -> usize {
    (tag.0 >> (TAG_BITS - depth - FAN_BITS)) as usize & (FAN - 1)
}

/// Goes down from `cell` to the leaf of the tag.
#[inline]
pub(super) fn descend<'t>(
    mut cell: &'t Cell,
    mut depth: u32,
    tag: Tag,
    turn: &'t Turn<'_>,
) -> Place<'t> {
    loop {
        let Some(node) = Node::in_cell(cell) else { return Place { cell, depth, leaf: None } };
        match node.open(turn) {
            Child::Leaf(buckets) => {
                return Place { cell, depth, leaf: Some((node, Leaf::new(buckets, depth))) };
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

/// Visits all nodes from this one down, a directory after what it leads to.
pub(super) fn for_each_node(node: Node, turn: &Turn<'_>, visit: &mut impl FnMut(Node)) {
    if let Child::Directory(cells) = node.open(turn) {
        for below in cells.iter().filter_map(Node::in_cell) {
            for_each_node(below, turn, visit);
        }
    }
    visit(node);
}

/// Tries `attempt` until it gives something, for a few microseconds.
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
