//! Reads at both sides of a migration: `docs/design/two-sided-reads.md`.
//!
//! A read of one key whose slot moves is sent to the target, which owns the slot, and at the same time
//! to the source, which keeps a copy. A value or absence at the target is the outcome. If the record
//! has not arrived there, the source's answer counts, provided that both name the same migration and
//! epoch (`both_answers.rs`). Otherwise the owner is asked again, by a command that waits.

use super::both_answers::{BothAnswers, Conclusion, ReadSides};
use super::ids::RequestId;
use super::requests::{OpenRequest, OpenRequestPlace, RequestPart};
use super::{ClientCore, ClientEffect};
use crate::request::RequestRoute;
use resp::{Reply, RequestWriter};
use std::time::Duration;
use types::Instant;

/// Time for which a read waits for the source alone after the target has answered that the record is
/// not there. A source that takes longer is busy, and it answers the target's priority pulls before its
/// clients. So the owner is asked as well from then on, by a command that pulls the record.
const COPY_PATIENCE: Duration = Duration::from_millis(1);

/// One of so many two-sided reads also asks the target to pull the record, so that a record that is
/// read often is soon at one server.
const PULL_EVERY: u64 = 100;

impl<T> OpenRequest<T> {
    /// Appends the request to its owner. `reads` counts the reads at both sides.
    pub(crate) fn write(&self, reads: &mut u64, output: &mut Vec<u8>) {
        match (&self.sides, self.request.value_key()) {
            (ReadSides::Both(answers), Some(key)) if !answers.is_not_here() => {
                *reads += 1;
                match reads.is_multiple_of(PULL_EVERY) {
                    true => RequestWriter::write(&[b"BALLAST.READ", key, b"PULL"], output),
                    false => RequestWriter::write(&[b"BALLAST.READ", key], output),
                }
            }
            _ => output.extend_from_slice(&self.request.bytes),
        }
    }

    /// Appends the request to the source. Returns `false` if its answer is not needed any more.
    pub(crate) fn write_copy(&self, output: &mut Vec<u8>) -> bool {
        let (ReadSides::Both(_), Some(key)) = (&self.sides, self.request.value_key()) else {
            return false;
        };
        RequestWriter::write(&[b"BALLAST.READCOPY", key], output);
        true
    }
}

impl<T> ClientCore<T> {
    /// Asks the source as well, if a request that is about to be sent reads a key whose slot moves.
    pub(super) fn ask_source(
        &mut self,
        now: Instant,
        id: RequestId,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let RequestRoute::Slot(slot) = request.request.route else { return };
        let reads_value = request.request.value_key().is_some();
        if !reads_value || request.sides != ReadSides::One || !self.options.two_sided_reads {
            return;
        }
        let Some(source) = self.routes.source(slot) else { return };
        request.sides = ReadSides::Both(BothAnswers::default());
        let Some(at) = self.lane_of(source, slot) else { return self.copied(now, id, None, out) };
        self.enqueue(now, at, RequestPart::Copy(id), out);
        // The target knows which slots have arrived.
        self.map.at = self.routes.owner(slot);
        self.want_map(now, out);
    }

    /// Sends a read of a copy that was not handed to a transport to the source of now.
    pub(super) fn ask_source_again(
        &mut self,
        now: Instant,
        id: RequestId,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let RequestRoute::Slot(slot) = request.request.route else { return };
        let source = self.routes.source(slot);
        match source.and_then(|source| self.lane_of(source, slot)) {
            Some(at) => self.enqueue(now, at, RequestPart::Copy(id), out),
            None => self.copied(now, id, None, out),
        }
    }

    /// Takes the target's answer that the record has not arrived. Returns `false` if the reply is
    /// another one.
    pub(super) fn not_here(
        &mut self,
        now: Instant,
        id: RequestId,
        reply: &Reply<'_>,
        out: &mut Vec<ClientEffect<T>>,
    ) -> bool {
        let Some(request) = self.requests.get_mut(id) else { return false };
        let ReadSides::Both(answers) = &mut request.sides else { return false };
        if !answers.not_here(reply) {
            return false;
        }
        let until = now + COPY_PATIENCE;
        request.place = OpenRequestPlace::AwaitingCopy(until);
        self.wake_by(until);
        self.conclude(now, id, out);
        true
    }

    /// Takes the source's answer; `None` if it will not come.
    pub(super) fn copied(
        &mut self,
        now: Instant,
        id: RequestId,
        reply: Option<&Reply<'_>>,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let ReadSides::Both(answers) = &mut request.sides else { return };
        answers.copied(reply);
        self.conclude(now, id, out);
    }

    fn conclude(&mut self, now: Instant, id: RequestId, out: &mut Vec<ClientEffect<T>>) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let ReadSides::Both(answers) = &mut request.sides else { return };
        match answers.conclude() {
            Conclusion::Open => {}
            Conclusion::Known(value) => {
                self.source_values += 1;
                self.finish(id, Ok(value), out);
            }
            Conclusion::Unknown if matches!(request.place, OpenRequestPlace::AwaitingCopy(_)) => {
                self.ask_owner_again(now, id, out);
            }
            // The owner is being asked.
            Conclusion::Unknown => request.sides = ReadSides::OwnerAgain,
        }
    }

    /// Sends a read to its owner by the command that waits for the record. Returns `false` if the
    /// request was not sent to both sides.
    pub(super) fn ask_owner_again(
        &mut self,
        now: Instant,
        id: RequestId,
        out: &mut Vec<ClientEffect<T>>,
    ) -> bool {
        let Some(request) = self.requests.get_mut(id) else { return false };
        if !matches!(request.sides, ReadSides::Both(_)) {
            return false;
        }
        request.sides = ReadSides::OwnerAgain;
        self.route(now, id, out);
        true
    }
}
