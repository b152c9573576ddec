//! Lists in dumps: a list of nodes, each of which is a listpack or one long item (Redis's quicklist,
//! version 2). The older encodings, a list of ziplists and a list of strings, are read as well.

use crate::dump_parts::{
    add_within_limit, put_bytes, put_length, read_length, read_string, with_footer,
};
use crate::list::{ListPart, encode_list};
use crate::listpack::{self, ListpackWriter};
use crate::packed::Damaged;
use crate::ziplist;

/// The type of a list of ziplists that contain the items, as Redis wrote it up to version 6.2.
pub(crate) const TYPE_LIST_ZIPLISTS: u8 = 14;
/// The type of a list of nodes that contain the items.
pub(crate) const TYPE_LIST_NODES: u8 = 18;
/// Kinds of nodes.
const NODE_ITEM: usize = 1;
const NODE_LISTPACK: usize = 2;

/// Most bytes of the encoded items of a list that fits into one listpack. Integers take less than
/// half there, other items as much.
pub const LISTPACK_ITEM_BYTES_MAX: u64 = 4 * listpack::LIST_BYTES_MAX as u64;

/// Returns whether Redis stores a list of these items as one listpack, if it was built there by
/// additions to its right end.
pub fn fits_listpack<'a>(
    items: impl Iterator<Item = Result<&'a [u8], Damaged>>,
) -> Result<bool, Damaged> {
    let mut listpack = ListpackWriter::default();
    for item in items {
        let item = item?;
        if !listpack.has_room(item) {
            return Ok(false);
        }
        listpack.push(item);
    }
    Ok(true)
}

/// Encodes a list of these items as a dump.
pub fn dump_list<'a>(
    items: impl Iterator<Item = Result<&'a [u8], Damaged>>,
) -> Result<Vec<u8>, Damaged> {
    let mut out = vec![TYPE_LIST_NODES];
    put_list(items, &mut out)?;
    Ok(with_footer(out))
}

/// Appends the nodes of a list of these items.
fn put_list<'a>(
    items: impl Iterator<Item = Result<&'a [u8], Damaged>>,
    out: &mut Vec<u8>,
) -> Result<(), Damaged> {
    let (mut nodes, mut count) = (Vec::new(), 0);
    let mut listpack = ListpackWriter::default();
    let end = |listpack: &mut ListpackWriter, nodes: &mut Vec<u8>| {
        let ended = std::mem::take(listpack).end();
        if let Some(bytes) = &ended {
            put_length(NODE_LISTPACK, nodes);
            put_bytes(bytes, nodes);
        }
        usize::from(ended.is_some())
    };
    for item in items {
        let item = item?;
        if !listpack.has_room(item) {
            count += end(&mut listpack, &mut nodes);
        }
        if listpack.has_room(item) {
            listpack.push(item);
        } else {
            put_length(NODE_ITEM, &mut nodes);
            put_bytes(item, &mut nodes);
            count += 1;
        }
    }
    count += end(&mut listpack, &mut nodes);
    put_length(count, out);
    out.extend_from_slice(&nodes);
    Ok(())
}

/// Returns the items of the nodes in `body`. `None` if it is damaged.
pub(crate) fn read_nodes(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (count, mut rest) = read_length(body)?;
    let (mut items, mut total) = (Vec::new(), 0);
    for _ in 0..count {
        let (kind, bytes);
        (kind, rest) = read_length(rest)?;
        (bytes, rest) = read_string(rest)?;
        add_within_limit(&mut total, &bytes)?;
        match kind {
            NODE_ITEM => items.push(bytes),
            NODE_LISTPACK => items.append(&mut listpack::read_entries(&bytes)?),
            _ => return None,
        }
    }
    Some(items)
}

/// Returns the items of the ziplists in `body`. `None` if it is damaged.
pub(crate) fn read_ziplists(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (count, mut rest) = read_length(body)?;
    let (mut items, mut total) = (Vec::new(), 0);
    for _ in 0..count {
        let bytes;
        (bytes, rest) = read_string(rest)?;
        add_within_limit(&mut total, &bytes)?;
        items.append(&mut ziplist::read_entries(&bytes)?);
    }
    Some(items)
}

