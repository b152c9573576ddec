//! The Redis protocol (RESP2 and RESP3) as bytes, for both sides of a connection. Knows no command.
//!
//! | | reads | writes |
//! | --- | --- | --- |
//! | server | [`RequestParser`] | [`ReplyWriter`] |
//! | client | [`ReplyParser`] | [`RequestWriter`] |
//!
//! The one idea: a parser is shown all bytes that have arrived and not been taken yet, takes whole
//! requests or replies off their front, and returns slices of them. It remembers how far it has
//! looked, so that each byte is looked at a bounded number of times however small the pieces are in
//! which it arrives.
//!
//! **Invariant:** parsing is total. Any bytes give a result or an error, never a panic.
//! **Invariant:** where the stream is cut into pieces changes no result.
//! **Invariant:** memory is proportional to the bytes that are there, never to what they announce.
//!
//! Sockets and buffers, what requests mean, and what a server may answer: others.
//! See `docs/design/resp.md`.

#![forbid(unsafe_code)]

mod inline;
mod item;
mod lookahead;
mod number;
mod reply;
mod reply_parser;
mod reply_writer;
mod request;
mod request_parser;
mod request_writer;
mod value;

pub use lookahead::Lookahead;
pub use number::{parse_integer, write_double, write_integer};
pub use reply::{Items, Received, Reply};
pub use reply_parser::{ReplyLimits, ReplyParser};
pub use reply_writer::ReplyWriter;
pub use request::{OwnedRequest, Request};
pub use request_parser::{ProtocolError, RequestLimits, RequestParser};
pub use request_writer::RequestWriter;
pub use value::Value;

pub use item::MalformedReply;

/// Version of the protocol that a connection speaks in the direction of its client. Requests look
/// the same in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Every connection begins with this one.
    #[default]
    Resp2,
    /// After `HELLO 3`: maps, sets, doubles, booleans, one null, attributes, pushes.
    Resp3,
}
