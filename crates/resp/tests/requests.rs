//! Tests of parsing requests.

use resp::{ProtocolError, RequestLimits, RequestParser, RequestWriter};

const LIMITS: RequestLimits = RequestLimits {
    bulk_bytes_max: 1_000,
    skipped_bytes_max: 2_000,
    arguments_max: 100,
    line_bytes_max: 200,
    request_bytes_max: 3_000,
};

/// The requests in a stream that arrives in pieces, and the bytes left over or the error.
type Requests = (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>);

/// Parses a stream that arrives in pieces. The number is the bytes left over. A skipped request is
/// represented by its error's text.
fn parse_pieces<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Requests {
    let mut parser = RequestParser::new(LIMITS);
    let (mut requests, mut received) = (Vec::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        let mut input = &received[..];
        loop {
            match parser.next(&mut input) {
                Ok(Some(request)) => requests.push(request.iter().map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) if error.ends_connection() => return (requests, Err(error)),
                Err(error) => requests.push(vec![error.to_string().into_bytes()]),
            }
        }
        let taken = received.len() - input.len();
        received.drain(..taken);
    }
    (requests, Ok(received.len()))
}

fn parse(bytes: &[u8]) -> Requests {
    parse_pieces([bytes])
}

/// Formats parsed requests as one text.
fn show(requests: &Requests) -> String {
    let mut lines: Vec<String> = requests
        .0
        .iter()
        .map(|arguments| {
            let words: Vec<String> =
                arguments.iter().map(|a| format!("[{}]", a.escape_ascii())).collect();
            words.concat()
        })
        .collect();
    match &requests.1 {
        Ok(0) => {}
        Ok(left) => lines.push(format!("{left} more")),
        Err(error) => lines.push(format!("-ERR {error}")),
    }
    lines.join(" ")
}

