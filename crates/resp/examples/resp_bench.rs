//! Nanoseconds per request and per reply: `cargo run --release -p resp --example resp_bench`.
//!
//! Each case parses a pipeline of equal parts from one buffer, many times. The result is the best
//! of several rounds, since disturbances only make a round slower. The parsed data is checked,
//! because a parser that finds nothing is fast.

use resp::{
    Protocol, Reply, ReplyLimits, ReplyParser, ReplyWriter, RequestLimits, RequestParser,
    RequestWriter,
};
use std::{hint::black_box, time::Duration, time::Instant};

/// Parts in a pipeline. With small parts, this is about one read from a socket.
const PARTS: usize = 128;
const ROUNDS: usize = 40;
const PASSES: usize = 200;

const KEY: &[u8; 30] = b"user:0123456789012345678901234";

fn main() {
    println!("{:44} {:>8} {:>10}", "", "ns", "bytes");
    let value = [b'v'; 100];
    request("request GET, key of 30 B", &[b"GET", KEY]);
    request("request SET, value of 100 B", &[b"SET", KEY, &value]);
    request("request SET with 3 options", &[b"SET", KEY, &value, b"EX", b"100", b"NX"]);
    request("request MGET of 16 keys", &[&[&b"MGET"[..]], &[&KEY[..]; 16][..]].concat());
    request("request SET, value of 16 KiB", &[b"SET", KEY, &[b'v'; 16 << 10]]);
    inline_request();
    reply("reply +OK", |writer| writer.simple("OK"));
    reply("reply value of 100 B", |writer| writer.bulk(&value));
    reply("reply null", |writer| writer.null());
    reply("reply integer 1234567", |writer| writer.integer(1_234_567));
    reply("reply array of 16 values of 100 B", |writer| {
        writer.array(16);
        (0..16).for_each(|_| writer.bulk(&value));
    });
}

/// Prints the time per part.
fn show(name: &str, bytes: usize, mut pass: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
        let start = Instant::now();
        (0..PASSES).for_each(|_| pass());
        best = best.min(start.elapsed());
    }
    let parts = (PASSES * PARTS) as f64;
    println!("{name:44} {:8.1} {bytes:10}", best.as_nanos() as f64 / parts);
}

fn request(name: &str, arguments: &[&[u8]]) {
    let mut pipeline = Vec::new();
    (0..PARTS).for_each(|_| RequestWriter::write(arguments, &mut pipeline));
    parse_requests(&format!("{name}: parse"), &pipeline, arguments.len());
    let mut out = Vec::new();
    show(&format!("{name}: write"), pipeline.len() / PARTS, || {
        out.clear();
        (0..PARTS).for_each(|_| RequestWriter::write(black_box(arguments), &mut out));
        assert_eq!(out.len(), pipeline.len());
    });
}

fn inline_request() {
    parse_requests("request PING inline: parse", &b"PING\r\n".repeat(PARTS), 1);
}

fn parse_requests(name: &str, pipeline: &[u8], arguments: usize) {
    let mut parser = RequestParser::new(RequestLimits::default());
    show(name, pipeline.len() / PARTS, || {
        let mut input = black_box(pipeline);
        let mut count = 0;
        while let Ok(Some(request)) = parser.next(&mut input) {
            count += black_box(request).len();
        }
        assert_eq!(count, PARTS * arguments);
    });
}

fn reply(name: &str, write: impl Fn(&mut ReplyWriter<'_>)) {
    let mut out = Vec::new();
    let mut pass = || {
        out.clear();
        let mut writer = ReplyWriter::new(black_box(Protocol::Resp3), &mut out);
        (0..PARTS).for_each(|_| write(&mut writer));
    };
    pass();
    show(&format!("{name}: write"), 0, &mut pass);
    let mut parser = ReplyParser::new(ReplyLimits::default());
    show(&format!("{name}: parse"), out.len() / PARTS, || {
        let mut input = black_box(&out[..]);
        let mut count = 0;
        while let Ok(Some(received)) = parser.next(&mut input) {
            match black_box(received.reply) {
                Reply::Error(text) => panic!("{}", text.escape_ascii()),
                Reply::Array(items) => count += items.count() / 16,
                Reply::Simple(_)
                | Reply::Integer(_)
                | Reply::Bulk(_)
                | Reply::Null
                | Reply::Double(_)
                | Reply::Boolean(_)
                | Reply::BigNumber(_)
                | Reply::Verbatim { .. }
                | Reply::Map(_)
                | Reply::Set(_)
                | Reply::Push(_) => count += 1,
            }
        }
        assert_eq!(count, PARTS);
    });
}
