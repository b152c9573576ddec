//! Tests of replies: writing by servers, parsing by clients.

use resp::{
    MalformedReply, Protocol, ReceivedReply, Reply, ReplyLimits, ReplyParser, ReplyWriter, Value,
};

const LIMITS: ReplyLimits = ReplyLimits { bytes_max: 2_000, depth_max: 4 };

/// The replies in a stream with their attributes, and the bytes left over or the error.
type Replies = (Vec<(Value, Vec<Value>)>, Result<usize, MalformedReply>);

/// Parses a stream that arrives in pieces. The number is the bytes left over.
fn parse_pieces<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Replies {
    let mut parser = ReplyParser::new(LIMITS);
    let (mut replies, mut received) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        let mut input = &received[..];
        loop {
            match parser.next(&mut input) {
                Ok(Some(ReceivedReply { reply, attributes })) => {
                    replies.push((reply.into(), attributes.map(Value::from).collect()));
                }
                Ok(None) => break,
                Err(error) => return (replies, Err(error)),
            }
        }
        let taken = received.len() - input.len();
        received.drain(..taken);
    }
    (replies, Ok(received.len()))
}

/// Parses bytes that contain one reply.
fn parse(bytes: &str) -> String {
    let mut input = bytes.as_bytes();
    match ReplyParser::new(LIMITS).next(&mut input) {
        Ok(Some(ReceivedReply { reply, attributes })) => {
            assert!(input.is_empty(), "{} bytes are left", input.len());
            let attributes: Vec<String> = attributes.map(show).collect();
            let attributes = attributes.join(" ");
            if attributes.is_empty() {
                show(reply)
            } else {
                format!("|{attributes}| {}", show(reply))
            }
        }
        Ok(None) => "unfinished".to_string(),
        Err(error) => error.to_string(),
    }
}

fn show(reply: Reply<'_>) -> String {
    let list = |items: resp::Items<'_>| items.map(show).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Simple(text) => format!("+{}", text.escape_ascii()),
        Reply::Error(text) => format!("-{}", text.escape_ascii()),
        Reply::Integer(number) => number.to_string(),
        Reply::Bulk(bytes) => format!("'{}'", bytes.escape_ascii()),
        Reply::Null => "null".to_string(),
        Reply::Double(number) => format!("{number:?}"),
        Reply::Boolean(is_true) => is_true.to_string(),
        Reply::BigNumber(digits) => format!("big {}", digits.escape_ascii()),
        Reply::Verbatim { format, text } => {
            format!("{}:{}", format.escape_ascii(), text.escape_ascii())
        }
        Reply::Array(items) => format!("[{}]", list(items)),
        Reply::Map(items) => format!("{{{}}}", list(items)),
        Reply::Set(items) => format!("<{}>", list(items)),
        Reply::Push(items) => format!("push {}", list(items)),
    }
}

