//! The Redis protocol (RESP2 and RESP3) for both sides of a connection. This crate knows no
//! command.
//!
//! | | reads | writes |
//! | --- | --- | --- |
//! | server | [`RequestParser`] | [`ReplyWriter`] |
//! | client | [`ReplyParser`] | [`RequestWriter`] |
//!
//! The caller shows a parser all received and unconsumed bytes. The parser takes complete requests
//! or replies off the front, and returns slices of them. It remembers how far it has searched, so
//! each byte is examined a bounded number of times, however small the received pieces are.
//!
//! **Invariant:** parsing is total. Any bytes give a result or an error, never a panic.
//! **Invariant:** the division of the stream into pieces changes no result.
//! **Invariant:** memory is proportional to the bytes received, never to announced lengths.
//!
//! Sockets, buffers and the meaning of requests are not part of it. See `docs/design/resp.md`.

#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod inline;
mod item;
mod lookahead;
mod number;
mod parts;
mod reply;
mod reply_parser;
mod reply_writer;
mod request;
mod request_parser;
mod request_writer;
mod value;

pub use lookahead::Lookahead;
pub use number::{parse_integer, write_double, write_integer};
pub use reply::{Items, ReceivedReply, Reply};
pub use reply_parser::{ReplyLimits, ReplyParser};
pub use reply_writer::{OUTPUT_BYTES_MAX, ReplyWriter};
pub use request::{BorrowedRequest, OwnedRequest};
pub use request_parser::{ProtocolError, RequestLimits, RequestParser};
pub use request_writer::RequestWriter;
pub use value::Value;

pub use item::MalformedReply;

/// The protocol version of replies on a connection. Requests are the same in both versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The initial version of every connection.
    #[default]
    Resp2,
    /// The version after `HELLO 3`: adds maps, sets, doubles, booleans, attributes and pushes.
    Resp3,
}
