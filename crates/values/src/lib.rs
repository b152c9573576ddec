//! The bytes of values: hashes and sets packed into one record, the format of `DUMP`, and numbers as
//! text.
//!
//! Start at [`Packed`], which reads a packed value, and [`Elements`], which changes one. Design:
//! `docs/design/values.md`.
//!
//! **Invariant:** reading is total. Any bytes give a value or an error, never a panic, and never an
//! allocation beyond a constant times the number of bytes present.
//!
//! Keys, expiry and commands are not part of it.

#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod dump;
mod extended;
mod listpack;
mod numbers;
mod packed;

pub use dump::{RestoredValue, Unreadable, dump, restore};
pub use extended::Extended;
pub use numbers::{parse_integer, parse_unsigned};
pub use packed::{Damaged, Element, Elements, Packed, PackedElements, encode_new};
