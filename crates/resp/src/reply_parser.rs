//! A parser that takes replies off the front of a server's output, in RESP2 or RESP3.
//!
//! Replies are parsed twice. The first pass checks that a reply is complete and valid, and can
//! pause and resume with each received piece. The second pass runs when the parts are read.
//! Scalars, which are the common case, are parsed once.
//!
//! The first pass needs no tree, only a stack with the number of missing items at each level.

use crate::item::{ItemReader, MalformedReply, read_usual};
use crate::reply::{Items, ReceivedReply};

/// Length of the shortest item, a RESP3 null.
const ITEM_BYTES_MIN: usize = 3;

/// Limits of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Most bytes of the whole reply.
    pub bytes_max: usize,
    /// Most levels of nested arrays, maps and other aggregates.
    pub depth_max: usize,
}

impl Default for ReplyLimits {
    /// Returns limits above Redis's longest value and deepest reply. The deepest reply is that of
    /// `COMMAND`, with less than ten levels.
    fn default() -> ReplyLimits {
        ReplyLimits { bytes_max: 1 << 30, depth_max: 32 }
    }
}

/// The parser of one connection's replies.
pub struct ReplyParser {
    limits: ReplyLimits,
    reader: ItemReader,
    /// Offset in the input of the first item that is not parsed yet.
    position: usize,
    /// Number of missing items at each open level, outermost first. Never 0.
    missing: Vec<usize>,
}

impl ReplyParser {
    /// Creates the parser of a new connection.
    ///
    /// # Panics
    /// If the depth is above 1,024, because [`crate::Value`] is built and dropped recursively, or
    /// if the size exceeds a quarter of the address space.
    pub fn new(limits: ReplyLimits) -> ReplyParser {
        assert!(
            limits.depth_max <= 1_024,
            "a reply depth of {} exceeds the maximum",
            limits.depth_max
        );
        assert!(
            limits.bytes_max <= isize::MAX as usize / 4,
            "the reply limit exceeds a quarter of the address space"
        );
        let reader = ItemReader { bytes_max: limits.bytes_max, searched: 0 };
        ReplyParser { limits, reader, position: 0, missing: Vec::new() }
    }

    /// Takes the next reply off the front of `input`, which contains all received and unconsumed
    /// bytes. Returns `None` if it is incomplete: call again with the same bytes and more.
    ///
    /// After an error, the caller must close the connection.
    #[inline]
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<ReceivedReply<'a>>, MalformedReply> {
        if self.position == 0
            && let Some((reply, taken)) = read_usual(input)
            && taken <= self.limits.bytes_max
        {
            *input = &input[taken..];
            self.reader.searched = 0;
            return Ok(Some(ReceivedReply { reply, attributes: Items::default() }));
        }
        let Some(length) = self.advance(input)? else { return Ok(None) };
        assert!(self.missing.is_empty(), "a reply ends within {} levels", self.missing.len());
        let (mut reply, rest) = input.split_at(length);
        *input = rest;
        self.position = 0;
        Ok(Some(ReceivedReply::take_parsed(&mut reply)))
    }

    /// Parses items until the reply is complete, and returns its length.
    fn advance(&mut self, input: &[u8]) -> Result<Option<usize>, MalformedReply> {
        loop {
            let rest = &input[self.position..];
            let (children, taken) = match read_usual(rest) {
                Some((_, taken)) => (0, taken),
                None => match self.reader.read(rest)? {
                    Some((item, taken)) => (item.children(), taken),
                    None => return Ok(None),
                },
            };
            self.position += taken;
            self.reader.searched = 0;
            if self.position > self.limits.bytes_max {
                return Err(MalformedReply::TooBig);
            }
            match children {
                0 => {
                    if self.close_item() {
                        return Ok(Some(self.position));
                    }
                }
                children => self.open(children)?,
            }
        }
    }

    fn open(&mut self, children: usize) -> Result<(), MalformedReply> {
        if children > self.limits.bytes_max / ITEM_BYTES_MIN {
            return Err(MalformedReply::TooBig);
        }
        if self.missing.len() == self.limits.depth_max {
            return Err(MalformedReply::TooDeep);
        }
        self.missing.push(children);
        Ok(())
    }

    /// Counts an item as complete, and each level that it completes. Returns whether the whole
    /// reply is complete.
    fn close_item(&mut self) -> bool {
        while let Some(missing) = self.missing.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.missing.pop();
        }
        true
    }
}