#[test]
fn requests_are_understood_and_refused_as_redis_does() {
    let long = "x".repeat(201);
    let cases: &[(&str, &str)] = &[
        // Arrays of bulk strings.
        ("*1\r\n$4\r\nPING\r\n", "[PING]"),
        ("*2\r\n$3\r\nGET\r\n$0\r\n\r\n", "[GET][]"),
        ("*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n", "[GET][\\r\\n]"),
        ("*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", "[a] [b]"),
        (
            "*11\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n$1\r\n5\r\n$1\r\n6\r\n\
          $1\r\n7\r\n$1\r\n8\r\n$1\r\n9\r\n$2\r\n10\r\n",
            "[0][1][2][3][4][5][6][7][8][9][10]",
        ),
        // Empty requests are skipped silently.
        ("*0\r\n*-1\r\n*-10\r\n\r\n  \r\n\n*1\r\n$4\r\nPING\r\n", "[PING]"),
        // Incomplete requests.
        ("*", "1 more"),
        ("*1\r", "3 more"),
        ("*1\r\n$4\r\nPING", "12 more"),
        ("*1\r\n$4\r\nPING\r", "13 more"),
        ("PING", "4 more"),
        ("*0\r\n*", "1 more"),
        // Numbers of arguments.
        ("*100", "4 more"),
        ("*101\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*3000000000\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*99999999999999999999999999\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*x\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*+1\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*01\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("* 1\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*1\rx", "-ERR Protocol error: invalid CRLF in request"),
        // Lengths of arguments.
        ("*1\r\n$2001\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$-10\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$x\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$2000000000\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$9223372036854775808\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$1\rx", "-ERR Protocol error: invalid CRLF in request"),
        ("*1\r\n$1\r\nxyz", "-ERR Protocol error: invalid CRLF in request"),
        ("*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", "-ERR Protocol error: expected '$', got 'f'"),
        ("*1\r\n*1\r\n", "-ERR Protocol error: expected '$', got '*'"),
        ("*1\r\n\r\n", "-ERR Protocol error: expected '$', got ' '"),
        ("*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'"),
        // Requests before an error are still returned.
        ("*1\r\n$4\r\nPING\r\n*x\r\n", "[PING] -ERR Protocol error: invalid multibulk length"),
        // Inline requests.
        ("PING\r\n", "[PING]"),
        ("PING\n", "[PING]"),
        ("  set\tkey  value \r\n", "[set][key][value]"),
        ("get a\r\nget b\n", "[get][a] [get][b]"),
        ("set k \"a b\"\r\n", "[set][k][a b]"),
        ("set k \"\"\r\n", "[set][k][]"),
        ("set k ''\r\n", "[set][k][]"),
        ("set k \"\\n\\r\\t\\b\\a\\\"\\\\\\q\"\r\n", "[set][k][\\n\\r\\t\\x08\\x07\\\"\\\\q]"),
        ("set k \"\\x00\\xfF\\x0g\"\r\n", "[set][k][\\x00\\xffx0g]"),
        ("set k 'a\\'b\\n\"'\r\n", "[set][k][a\\'b\\\\n\\\"]"),
        ("set a\"b c\" d'e f'\r\n", "[set][ab c][de f]"),
        ("a\u{b}b \u{b}c\r\n", "[a\\x0bb][c]"),
        ("$1\r\n", "[$1]"),
        ("get \"a\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        ("get 'a\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        ("get \"a\\\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        ("get \"a\"b\r\n", "[get][ab]"),
        ("get 'a'b\"c d\"e \"\"\r\n", "[get][abc de][]"),
        ("get \"a\\x4\"b\"\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        // Lines without an end.
        (&long, "-ERR Protocol error: too big inline request"),
        (&format!("{long}\r\n"), "-ERR Protocol error: too big inline request"),
        (&format!("*{long}"), "-ERR Protocol error: too big mbulk count string"),
        (&format!("*1\r\n${long}"), "-ERR Protocol error: too big bulk count string"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(&show(&parse(bytes.as_bytes())), expected, "{}", bytes.escape_debug());
    }
}

#[test]
fn the_cut_of_a_stream_into_pieces_changes_nothing() {
    for (name, stream) in streams() {
        let whole = parse(&stream);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(parse_pieces(bytes), whole, "{name}, byte by byte");
        for at in 0..=stream.len() {
            let (first, second) = stream.split_at(at);
            assert_eq!(parse_pieces([first, second]), whole, "{name}, cut at {at}");
        }
    }
}

#[test]
fn any_three_pieces_of_a_short_stream_give_the_same_requests() {
    let stream =
        b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n\r\n*0\r\nget 'b c'\r\n*1\r\n$0\r\n\r\n*1\r\n$-1\r\n";
    let whole = parse(stream);
    for first in 0..=stream.len() {
        for second in first..=stream.len() {
            let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
            assert_eq!(parse_pieces(pieces), whole, "cut at {first} and {second}");
        }
    }
}

fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let mut requests = Vec::new();
    for number in 0..12 {
        let value = vec![b'\r'; number * 17];
        RequestWriter::new(3, &mut requests)
            .argument(b"SET")
            .integer(number as i64)
            .argument(&value);
        requests.extend_from_slice(b"get 'inline key'\r\n*0\r\n\r\n");
    }
    let mut wrong = requests.clone();
    wrong.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n");
    let mut long_line = requests.clone();
    long_line.extend_from_slice(&[b'a'; 300]);
    let mut longest_line = requests.clone();
    longest_line.extend_from_slice(&[b'a'; 200]);
    longest_line.extend_from_slice(b"\nPING\r\n");
    let mut too_big = requests.clone();
    RequestWriter::write(&[&[1; 1_000], &[2; 1_000], &[3; 1_000]], &mut too_big);
    let mut too_long = requests.clone();
    for arguments in [&[3, 1_001, 0][..], &[1_500], &[1, 2_000, 1_001, 5], &[1, 2_001]] {
        let arguments: Vec<Vec<u8>> = arguments.iter().map(|length| vec![b'\r'; *length]).collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        RequestWriter::write(&arguments, &mut too_long);
        too_long.extend_from_slice(b"PING\r\n");
    }
    vec![
        ("too long arguments", too_long),
        ("requests", requests),
        ("an error at the end", wrong),
        ("too long a line", long_line),
        ("the longest line", longest_line),
        ("too big a request", too_big),
    ]
}

#[test]
fn what_a_client_writes_is_what_the_server_reads() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..2_000 {
        let request: Vec<Vec<u8>> = (0..random.usize(1..9))
            .map(|_| (0..random.usize(0..150)).map(|_| random.u8(..)).collect())
            .collect();
        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let mut bytes = Vec::new();
        RequestWriter::write(&arguments, &mut bytes);
        assert_eq!(parse(&bytes), (vec![request], Ok(0)));
    }
}

#[test]
fn a_request_with_too_long_an_argument_passes_by_and_the_next_one_is_read() {
    let request = |lengths: &[usize]| {
        let arguments: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'x'; *length]).collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let mut bytes = Vec::new();
        RequestWriter::write(&arguments, &mut bytes);
        bytes.extend_from_slice(b"PING\r\n");
        show(&parse(&bytes))
    };
    let told = |bytes: u32| {
        format!("[argument of {bytes} bytes is longer than the maximum of 1000 bytes] [PING]")
    };
    assert_eq!(request(&[3, 1, 1_001]), told(1_001));
    assert_eq!(request(&[2_000]), told(2_000));
    // The first length is reported. Later arguments must not exceed the limit for skipping either.
    assert_eq!(request(&[3, 1_500, 7, 2_000, 0]), told(1_500));
    assert_eq!(request(&[3, 1_500, 2_001]), "-ERR Protocol error: invalid bulk length");
    assert_eq!(request(&[2_001]), "-ERR Protocol error: invalid bulk length");
    assert_eq!(parse(b"*2\r\n$1001\r\nxx"), (vec![], Ok(0)), "what has come is not kept");
    let wrong_end = format!("*2\r\n$1001\r\n{}\n\n$1\r\nx\r\n", "x".repeat(1_001));
    assert_eq!(show(&parse(wrong_end.as_bytes())), "-ERR Protocol error: invalid CRLF in request");
    let no_length = format!("*2\r\n$1001\r\n{}\r\nx\r\n", "x".repeat(1_001));
    assert_eq!(show(&parse(no_length.as_bytes())), "-ERR Protocol error: expected '$', got 'x'");
}