#[test]
fn replies_of_each_kind_are_understood() {
    let cases = [
        ("+OK\r\n", "+OK"),
        ("+\r\n", "+"),
        ("+123\r\n", "+123"),
        ("-ERR no\r\n", "-ERR no"),
        ("!6\r\nERR\r\nx\r\n", "-ERR\\r\\nx"),
        (":0\r\n", "0"),
        (":+7\r\n", "7"),
        (":-9223372036854775808\r\n", "-9223372036854775808"),
        (":9223372036854775807\r\n", "9223372036854775807"),
        ("$0\r\n\r\n", "''"),
        ("$2\r\n\r\n\r\n", "'\\r\\n'"),
        ("$-1\r\n", "null"),
        ("*-1\r\n", "null"),
        ("_\r\n", "null"),
        (",1.5\r\n", "1.5"),
        (",10\r\n", "10.0"),
        (",1e+20\r\n", "1e20"),
        (",inf\r\n", "inf"),
        (",-inf\r\n", "-inf"),
        (",nan\r\n", "NaN"),
        ("#t\r\n", "true"),
        ("#f\r\n", "false"),
        ("(-123456789012345678901234567890\r\n", "big -123456789012345678901234567890"),
        ("=8\r\ntxt:some\r\n", "txt:some"),
        ("*0\r\n", "[]"),
        ("*2\r\n*1\r\n:1\r\n$1\r\na\r\n", "[[1] 'a']"),
        ("%0\r\n", "{}"),
        ("%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n", "{+a 1 +b []}"),
        ("~2\r\n:1\r\n:2\r\n", "<1 2>"),
        (">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n", "push +invalidate ['k']"),
        ("|1\r\n+ttl\r\n:9\r\n$1\r\nv\r\n", "|+ttl 9| 'v'"),
        ("|0\r\n:1\r\n", "1"),
        ("|1\r\n+a\r\n:1\r\n|1\r\n+b\r\n:2\r\n*1\r\n:3\r\n", "|+b 2| [3]"),
        // Attributes of parts are skipped.
        ("*2\r\n|1\r\n+a\r\n%1\r\n:1\r\n:2\r\n:3\r\n:4\r\n", "[3 4]"),
        ("*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "[[[[1]]]]"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse(bytes), expected, "{}", bytes.escape_debug());
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), "unfinished", "{}", bytes.escape_debug());
        }
    }
}

