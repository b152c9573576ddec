//! Prefetching: reads the keys of requests that have arrived but are not executed yet, and
//! prefetches their records together.
//!
//! Half of the time of a small request is spent waiting for memory. A pipeline, or several clients
//! in one turn, announce their keys early enough to overlap these waits.

use node::Engine;
use resp::Lookahead;
use types::{KeyHash, TableId};

/// Most keys prefetched together. More would evict each other from the first-level cache.
const KEYS_MAX: usize = 32;

/// Prefetches the records of requests at the front of `input`. Returns the number of requests
/// covered.
#[inline]
pub(super) fn prefetch(input: &[u8], table: TableId, engine: &mut Engine) -> usize {
    let mut requests = 0;
    let keys = Lookahead::new(input).take(KEYS_MAX).inspect(|_| requests += 1).flatten();
    prefetch_keys(keys, table, engine);
    requests
}

/// Prefetches the records of each client's first request. The client's table is unknown here, so
/// table 0 is assumed, which is the most common.
pub(crate) fn prefetch_clients(inputs: &mut dyn Iterator<Item = &[u8]>, engine: &mut Engine) {
    let keys = inputs.filter_map(|input| Lookahead::new(input).next().flatten());
    prefetch_keys(keys.take(KEYS_MAX), TableId(0), engine);
}

/// Prefetches the records of at most [`KEYS_MAX`] keys. A single key is skipped, because its
/// request is executed at once.
#[inline]
fn prefetch_keys<'i>(keys: impl Iterator<Item = &'i [u8]>, table: TableId, engine: &mut Engine) {
    let mut hashes = [KeyHash(0); KEYS_MAX];
    let mut count = 0;
    for (place, key) in hashes.iter_mut().zip(keys) {
        *place = engine.hash(key);
        count += 1;
    }
    if count > 1 {
        engine.worker.foresee(table, &hashes[..count]);
    }
}
