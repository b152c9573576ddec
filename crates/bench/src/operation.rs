//! Operation in progress, and the encoding of its commands.

use crate::connection::LoadConnection;
use crate::ledger::IssuedWrite;
use crate::records::{RecordNumber, RecordSet, Sequence};
use crate::workload::RecordAction;
use resp::RequestWriter;
use types::{Instant, Slot, slot_of};

/// Operation that has started and has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadOperation {
    pub action: RecordAction,
    pub record: RecordNumber,
    /// Slot of the record.
    pub slot: Slot,
    pub step: OperationCommand,
    /// Intended start: the latency counts from here.
    pub intended: Instant,
    /// Client of a closed loop. In an open loop it only spreads operations over the lines.
    pub client: u32,
    pub redirects: u8,
}

/// Command that the operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OperationCommand {
    /// GET. A result below `floor` is wrong.
    Get { floor: Sequence },
    /// SET.
    Set(IssuedWrite),
}

/// Request that a connection owes an answer for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadRequest {
    /// Command of an operation.
    Operation(LoadOperation),
    /// `ASKING`, sent before an operation.
    Asking,
    /// `CLUSTER SLOTS`.
    Routes,
}

/// Encoder of commands. Reuses its buffers, so that an operation allocates nothing.
pub(crate) struct Encoder {
    records: RecordSet,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(records: RecordSet) -> Encoder {
        Encoder { records, key: Vec::new(), value: Vec::new() }
    }

    #[inline]
    pub(crate) fn slot(&mut self, record: RecordNumber) -> Slot {
        self.turn_to(record);
        slot_of(&self.key)
    }

    #[inline]
    fn turn_to(&mut self, record: RecordNumber) {
        self.key.clear();
        self.records.write_key(record, &mut self.key);
    }

    /// Appends the current command of `operation` to the output of `connection`.
    #[inline]
    pub(crate) fn request(
        &mut self,
        operation: LoadOperation,
        connection: &mut LoadConnection<LoadRequest>,
    ) {
        self.turn_to(operation.record);
        let output = connection.request(LoadRequest::Operation(operation));
        match operation.step {
            OperationCommand::Get { floor: _ } => {
                RequestWriter::write(&[b"GET", &self.key], output)
            }
            OperationCommand::Set(write) => {
                self.value.clear();
                self.records.write_value(operation.record, write.sequence, &mut self.value);
                RequestWriter::write(&[b"SET", &self.key, &self.value], output);
            }
        }
    }
}
