//! Takes replies off the front of what a server has sent, in RESP2 or RESP3.
//!
//! A reply is parsed twice: once to learn that all of it is there and sound, which can stop and go
//! on with each piece that arrives, and once more when its parts are looked at. A scalar, the usual
//! reply, is parsed once.
//!
//! The first pass needs no tree: a stack with the number of items that are missing at each level.

use crate::{
    item::{ItemReader, MalformedReply, read_usual},
    reply::{Items, Received},
};

/// Bytes of the shortest item, a null of RESP3.
const ITEM_BYTES_MIN: usize = 3;

/// What a reply may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Bytes of the whole reply.
    pub bytes_max: usize,
    /// Levels of arrays, maps and the like within each other.
    pub depth_max: usize,
}

impl Default for ReplyLimits {
    /// Redis's longest value and some; the deepest reply of a Redis command, `COMMAND`'s, has less
    /// than ten levels.
    fn default() -> ReplyLimits {
        ReplyLimits { bytes_max: 1 << 30, depth_max: 32 }
    }
}

/// The parser of one connection's replies.
#[derive(Debug)]
pub struct ReplyParser {
    limits: ReplyLimits,
    reader: ItemReader,
    /// Where in the input the first item begins that has not been parsed.
    position: usize,
    /// Items missing at each open level, the outermost first. Never 0.
    missing: Vec<usize>,
}

impl ReplyParser {
    /// The parser of a new connection.
    ///
    /// # Panics
    /// If the depth is unreasonable: [`crate::Value`] is built and dropped by recursion.
    pub fn new(limits: ReplyLimits) -> ReplyParser {
        assert!(limits.depth_max <= 1_024, "depth of {} is too much", limits.depth_max);
        assert!(limits.bytes_max <= isize::MAX as usize / 4, "no memory is that large");
        let reader = ItemReader { bytes_max: limits.bytes_max, searched: 0 };
        ReplyParser { limits, reader, position: 0, missing: Vec::new() }
    }

    /// Takes the next reply off the front of `input`, which holds everything that was received and
    /// not taken. `None`: it is not complete, call again with the same bytes and more.
    ///
    /// After an error the connection is to be closed.
    #[inline]
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Received<'a>>, MalformedReply> {
        if self.position == 0
            && let Some((reply, taken)) = read_usual(input)
            && taken <= self.limits.bytes_max
        {
            *input = &input[taken..];
            self.reader.searched = 0;
            return Ok(Some(Received { reply, attributes: Items::default() }));
        }
        let Some(length) = self.advance(input)? else { return Ok(None) };
        let (mut reply, rest) = input.split_at(length);
        *input = rest;
        self.position = 0;
        Ok(Some(Received::take_parsed(&mut reply)))
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

    /// Counts an item as complete, and each level of which it was the last one. `true`: that was
    /// the whole reply.
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
