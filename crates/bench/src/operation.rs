//! One operation on its way, and the bytes of its commands.

use crate::connection::Connection;
use crate::ledger::Write;
use crate::recorder::Kind;
use crate::records::{Record, Records, Sequence};
use crate::workload::Action;
use resp::RequestWriter;
use types::{Instant, Slot, slot_of};

/// An operation that has started and is not over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub action: Action,
    pub record: Record,
    /// Where the record belongs.
    pub slot: Slot,
    pub step: Step,
    /// When it should have started: its latency counts from here.
    pub intended: Instant,
    /// The client of a closed loop. In an open loop it only spreads operations over the lines.
    pub client: u32,
    /// How often it was sent elsewhere.
    pub redirects: u8,
}

/// The command whose answer an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// GET. Showing less than `floor` would be wrong.
    Get { floor: Sequence },
    /// SET.
    Set(Write),
}

/// What a connection owes an answer for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// The command of an operation.
    Operation(Operation),
    /// `ASKING`, sent ahead of an operation.
    Asking,
    /// `CLUSTER SLOTS`.
    Routes,
}

impl Operation {
    /// As what it is timed.
    pub(crate) fn kind(&self) -> Kind {
        match self.action {
            Action::Read | Action::Adopt => Kind::Read,
            Action::Write => Kind::Write,
            Action::ReadModifyWrite => Kind::ReadModifyWrite,
        }
    }
}

/// Writes commands. Keeps its buffers, so that an operation allocates nothing.
#[derive(Debug)]
pub(crate) struct Encoder {
    records: Records,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(records: Records) -> Encoder {
        Encoder { records, key: Vec::new(), value: Vec::new() }
    }

    /// The slot of a record.
    #[inline]
    pub(crate) fn slot(&mut self, record: Record) -> Slot {
        self.turn_to(record);
        slot_of(&self.key)
    }

    #[inline]
    fn turn_to(&mut self, record: Record) {
        self.key.clear();
        self.records.write_key(record, &mut self.key);
    }

    /// Appends the command that `operation` waits for to what `connection` will send.
    #[inline]
    pub(crate) fn request(&mut self, operation: Operation, connection: &mut Connection<Pending>) {
        self.turn_to(operation.record);
        let output = connection.request(Pending::Operation(operation));
        match operation.step {
            Step::Get { floor: _ } => RequestWriter::write(&[b"GET", &self.key], output),
            Step::Set(write) => {
                self.value.clear();
                self.records.write_value(operation.record, write.sequence, &mut self.value);
                RequestWriter::write(&[b"SET", &self.key, &self.value], output);
            }
        }
    }
}