#[test]
fn what_is_no_reply_is_refused() {
    let line = format!("+{}", "x".repeat(2_001));
    let cases = [
        ("x\r\n", "a reply cannot begin with byte 0x78"),
        ("\r\n", "a reply cannot begin with byte 0x0d"),
        ("12\r\n", "a reply cannot begin with byte 0x31"),
        ("?1\r\n", "a reply cannot begin with byte 0x3f"),
        (";1\r\n", "a reply cannot begin with byte 0x3b"),
        ("+a\rb\r\n", "invalid line end in a reply"),
        (":\r\n", "invalid integer in a reply"),
        (":01\r\n", "invalid integer in a reply"),
        (":1 \r\n", "invalid integer in a reply"),
        (":+-1\r\n", "invalid integer in a reply"),
        (":9223372036854775808\r\n", "invalid integer in a reply"),
        ("$-2\r\n", "invalid length in a reply"),
        ("$?\r\n", "invalid length in a reply"),
        ("*?\r\n", "invalid length in a reply"),
        ("*-2\r\n", "invalid length in a reply"),
        ("~-1\r\n", "invalid length in a reply"),
        ("$1\r\nab\r\n", "invalid bulk length in a reply"),
        ("_x\r\n", "invalid null in a reply"),
        ("#1\r\n", "invalid boolean in a reply"),
        (",x\r\n", "invalid double in a reply"),
        (",\r\n", "invalid double in a reply"),
        ("(1.5\r\n", "invalid big number in a reply"),
        ("(-\r\n", "invalid big number in a reply"),
        ("=3\r\ntxt\r\n", "invalid verbatim text in a reply"),
        ("=4\r\ntxt.\r\n", "invalid verbatim text in a reply"),
        ("*2\r\n:1\r\nx", "a reply cannot begin with byte 0x78"),
        // Announced lengths above the limits are refused at once.
        ("$2001\r\n", "reply is too big"),
        ("$99999999999999999\r\n", "reply is too big"),
        ("$9223372036854775807\r\n", "reply is too big"),
        ("*667\r\n", "reply is too big"),
        ("%334\r\n", "reply is too big"),
        ("%9223372036854775807\r\n", "reply is too big"),
        ("|9223372036854775807\r\n", "reply is too big"),
        (&line, "reply is too big"),
        ("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "reply is nested too deeply"),
        ("|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n", "reply is nested too deeply"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse(bytes), expected, "{}", bytes.escape_debug());
    }
}

#[test]
fn a_reply_of_many_small_parts_has_a_limit_too() {
    let mut replies = Vec::new();
    let mut writer = ReplyWriter::new(Protocol::Resp3, &mut replies);
    writer.array(20);
    (0..20).for_each(|_| writer.bulk(&[b'x'; 100]));
    assert_eq!(parse_pieces([&replies[..]]).1, Err(MalformedReply::TooBig));
    assert_eq!(parse_pieces(replies.chunks(1)).1, Err(MalformedReply::TooBig));
}

/// Writes every kind of reply.
fn write_everything(protocol: Protocol) -> String {
    let mut out = Vec::new();
    let mut writer = ReplyWriter::new(protocol, &mut out);
    writer.simple("OK");
    writer.error("ERR unknown command 'a\r\nb'");
    for number in [0, 9, 10, 99, 100, -1, i64::MAX, i64::MIN] {
        writer.integer(number);
    }
    writer.bulk(b"value");
    writer.null();
    writer.null_array();
    writer.array(2);
    writer.map(1);
    writer.bulk(b"key");
    writer.double(0.5);
    writer.set(1);
    writer.boolean(true);
    writer.boolean(false);
    writer.big_number("123");
    writer.verbatim(*b"txt", b"text");
    writer.push(1);
    writer.simple("message");
    String::from_utf8(out).unwrap()
}

#[test]
fn a_server_writes_resp2_as_redis_does() {
    let expected = "+OK\r\n-ERR unknown command 'a  b'\r\n:0\r\n:9\r\n:10\r\n:99\r\n:100\r\n:-1\r\n\
        :9223372036854775807\r\n:-9223372036854775808\r\n$5\r\nvalue\r\n$-1\r\n*-1\r\n\
        *2\r\n*2\r\n$3\r\nkey\r\n$3\r\n0.5\r\n*1\r\n:1\r\n:0\r\n$3\r\n123\r\n$4\r\ntext\r\n\
        *1\r\n+message\r\n";
    assert_eq!(write_everything(Protocol::Resp2), expected);
}

#[test]
fn a_server_writes_resp3_as_redis_does() {
    let expected = "+OK\r\n-ERR unknown command 'a  b'\r\n:0\r\n:9\r\n:10\r\n:99\r\n:100\r\n:-1\r\n\
        :9223372036854775807\r\n:-9223372036854775808\r\n$5\r\nvalue\r\n_\r\n_\r\n\
        *2\r\n%1\r\n$3\r\nkey\r\n,0.5\r\n~1\r\n#t\r\n#f\r\n(123\r\n=8\r\ntxt:text\r\n\
        >1\r\n+message\r\n";
    assert_eq!(write_everything(Protocol::Resp3), expected);
}

#[test]
#[should_panic(expected = "RESP2 has no attributes")]
fn an_attribute_in_resp2_is_our_bug() {
    ReplyWriter::new(Protocol::Resp2, &mut Vec::new()).attribute(1);
}

#[test]
fn doubles_are_written_as_redis_writes_them() {
    let cases = [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-17.0, "-17"),
        (1e15, "1000000000000000"),
        (4_503_599_627_370_495.0, "4503599627370495"),
        (1e17, "100000000000000000"),
        (4_330_555_365_413_187_000.0, "4330555365413187072"),
        (4_611_686_018_427_387_904.0, "4611686018427387904"),
        (-4_611_686_018_427_387_904.0, "-4611686018427387904"),
        (4.7e18, "4.7e+18"),
        (12345678901234567890.0, "12345678901234567000"),
        (1e20, "1e+20"),
        (-1.5e300, "-1.5e+300"),
        (f64::MAX, "1.7976931348623157e+308"),
        (0.1, "0.1"),
        (3.25, "3.25"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (0.00012345678, "1.2345678e-4"),
        (0.0012345678, "0.0012345678"),
        (-1234.56789012, "-1234.56789012"),
        (123456.789012345, "1.23456789012345e+5"),
        (5e-324, "5e-324"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ];
    for (number, expected) in cases {
        let mut out = Vec::new();
        resp::write_double(number, &mut out);
        assert_eq!(out.escape_ascii().to_string(), expected);
    }
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let number = f64::from_bits(random.u64(..));
        let mut out = Vec::new();
        resp::write_double(number, &mut out);
        assert!(out.len() <= 25, "{number:?} is written as {}", out.escape_ascii());
        let read: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
        assert!(read == number || read.is_nan() && number.is_nan(), "{number:?}");
    }
}

#[test]
fn integers_are_read_in_one_form_only() {
    for text in [
        "",
        "-",
        "+1",
        "-0",
        "00",
        "01",
        "1 ",
        " 1",
        "1x",
        "0x1",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999",
    ] {
        assert_eq!(resp::parse_integer(text.as_bytes()), None, "{text}");
    }
    for number in [0, 1, -1, 10, -10, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
        let mut text = Vec::new();
        resp::write_integer(number, &mut text);
        assert_eq!(resp::parse_integer(&text), Some(number));
    }
}

/// Writes any value.
fn write(value: &Value, writer: &mut ReplyWriter<'_>) {
    match value {
        Value::Simple(text) => writer.simple(std::str::from_utf8(text).unwrap()),
        Value::Error(text) => writer.error(text),
        Value::Integer(number) => writer.integer(*number),
        Value::Bulk(bytes) => writer.bulk(bytes),
        Value::Null => writer.null(),
        Value::Double(number) => writer.double(*number),
        Value::Boolean(is_true) => writer.boolean(*is_true),
        Value::BigNumber(digits) => writer.big_number(std::str::from_utf8(digits).unwrap()),
        Value::Verbatim { format, text } => writer.verbatim(*format, text),
        Value::Array(items) => {
            writer.array(items.len());
            items.iter().for_each(|item| write(item, writer));
        }
        Value::Set(items) => {
            writer.set(items.len());
            items.iter().for_each(|item| write(item, writer));
        }
        Value::Push(items) => {
            writer.push(items.len());
            items.iter().for_each(|item| write(item, writer));
        }
        Value::Map(pairs) => {
            writer.map(pairs.len());
            for (key, value) in pairs {
                write(key, writer);
                write(value, writer);
            }
        }
    }
}

/// Returns a random value with at most `depth` levels of nesting.
fn random_value(random: &mut fastrand::Rng, depth: usize) -> Value {
    let text = |random: &mut fastrand::Rng| -> Vec<u8> {
        (0..random.usize(0..8)).map(|_| random.u8(b' '..=b'~')).collect()
    };
    let items = |random: &mut fastrand::Rng| -> Vec<Value> {
        (0..random.usize(0..4)).map(|_| random_value(random, depth - 1)).collect()
    };
    match random.u8(..if depth == 0 { 9 } else { 12 }) {
        0 => Value::Simple(text(random)),
        1 => Value::Error(text(random)),
        2 => Value::Integer(random.i64(..) >> random.u8(..64)),
        3 => Value::Bulk((0..random.usize(0..40)).map(|_| random.u8(..)).collect()),
        4 => Value::Null,
        5 => Value::Double(f64::from(random.i32(..)) / 8.0),
        6 => Value::Boolean(random.bool()),
        7 => Value::BigNumber(random.u128(..).to_string().into_bytes()),
        8 => Value::Verbatim { format: *b"mkd", text: text(random) },
        9 => Value::Array(items(random)),
        // The oracle requires hashable, distinct keys.
        10 => Value::Set((0..random.i64(0..4)).map(Value::Integer).collect()),
        _ => {
            let values = items(random).into_iter().enumerate();
            Value::Map(values.map(|(key, value)| (Value::Integer(key as i64), value)).collect())
        }
    }
}

#[test]
fn what_a_server_writes_is_what_the_client_reads_however_it_is_cut() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..2_000 {
        let mut stream = Vec::new();
        let mut writer = ReplyWriter::new(Protocol::Resp3, &mut stream);
        let mut values = Vec::new();
        for _ in 0..random.usize(1..4) {
            let value = random_value(&mut random, 3);
            let attribute = random_value(&mut random, 2);
            if random.bool() {
                writer.attribute(1);
                writer.simple("hint");
                write(&attribute, &mut writer);
                write(&value, &mut writer);
                values.push((value, vec![Value::Simple(b"hint".to_vec()), attribute]));
            } else {
                write(&value, &mut writer);
                values.push((value, Vec::new()));
            }
        }
        let expected = (values, Ok(0));
        assert_eq!(parse_pieces([&stream[..]]), expected);
        assert_eq!(parse_pieces(stream.chunks(1)), expected);
        let (first, second) = stream.split_at(random.usize(0..=stream.len()));
        assert_eq!(parse_pieces([first, second]), expected);
    }
}

