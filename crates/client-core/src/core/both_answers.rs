//! The answers of both sides of a migration to one read, and the conclusion from them.
//!
//! **Invariant:** no conclusion depends on the source alone.

use resp::{Reply, Value};

/// The servers that a request is sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadSides {
    /// The server of its route.
    #[default]
    One,
    /// Both sides of a migration. The answers so far.
    Both(BothAnswers),
    /// The owner, although the slot moves: the answers of both sides did not fit.
    OwnerAgain,
}

/// The answers to a read at both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BothAnswers {
    not_here: Option<NotHere>,
    copy: CopyAnswer,
}

/// A migration, and the epoch under which its target owns the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MigrationPair {
    migration: i64,
    epoch: i64,
}

/// The target's answer that the record has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NotHere {
    pair: MigrationPair,
    /// Time by which the source's record is judged, in milliseconds.
    clock: i64,
}

/// The source's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum CopyAnswer {
    #[default]
    Awaited,
    /// The source has no copy, or does not answer.
    Gone,
    Here {
        pair: MigrationPair,
        record: Option<CopiedRecord>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CopiedRecord {
    value: Vec<u8>,
    /// Expiry time in milliseconds; 0: none.
    expiry: i64,
}

/// The conclusion from both answers.
#[derive(Debug, PartialEq)]
pub(crate) enum Conclusion {
    /// An answer is missing.
    Open,
    /// The answers do not fit.
    Unknown,
    /// The reply to the read.
    Known(Value),
}

impl BothAnswers {
    /// Records the target's answer that the record has not arrived. Returns `false` if the reply is
    /// another one.
    pub(crate) fn not_here(&mut self, reply: &Reply<'_>) -> bool {
        let not_here = NotHere::parse(reply);
        self.not_here = not_here.or(self.not_here);
        not_here.is_some()
    }

    /// Returns whether the target has answered that the record has not arrived.
    pub(crate) fn is_not_here(&self) -> bool {
        self.not_here.is_some()
    }

    /// Records the source's answer; `None` if it will not come. Whatever is no copy counts as gone.
    pub(crate) fn copied(&mut self, reply: Option<&Reply<'_>>) {
        self.copy = reply.and_then(CopyAnswer::parse).unwrap_or(CopyAnswer::Gone);
    }

    /// Takes the record out of the answers, if they fit.
    pub(crate) fn conclude(&mut self) -> Conclusion {
        let Some(NotHere { pair: wanted, clock }) = self.not_here else { return Conclusion::Open };
        match &mut self.copy {
            CopyAnswer::Awaited => Conclusion::Open,
            CopyAnswer::Here { pair, record } if *pair == wanted => {
                let record = record.take().filter(|it| it.expiry == 0 || it.expiry > clock);
                Conclusion::Known(record.map_or(Value::Null, |it| Value::Bulk(it.value)))
            }
            CopyAnswer::Here { .. } | CopyAnswer::Gone => Conclusion::Unknown,
        }
    }
}

impl NotHere {
    fn parse(reply: &Reply<'_>) -> Option<NotHere> {
        let Reply::Array(mut items) = *reply else { return None };
        let pair = MigrationPair::parse(items.next()?, items.next()?)?;
        let Reply::Integer(clock) = items.next()? else { return None };
        Some(NotHere { pair, clock })
    }
}

impl MigrationPair {
    fn parse(migration: Reply<'_>, epoch: Reply<'_>) -> Option<MigrationPair> {
        let (Reply::Integer(migration), Reply::Integer(epoch)) = (migration, epoch) else {
            return None;
        };
        Some(MigrationPair { migration, epoch })
    }
}

impl CopyAnswer {
    fn parse(reply: &Reply<'_>) -> Option<CopyAnswer> {
        let Reply::Array(mut items) = *reply else { return None };
        let pair = MigrationPair::parse(items.next()?, items.next()?)?;
        let (value, expiry) = (items.next()?, items.next()?);
        let Reply::Integer(expiry) = expiry else { return None };
        let record = match value {
            Reply::Bulk(value) => Some(CopiedRecord { value: value.to_vec(), expiry }),
            Reply::Null => None,
            _ => return None,
        };
        Some(CopyAnswer::Here { pair, record })
    }
}
