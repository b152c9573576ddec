//! Random bytes of the operating system, which make nonces unpredictable and keys secret.

use std::io;
use types::Generation;
use wire::handshake::{NONCE_BYTES, Nonce};

/// Draws the nonce of one connection.
pub fn new_nonce() -> io::Result<Nonce> {
    Ok(Nonce::new(random_bytes::<NONCE_BYTES>()?))
}

/// Draws the generation of a process.
pub fn new_generation() -> io::Result<Generation> {
    Ok(Generation(u64::from_le_bytes(random_bytes()?)))
}

pub(crate) fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}
