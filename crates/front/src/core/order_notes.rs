//! The changes that an update makes to the members of a sorted set with pages, for its order.

use super::data::Record;
use node::{MemberChange, OrderState, SharedOrder};
use smallvec::SmallVec;
use types::Version;
use values::{Damaged, Elements, MemberOrder, Root};

/// Most members of a value whose order is made at once when it is divided.
const MEMBERS_AT_ONCE: u64 = 4_096;

/// The locked order of a value that is changed.
pub(super) struct KeptOrder<'o> {
    /// Position of the value.
    pub(super) at: usize,
    /// Its root.
    pub(super) root: Root,
    pub(super) shared: &'o SharedOrder,
    pub(super) state: &'o mut OrderState,
}

impl KeptOrder<'_> {
    /// Returns the same order for one of several attempts.
    pub(super) fn again(&mut self) -> KeptOrder<'_> {
        let KeptOrder { at, root, shared, state } = self;
        KeptOrder { at: *at, root: *root, shared, state }
    }
}

/// The changes that an attempt makes to the members of sorted sets.
#[derive(Default)]
pub(super) struct OrderNotes {
    /// Set if changes are noted.
    is_wanted: bool,
    /// Position of the value that has an order.
    pub(super) at: Option<usize>,
    /// Version of its root before the change.
    pub(super) before: Option<Version>,
    pub(super) changes: SmallVec<[MemberChange; 1]>,
    /// Set if it has no members any more.
    pub(super) is_removed: bool,
    /// Position and order of a value that is divided.
    pub(super) divided: Option<(usize, MemberOrder)>,
}

impl OrderNotes {
    /// Returns the notes of an attempt that changes the order of the value at this position.
    pub(super) fn of(at: Option<usize>) -> OrderNotes {
        OrderNotes { is_wanted: true, at, ..OrderNotes::default() }
    }

    /// Notes the changes of an attempt that is about to be written. `is_divided` tells which values get
    /// their first pages.
    pub(super) fn note(
        &mut self,
        opened: &[Elements<'_>],
        roots: &[Option<Record<'_>>],
        is_divided: impl Fn(usize) -> bool,
    ) -> Result<(), Damaged> {
        if !self.is_wanted {
            return Ok(());
        }
        for (at, elements) in opened.iter().enumerate() {
            if is_divided(at) && elements.count() <= MEMBERS_AT_ONCE {
                let mut order = MemberOrder::default();
                for one in elements.sorted_members()? {
                    order.insert(one);
                }
                self.divided = Some((at, order));
            }
        }
        let Some(at) = self.at else { return Ok(()) };
        self.before = roots[at].map(|root| root.version);
        self.is_removed = opened[at].count() == 0;
        let mut noted = Ok(());
        opened[at].changes(|old, new| match MemberChange::of(old, new) {
            Ok(change) => self.changes.push(change),
            Err(damaged) => noted = Err(damaged),
        })?;
        noted
    }
}