#[test]
fn of_an_argument_that_is_too_long_nothing_is_kept() {
    let limits = RequestLimits { bulk_bytes_max: 1_000, ..RequestLimits::default() };
    let mut parser = RequestParser::new(limits);
    let mut input = &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n"[..];
    assert!(parser.next(&mut input).unwrap().is_none());
    assert_eq!((input.len(), parser.wanted()), (0, 0));
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..512 {
        let mut input = &piece[..];
        assert!(parser.next(&mut input).unwrap().is_none());
        assert_eq!((input.len(), parser.wanted()), (0, 0));
        assert!(parser.held_bytes() < 100, "{} bytes", parser.held_bytes());
    }
    let mut input = &b"\r\n*1\r\n$4\r\nPING\r\n"[..];
    let error = parser.next(&mut input).unwrap_err();
    let (bytes, bytes_max) = (512 << 20, 1_000);
    assert_eq!(error, ProtocolError::TooLongArgument { bytes, bytes_max });
    assert!(!error.ends_connection());
    assert_eq!(parser.next(&mut input).unwrap().unwrap().name(), b"PING");
    assert!(input.is_empty());
}

#[test]
fn all_arguments_together_have_a_limit() {
    let mut bytes = Vec::new();
    RequestWriter::write(&[&[1; 1_000], &[2; 1_000], &[3; 900]], &mut bytes);
    assert_eq!(parse(&bytes).1, Ok(0));
    bytes.clear();
    RequestWriter::write(&[&[1; 1_000], &[2; 1_000], &[3; 1_000]], &mut bytes);
    // The parser reports the error when the length is announced, before the bytes arrive.
    let announced = bytes.len() - 1_002;
    assert_eq!(parse(&bytes[..announced]).1, Err(ProtocolError::TooBigRequest));
}

#[test]
fn a_request_of_a_million_arguments_in_small_pieces_takes_no_quadratic_time() {
    let limits = RequestLimits::default();
    let mut bytes = Vec::new();
    let mut writer = RequestWriter::new(limits.arguments_max, &mut bytes);
    for number in 0..limits.arguments_max {
        writer = writer.integer(number as i64);
    }
    drop(writer);
    let mut parser = RequestParser::new(limits);
    // 1.6 million pieces. Scanning all bytes for each would take days.
    for end in (0..bytes.len()).step_by(7) {
        assert!(parser.next(&mut &bytes[..end]).unwrap().is_none());
    }
    let mut input = &bytes[..];
    let request = parser.next(&mut input).unwrap().unwrap();
    assert_eq!(request.len(), limits.arguments_max);
    assert_eq!(&request[1_048_575], b"1048575");
    assert_eq!(input, b"");
}

