//! One reactor's turn.

/// A connection that the accepting reactor hands to another one.
pub(crate) struct Handed {}
