//! The execution of a command: its arguments, and access to data, connection and reply.

use super::not_executed::{Done, NotExecuted, Refusal};
use super::queued::QueuedTransaction;
use super::resumption::{KeyspaceScan, Past};
use crate::core::backend::Backend;
use crate::core::data::{Changes, Key, Need, Record, RecordVersion, TableKey};
use crate::core::orders::SortedSets;
use crate::session::Session;
use planted::Bug;
use resp::ReplyWriter;
use types::{Instant, UnixMillis};
use values::StreamId;
use wire::control::Answer;

/// One execution of one command.
pub(crate) struct Call<'a> {
    /// The command's name and its arguments.
    pub(crate) args: &'a [&'a [u8]],
    /// The answer that an earlier execution of the same request waited for.
    pub(crate) answer: Option<&'a Answer>,
    /// The transaction that `EXEC` executes.
    pub(crate) transaction: Option<&'a QueuedTransaction>,
    /// The request's past executions.
    pub(crate) past: Past,
    /// Position at which an earlier execution of the same request stopped, if it takes several.
    pub(crate) scan: &'a mut Option<KeyspaceScan>,
    /// The ids behind which an earlier execution of the same request has begun to wait for entries of
    /// streams.
    pub(crate) stream_ids: &'a mut Vec<StreamId>,
    /// Number of orders of sorted sets that were built for the request, whose commands work on copies.
    pub(crate) orders_built: &'a mut u32,
    /// This reactor's access to the data.
    pub(crate) backend: &'a mut Backend,
    /// The connection's state.
    pub(crate) session: &'a mut Session,
    pub(crate) reply: ReplyWriter<'a>,
    /// The turn's time.
    pub(crate) now: Instant,
    /// The turn's wall-clock time.
    pub(crate) wall: UnixMillis,
}

impl<'a> Call<'a> {
    /// Returns the key at this position, with its hash.
    #[inline]
    pub(crate) fn key(&self, position: usize) -> Key<'a> {
        self.backend.key(self.args[position])
    }

    /// Returns the keys at these positions, with their hashes.
    pub(crate) fn keys(&self, positions: impl Iterator<Item = usize>) -> Vec<Key<'a>> {
        positions.map(|position| self.key(position)).collect()
    }

    /// Replies about the record whose key is the argument at this position. If `f` returns an error,
    /// it has written nothing.
    #[inline]
    pub(crate) fn reply_with(
        &mut self,
        position: usize,
        f: impl FnOnce(&mut ReplyWriter<'a>, Option<Record<'_>>) -> Result<(), Refusal>,
    ) -> Done {
        let key = self.key(position);
        let reply = &mut self.reply;
        Ok(self.backend.read_one(self.session.status.table, key, |record| f(reply, record))??)
    }

    /// Reads the record whose key is argument 1.
    #[inline]
    pub(crate) fn read<T>(
        &mut self,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<T, NotExecuted> {
        let key = self.key(1);
        self.backend.read_one(self.session.status.table, key, f)
    }

    /// Reads the record whose key is argument 1, and changes it as change 0.
    #[inline]
    pub(crate) fn update<T>(
        &mut self,
        f: impl FnOnce(Option<Record<'_>>, &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        let change =
            |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| f(records[0], changes);
        self.update_keys(&[self.key(1)], Need::Records, change)
    }

    /// Reads the record whose key is argument 1, and changes its expiry or removes it, as change 0.
    pub(crate) fn update_expiry<T>(
        &mut self,
        f: impl FnOnce(Option<Record<'_>>, &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        let key = TableKey { table: self.session.status.table, key: self.key(1) };
        SortedSets::of(self.backend).update_expiry(key, f)
    }

    /// Reads the records of these keys, and changes them by their positions.
    #[inline]
    pub(crate) fn update_keys<T>(
        &mut self,
        keys: &[Key<'_>],
        need: Need,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        self.backend.update(self.session.status.table, keys, need, f)
    }

    /// Returns the time from which a relative expiry of these keys counts. It is the range's clock,
    /// by which their expiry will be judged; with several ranges, the latest clock, so that no key
    /// expires early. The clock is read now, not at the start of the turn, because a time to live
    /// must not begin before the request was sent.
    pub(crate) fn clock_of(&self, keys: &[Key<'_>]) -> UnixMillis {
        if planted::is(Bug::LifeFromWallClock) {
            return self.wall;
        }
        self.backend.clock_of(keys, self.now)
    }

    /// Returns a source of random numbers for this execution.
    pub(crate) fn random(&mut self) -> fastrand::Rng {
        self.session.draws += 1;
        let seed = [self.now.0, self.session.id(), self.session.draws].map(u64::to_le_bytes);
        fastrand::Rng::with_seed(self.backend.key(seed.as_flattened()).hash.0)
    }

    /// Replies with a number.
    #[inline]
    pub(crate) fn integer(&mut self, number: impl Into<i64>) -> Done {
        self.reply.integer(number.into());
        Ok(())
    }

    /// Writes the version of a record, as an integer.
    pub(crate) fn version(&mut self, version: RecordVersion) {
        match (version, &mut self.backend.staged) {
            (RecordVersion::Known(version), _) => self.reply.integer(version.0 as i64),
            (RecordVersion::Pending { place }, Some(staged)) => {
                staged.note_missing_version(self.reply.position(), place);
            }
            (RecordVersion::Pending { .. }, None) => {
                unreachable!("only a transaction writes records before it draws their versions")
            }
        }
    }

    /// Replies with bytes.
    #[inline]
    pub(crate) fn bulk(&mut self, bytes: &[u8]) -> Done {
        self.reply.bulk(bytes);
        Ok(())
    }

    /// Replies with a text for people.
    pub(crate) fn text(&mut self, text: &str) -> Done {
        self.reply.verbatim(*b"txt", text.as_bytes());
        Ok(())
    }

    /// Replies `OK`.
    #[inline]
    pub(crate) fn ok(&mut self) -> Done {
        self.reply.simple("OK");
        Ok(())
    }
}
