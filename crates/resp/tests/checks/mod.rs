//! What holds for any bytes whatever: called with random ones by the tests beside, and with ones
//! that a fuzzer has bred by the targets of `fuzz/`.

#![allow(dead_code, reason = "each fuzz target uses one of the checks")]

use resp::{
    MalformedReply, Protocol, ProtocolError, ReplyLimits, ReplyParser, ReplyWriter, RequestLimits,
    RequestParser, RequestWriter, Value,
};

const REQUEST_LIMITS: RequestLimits = RequestLimits {
    bulk_bytes_max: 300,
    skipped_bytes_max: 2_000,
    arguments_max: 50,
    line_bytes_max: 100,
    request_bytes_max: 1_000,
};

const REPLY_LIMITS: ReplyLimits = ReplyLimits { bytes_max: 1_000, depth_max: 5 };

type Requests = (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>);
type Replies = (Vec<(Value, Vec<Value>)>, Result<usize, MalformedReply>);

/// A stream of requests is understood in the same way however it is cut, and what was understood
/// is understood again when it is written anew.
pub(crate) fn requests(data: &[u8]) {
    let whole = parse_requests([data].into_iter());
    assert_eq!(parse_requests(data.chunks(1)), whole, "the pieces change the requests");
    let (first, second) = cut(data);
    assert_eq!(parse_requests([first, second].into_iter()), whole, "the cut changes the requests");

    let mut written = Vec::new();
    for request in &whole.0 {
        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        RequestWriter::write(&arguments, &mut written);
    }
    // Lengths of arguments that were inline words add to the request's bytes.
    let limits = RequestLimits { request_bytes_max: 10_000, ..REQUEST_LIMITS };
    let again = parse_requests_within(limits, [&written[..]].into_iter());
    assert_eq!(again, (whole.0, Ok(0)), "requests change when they are written again");
}

/// A stream of replies is understood in the same way however it is cut, and what was understood is
/// understood again when it is written anew.
pub(crate) fn replies(data: &[u8]) {
    let whole = parse_replies([data].into_iter());
    assert_same(&parse_replies(data.chunks(1)), &whole);
    let (first, second) = cut(data);
    assert_same(&parse_replies([first, second].into_iter()), &whole);

    for (value, _) in whole.0 {
        let mut written = Vec::new();
        write(&value, &mut written);
        let limits = ReplyLimits { bytes_max: 100_000, ..REPLY_LIMITS };
        let again = ReplyParser::new(limits).next(&mut &written[..]);
        let again: Value = match again {
            Ok(Some(received)) => received.reply.into(),
            Ok(None) | Err(_) => panic!("{value:?} cannot be read again: {again:?}"),
        };
        // A NaN is unlike itself.
        assert_eq!(format!("{again:?}"), format!("{value:?}"));
    }
}

fn assert_same(replies: &Replies, expected: &Replies) {
    assert_eq!(format!("{replies:?}"), format!("{expected:?}"), "the pieces change the replies");
}

/// Two parts of which the first byte decides.
fn cut(data: &[u8]) -> (&[u8], &[u8]) {
    let at = data.first().map_or(0, |byte| usize::from(*byte) * data.len() / 256);
    data.split_at(at)
}

fn parse_requests<'p>(pieces: impl Iterator<Item = &'p [u8]>) -> Requests {
    parse_requests_within(REQUEST_LIMITS, pieces)
}

/// A request that was too long to be kept is one of the error's text.
fn parse_requests_within<'p>(
    limits: RequestLimits,
    pieces: impl Iterator<Item = &'p [u8]>,
) -> Requests {
    let mut parser = RequestParser::new(limits);
    let (mut requests, mut received) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        let mut input = &received[..];
        loop {
            match parser.next(&mut input) {
                Ok(Some(request)) => {
                    let kept = request.to_owned();
                    assert!(kept.request().iter().eq(request.iter()), "a copy is not the same");
                    requests.push(request.iter().map(<[u8]>::to_vec).collect());
                }
                Ok(None) => break,
                Err(error) if error.ends_connection() => return (requests, Err(error)),
                Err(error) => requests.push(vec![error.to_string().into_bytes()]),
            }
        }
        let taken = received.len() - input.len();
        received.drain(..taken);
    }
    assert!(received.len() <= 2_000, "{} bytes wait for the rest of a request", received.len());
    (requests, Ok(received.len()))
}

fn parse_replies<'p>(pieces: impl Iterator<Item = &'p [u8]>) -> Replies {
    let mut parser = ReplyParser::new(REPLY_LIMITS);
    let (mut replies, mut received) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        let mut input = &received[..];
        loop {
            match parser.next(&mut input) {
                Ok(Some(received)) => {
                    let attributes = received.attributes.map(Value::from).collect();
                    replies.push((received.reply.into(), attributes));
                }
                Ok(None) => break,
                Err(error) => return (replies, Err(error)),
            }
        }
        let taken = received.len() - input.len();
        received.drain(..taken);
    }
    assert!(received.len() <= 3_000, "{} bytes wait for the rest of a reply", received.len());
    (replies, Ok(received.len()))
}

/// Writes any value, also one that no server of ours would write.
fn write(value: &Value, out: &mut Vec<u8>) {
    let line = |marker: u8, text: &[u8], out: &mut Vec<u8>| {
        out.push(marker);
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    let mut writer = ReplyWriter::new(Protocol::Resp3, out);
    match value {
        Value::Integer(number) => writer.integer(*number),
        Value::Bulk(bytes) => writer.bulk(bytes),
        Value::Null => writer.null(),
        Value::Double(number) => writer.double(*number),
        Value::Boolean(is_true) => writer.boolean(*is_true),
        Value::Verbatim { format, text } => writer.verbatim(*format, text),
        Value::Simple(text) => line(b'+', text, out),
        // Also one that came as a bulk string, with line ends in it.
        Value::Error(text) => {
            line(b'!', text.len().to_string().as_bytes(), out);
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Value::BigNumber(digits) => line(b'(', digits, out),
        Value::Array(items) => {
            writer.array(items.len());
            items.iter().for_each(|item| write(item, out));
        }
        Value::Set(items) => {
            writer.set(items.len());
            items.iter().for_each(|item| write(item, out));
        }
        Value::Push(items) => {
            writer.push(items.len());
            items.iter().for_each(|item| write(item, out));
        }
        Value::Map(pairs) => {
            writer.map(pairs.len());
            for (key, value) in pairs {
                write(key, out);
                write(value, out);
            }
        }
    }
}