/// Returns the packed list of these items. `None` if there are none.
pub(crate) fn pack(items: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    encode_list(items.iter().map(|item| ListPart::Item(item)), &mut bytes);
    (!items.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::tests::restore;
    use crate::{PackedList, dump};
    use types::limits::VALUE_BYTES_MAX;
    use types::{TypedValue, ValueType};

    /// Dumps of lists, with their items, recorded from Valkey 9.1.2.
    fn recorded() -> [(&'static [u8], Vec<Vec<u8>>); 3] {
        let numbers = [
            "1",
            "-5",
            "127",
            "128",
            "-4096",
            "4096",
            "-32769",
            "8388607",
            "8388608",
            "2147483648",
            "hello",
            "",
        ];
        [
            (
                b"\x12\x01\x02\r\r\x00\x00\x00\x02\x00\x81a\x02\x81b\x02\xffP\x00\xa7\xc1\xc3\x18\x8d\x13\xdcE",
                vec![b"a".to_vec(), b"b".to_vec()],
            ),
            (
                b"\x12\x01\x02;;\x00\x00\x00\x0c\x00\x01\x01\xdf\xfb\x02\x7f\x01\xc0\x80\x02\xd0\x00\x02\xf1\x00\x10\x03\xf2\xff\x7f\xff\x04\xf2\xff\xff\x7f\x04\xf3\x00\x00\x80\x00\x05\xf4\x00\x00\x00\x80\x00\x00\x00\x00\x09\x85hello\x06\x80\x01\xffP\x00\xfayE\xd9@#Fs",
                numbers.map(|number| number.as_bytes().to_vec()).to_vec(),
            ),
            (
                b"\x12\x02\x01\xc3@oc(\x01zz\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\x0b\x00\x01zz\x02\x0a\x0a\x00\x00\x00\x01\x00\x81b\x02\xffP\x002p\x15\x97SR\xea\x19",
                vec![vec![b'z'; 9000], b"b".to_vec()],
            ),
        ]
    }

    fn items(value: TypedValue<'_>) -> Vec<Vec<u8>> {
        let list = PackedList::parse(value).unwrap();
        list.items().map(|item| item.unwrap().to_vec()).collect()
    }

    #[test]
    fn lists_of_valkey_are_read() {
        for (recorded, expected) in recorded() {
            assert_eq!(items(restore(recorded).unwrap().value()), expected);
        }
    }

    /// Recorded from Redis 6.2.14. The string that contains the ziplist is compressed.
    #[test]
    fn a_compressed_list_of_redis_6_is_read() {
        let recorded = b"\x0e\x01\xc3@cT\xd3\x04\xd3\x14\x00\x00\xcf \x03\x05\x04\x00\x00S\x88x\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xff\x00\xe0\xee\x00\x07\xfe\x8b\x13\x00\x00A,y\xe0\xff\x00\xe0\x1a\x00\n\xfe3\x01\x00\x00\x01b\x07\x01c\xff\t\x00Lr\x8c\xd1\xcb\xfd\xa9}";
        let expected = [vec![b'x'; 5000], vec![b'y'; 300], b"b".to_vec(), b"c".to_vec()];
        assert_eq!(items(restore(recorded).unwrap().value()), expected);
    }

    #[test]
    fn short_lists_are_dumped_as_valkey_dumps_them() {
        for (recorded, expected) in recorded().into_iter().take(2) {
            let bytes = pack(&expected).unwrap();
            let value = TypedValue { value_type: ValueType::List, bytes: &bytes };
            assert_eq!(dump(value).unwrap(), recorded);
        }
    }

    #[test]
    fn lists_of_any_length_come_back() {
        let mut random = fastrand::Rng::with_seed(41);
        let lengths = [0, 1, 63, 64, 120, 126, 127, 4_095, 4_096, 8_000, 8_192, 8_193, 20_000];
        for count in 1..60 {
            let items: Vec<Vec<u8>> = (0..count)
                .map(|_| match random.bool() {
                    true => random.i64(..).to_string().into_bytes(),
                    false => vec![b'x'; lengths[random.usize(..lengths.len())]],
                })
                .collect();
            let bytes = pack(&items).unwrap();
            let value = TypedValue { value_type: ValueType::List, bytes: &bytes };
            let restored = restore(&dump(value).unwrap()).unwrap();
            assert_eq!(restored.value(), value, "{count} items");
        }
    }

    #[test]
    fn the_encoding_changes_where_that_of_valkey_does() {
        // 7 bytes of the listpack itself, and 103 for each item of 100 bytes.
        for (count, last, expected) in
            [(79, 48, true), (79, 49, false), (1, 8_082, true), (1, 8_083, false)]
        {
            let mut items = vec![vec![b'q'; 100]; count];
            items.push(vec![b'r'; last]);
            let bytes = pack(&items).unwrap();
            let value = TypedValue { value_type: ValueType::List, bytes: &bytes };
            let fits = fits_listpack(PackedList::parse(value).unwrap().items());
            assert_eq!(fits, Ok(expected), "{count} items and one of {last} bytes");
        }
    }

    #[test]
    fn lists_without_items_and_unknown_nodes_are_refused() {
        assert_eq!(pack(&[]), None);
        assert_eq!(read_nodes(b"\x01\x03\x01a"), None);
        assert_eq!(read_nodes(b"\x02\x01\x01a"), None);
        assert_eq!(read_nodes(b"\x01\x02\x01a"), None);
    }

    #[test]
    fn nodes_that_do_not_fit_into_a_value_together_are_refused() {
        let half = vec![b'x'; VALUE_BYTES_MAX / 2];
        let nodes = |count: usize| {
            let mut nodes = Vec::new();
            put_length(count, &mut nodes);
            for _ in 0..count {
                put_length(NODE_ITEM, &mut nodes);
                put_bytes(&half, &mut nodes);
            }
            nodes
        };
        assert_eq!(read_nodes(&nodes(2)).map(|items| items.len()), Some(2));
        assert_eq!(read_nodes(&nodes(3)), None);
    }

    #[test]
    fn ziplists_that_do_not_fit_into_a_value_together_are_refused() {
        let node = ziplist::tests::ziplist(&[&vec![b'x'; VALUE_BYTES_MAX / 2 - 20]]);
        let nodes = |count: usize| {
            let mut nodes = Vec::new();
            put_length(count, &mut nodes);
            for _ in 0..count {
                put_bytes(&node, &mut nodes);
            }
            nodes
        };
        assert_eq!(read_ziplists(&nodes(2)).map(|items| items.len()), Some(2));
        assert_eq!(read_ziplists(&nodes(3)), None);
    }
}
