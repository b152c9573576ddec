//! The keys of requests that have arrived but are not executed yet: their records are asked for
//! together, before the first of them is executed.
//!
//! Half of the time of a small request goes by in waiting for memory. A client that sends several
//! requests at once tells early what will be needed; so do several clients.

use crate::engine::Engine;
use resp::Lookahead;
use types::{KeyHash, TableId};

/// Keys that are looked at together. More would push each other out of the first-level cache.
const KEYS_MAX: usize = 32;

/// Looks at the requests at the front of `input`, and asks for their records. Returns how many
/// requests need not be looked at again.
#[inline]
pub(super) fn foresee(input: &[u8], table: TableId, engine: &mut Engine) -> usize {
    let mut requests = 0;
    let keys = Lookahead::new(input).take(KEYS_MAX).inspect(|_| requests += 1).flatten();
    fetch(keys, table, engine);
    requests
}

/// Looks at the first request of each client. Which table it is about is not known: mostly the
/// first.
pub(crate) fn foresee_clients(inputs: &mut dyn Iterator<Item = &[u8]>, engine: &mut Engine) {
    let keys = inputs.filter_map(|input| Lookahead::new(input).next().flatten());
    fetch(keys.take(KEYS_MAX), TableId(0), engine);
}

/// Asks for the records of these keys, [`KEYS_MAX`] at most. One alone gains nothing: it is
/// executed at once.
#[inline]
fn fetch<'i>(keys: impl Iterator<Item = &'i [u8]>, table: TableId, engine: &mut Engine) {
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