#[test]
fn long_replies_in_small_pieces_take_no_quadratic_time() {
    let mut stream = Vec::new();
    let mut writer = ReplyWriter::new(Protocol::Resp3, &mut stream);
    writer.map(200_000);
    (0..400_000).for_each(|number| writer.integer(number));
    writer.error("x".repeat(1 << 20));
    let mut parser = ReplyParser::new(ReplyLimits::default());
    let mut start = 0;
    let mut replies = 0;
    for end in 0..=stream.len() {
        let mut input = &stream[start..end];
        replies += usize::from(parser.next(&mut input).unwrap().is_some());
        start = end - input.len();
    }
    assert_eq!((replies, start), (2, stream.len()));
}

mod oracle {
    //! Another implementation of the same protocol.

    use super::*;
    use redis_protocol::resp3::{
        decode::complete::decode,
        types::{OwnedFrame, VerbatimStringFormat},
    };

    fn convert(value: Value) -> OwnedFrame {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let attributes = None;
        let all = |items: Vec<Value>| items.into_iter().map(convert);
        match value {
            Value::Simple(data) => OwnedFrame::SimpleString { data, attributes },
            Value::Error(data) => OwnedFrame::SimpleError { data: text(data), attributes },
            Value::Integer(data) => OwnedFrame::Number { data, attributes },
            Value::Bulk(data) => OwnedFrame::BlobString { data, attributes },
            Value::Null => OwnedFrame::Null,
            Value::Double(data) => OwnedFrame::Double { data, attributes },
            Value::Boolean(data) => OwnedFrame::Boolean { data, attributes },
            Value::BigNumber(data) => OwnedFrame::BigNumber { data, attributes },
            Value::Verbatim { format, text: data } => {
                assert_eq!(format, *b"mkd");
                let format = VerbatimStringFormat::Markdown;
                OwnedFrame::VerbatimString { data, format, attributes }
            }
            Value::Array(items) => OwnedFrame::Array { data: all(items).collect(), attributes },
            Value::Set(items) => OwnedFrame::Set { data: all(items).collect(), attributes },
            Value::Push(items) => OwnedFrame::Push { data: all(items).collect(), attributes },
            Value::Map(pairs) => {
                let data = pairs.into_iter().map(|(key, value)| (convert(key), convert(value)));
                OwnedFrame::Map { data: data.collect(), attributes }
            }
        }
    }

    #[test]
    fn another_implementation_reads_what_a_server_writes() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..2_000 {
            let value = random_value(&mut random, 3);
            let mut bytes = Vec::new();
            write(&value, &mut ReplyWriter::new(Protocol::Resp3, &mut bytes));
            let (frame, length) = decode(&bytes).unwrap().unwrap();
            assert_eq!(length, bytes.len());
            assert_eq!(frame, convert(value), "{}", bytes.escape_ascii());
        }
    }
}