#[test]
fn a_line_that_arrives_byte_by_byte_is_searched_once() {
    let limits = RequestLimits { line_bytes_max: 8 << 20, ..RequestLimits::default() };
    let mut parser = RequestParser::new(limits);
    let mut bytes = vec![b'a'; 4 << 20];
    for end in 0..bytes.len() {
        assert!(parser.next(&mut &bytes[..end]).unwrap().is_none());
    }
    bytes.push(b'\n');
    assert_eq!(parser.next(&mut &bytes[..]).unwrap().unwrap().name().len(), 4 << 20);
}

#[test]
fn what_is_announced_takes_no_memory_and_what_has_passed_gives_it_back() {
    let limits = RequestLimits::default();
    let mut parser = RequestParser::new(limits);
    assert!(parser.next(&mut &b"*1048576\r\n$536870912\r\nabc"[..]).unwrap().is_none());
    assert!(parser.held_bytes() < 100, "{} bytes", parser.held_bytes());

    let mut bytes = Vec::new();
    RequestWriter::write(&[&b"MGET"[..]; 10_000], &mut bytes);
    bytes.extend_from_slice(&b"'word' ".repeat(1_000));
    bytes.extend_from_slice(b"\r\n");
    let mut parser = RequestParser::new(limits);
    let mut input = &bytes[..];
    assert_eq!(parser.next(&mut input).unwrap().unwrap().len(), 10_000);
    assert_eq!(parser.next(&mut input).unwrap().unwrap().len(), 1_000);
    assert!(parser.held_bytes() > 4_000, "there was nothing to give back");
    assert!(parser.next(&mut input).unwrap().is_none());
    assert!(parser.held_bytes() <= 2_048, "{} bytes", parser.held_bytes());
}

#[test]
fn a_request_can_be_kept_and_carried_out_later() {
    for bytes in [&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"[..], b"GET 'k'\r\n"] {
        let mut parser = RequestParser::new(LIMITS);
        let kept = parser.next(&mut &*bytes).unwrap().unwrap().to_owned();
        let request = kept.request();
        assert_eq!((request.name(), request.len()), (&b"GET"[..], 2));
        assert_eq!((request.get(1), request.get(2)), (Some(&b"k"[..]), None));
        assert_eq!(format!("{request:?}"), r#"["GET", "k"]"#);
        assert!(kept.held_bytes() < 100);
    }
}

#[test]
#[should_panic(expected = "fewer arguments than announced")]
fn a_request_of_fewer_arguments_than_announced_is_our_bug() {
    RequestWriter::new(2, &mut Vec::new()).argument(b"GET");
}

#[test]
#[should_panic(expected = "more arguments than announced")]
fn a_request_of_more_arguments_than_announced_is_our_bug() {
    RequestWriter::new(1, &mut Vec::new()).argument(b"GET").argument(b"key");
}

#[test]
fn a_parser_tells_how_much_it_needs_and_finds_nothing_before() {
    let stream = b"*2\r\n$4\r\nECHO\r\n$300\r\n".to_vec();
    let stream = [&stream, &[b'x'; 300][..], b"\r\n*1\r\n$4\r\nPING\r\nPING\r\n"].concat();
    let mut parser = RequestParser::new(LIMITS);
    let (mut wanted, mut most, mut found) = (0, 0, 0);
    let mut start = 0;
    for end in 1..=stream.len() {
        let mut input = &stream[start..end];
        let given = input.len();
        while parser.next(&mut input).unwrap().is_some() {
            assert!(given >= wanted, "found with {given} bytes, and {wanted} were wanted");
            found += 1;
        }
        start = end - input.len();
        wanted = parser.wanted();
        most = most.max(wanted);
        assert!(wanted == 0 || wanted > input.len());
    }
    assert_eq!((found, most), (3, b"*2\r\n$4\r\nECHO\r\n$300\r\n\r\n".len() + 300));
}
