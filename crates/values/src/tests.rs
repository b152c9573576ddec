//! Lists and their items, for the tests of several files.

use crate::item_run::ItemRun;
use crate::list::{ListPart, PackedList, encode_list};
use types::{TypedValue, ValueType};

/// Returns the packed list of these items.
pub(crate) fn packed(items: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_list(items.iter().map(|item| ListPart::Item(item)), &mut bytes);
    bytes
}

pub(crate) fn list(bytes: &[u8]) -> PackedList<'_> {
    PackedList::parse(TypedValue { value_type: ValueType::List, bytes }).expect("a list")
}

pub(crate) fn items(run: &ItemRun<'_>) -> Vec<Vec<u8>> {
    run.items().map(|item| item.unwrap().to_vec()).collect()
}
