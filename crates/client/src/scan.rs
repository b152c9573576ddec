//! Scans over the keys of all servers.
//!
//! `BALLAST.SCAN` returns keys in the order of their hashes, whose upper bits are the slot. A scan
//! therefore follows the hashes through the whole cluster: each step goes to the present owner of
//! the next slot. A server answers only for ranges that it owns, and redirects otherwise. So a key
//! that exists during the whole scan is returned, also if it moves between two servers meanwhile.

use crate::driver::ClientHandle;
use crate::values;
use client_core::{ClientError, PreparedRequest, RepeatRule, RequestRoute};
use std::sync::Arc;
use types::KeyHash;

/// Options of a scan.
#[derive(Clone, Debug, Default)]
pub struct KeyScanOptions {
    /// Pattern of the keys, as of `SCAN ... MATCH`.
    pub pattern: Option<Vec<u8>>,
    /// Approximate number of keys per step; 0: 1,000.
    pub count: usize,
}

/// Default number of keys per step.
const COUNT: usize = 1_000;

/// A scan in progress.
#[derive(Debug)]
pub struct Scan {
    handle: Arc<ClientHandle>,
    options: KeyScanOptions,
    /// Hash at which the next step begins; `None` at the end.
    next: Option<u64>,
}

impl Scan {
    pub(crate) fn new(handle: Arc<ClientHandle>, options: KeyScanOptions) -> Scan {
        Scan { handle, options, next: Some(0) }
    }

    /// Returns the next keys, maybe none; `None` at the end. After an error, the step can be
    /// repeated.
    pub async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, ClientError> {
        let Some(from) = self.next else { return Ok(None) };
        let count = if self.options.count == 0 { COUNT } else { self.options.count };
        let (cursor, count) = (from.to_string(), count.to_string());
        let mut arguments: Vec<&[u8]> =
            vec![b"BALLAST.SCAN", cursor.as_bytes(), b"COUNT", count.as_bytes()];
        if let Some(pattern) = &self.options.pattern {
            arguments.extend([b"MATCH", pattern.as_slice()]);
        }
        let route = RequestRoute::Slot(KeyHash(from).slot());
        let request = PreparedRequest::new(&arguments, route, RepeatRule::Harmless);
        let reply = self.handle.submit(request).await?.outcome().await?;
        let (next, keys) = values::scan_step(reply)?;
        if next != 0 && next <= from {
            let text = format!("a scan from {from} continues at {next}");
            return Err(ClientError::UnexpectedReply(text));
        }
        self.next = (next != 0).then_some(next);
        Ok(Some(keys))
    }

    /// Returns all remaining keys.
    pub async fn collect(mut self) -> Result<Vec<Vec<u8>>, ClientError> {
        let mut all = Vec::new();
        while let Some(keys) = self.next().await? {
            all.extend(keys);
        }
        Ok(all)
    }
}
