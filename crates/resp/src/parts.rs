//! The second pass over a reply: takes its parts from bytes that a parser has validated.

use crate::item::{Aggregate, Item, ItemReader, read_usual};
use crate::reply::{Items, ReceivedReply, Reply};

impl<'a> ReceivedReply<'a> {
    /// Takes a reply off the front of bytes that begin with a complete, validated reply.
    pub(crate) fn take_parsed(bytes: &mut &'a [u8]) -> ReceivedReply<'a> {
        let mut attributes = Items::default();
        if let Some((reply, taken)) = read_usual(bytes) {
            *bytes = &bytes[taken..];
            return ReceivedReply { reply, attributes };
        }
        loop {
            let reply = match take_item(bytes) {
                Item::Scalar(reply) => reply,
                Item::Aggregate(Aggregate::Array, count) => Reply::Array(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Map, count) => Reply::Map(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Set, count) => Reply::Set(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Push, count) => Reply::Push(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Attribute, count) => {
                    attributes = Items::take(count - 1, bytes);
                    continue;
                }
            };
            return ReceivedReply { reply, attributes };
        }
    }
}

impl<'a> Items<'a> {
    /// Takes `count` items, including nested ones, off the front of `bytes`.
    fn take(count: usize, bytes: &mut &'a [u8]) -> Items<'a> {
        let whole = *bytes;
        let mut missing = count;
        while missing > 0 {
            missing -= 1;
            match read_usual(bytes) {
                Some((_, taken)) => *bytes = &bytes[taken..],
                None => missing += take_item(bytes).children(),
            }
        }
        Items { count, bytes: &whole[..whole.len() - bytes.len()] }
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Reply<'a>;

    #[inline]
    fn next(&mut self) -> Option<Reply<'a>> {
        let Some(count) = self.count.checked_sub(1) else {
            let rest = self.bytes.len();
            assert_eq!(rest, 0, "{rest} bytes are left after the last part of a reply");
            return None;
        };
        self.count = count;
        Some(ReceivedReply::take_parsed(&mut self.bytes).reply)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Items<'_> {}

/// Takes one item, without its children, off the front of validated bytes.
fn take_item<'a>(bytes: &mut &'a [u8]) -> Item<'a> {
    match (ItemReader { bytes_max: isize::MAX as usize, searched: 0 }).read(bytes) {
        Ok(Some((item, taken))) => {
            *bytes = &bytes[taken..];
            item
        }
        Ok(None) | Err(_) => unreachable!("bytes of a reply were parsed before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "4 bytes are left after the last part")]
    fn the_parts_of_a_reply_are_all_of_its_bytes() {
        let mut items = Items { count: 1, bytes: b":1\r\n:2\r\n" };
        assert_eq!(items.next(), Some(Reply::Integer(1)));
        items.next();
    }
}
