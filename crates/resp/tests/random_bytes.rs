//! A short run of the fuzzing checks with random bytes, in each test run.

mod checks;

/// Streams per test: about one second.
const STREAMS: usize = 100_000;

/// The pieces of streams in both directions, and pieces that are almost valid.
const PIECES: &[&[u8]] = &[
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*",
    b"$",
    b"$0\r\n\r\n",
    b"$1\r\n",
    b"$3\r\nGET\r\n",
    b"$2\r\nab\r\n",
    b"$-1\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b"-",
    b"0",
    b"1",
    b"9",
    b"99",
    b"1234567890123456789",
    b"get key\r\n",
    b"\"",
    b"'",
    b"\\",
    b"\\x41",
    b" ",
    b"\t",
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":1\r\n",
    b":-7\r\n",
    b":",
    b"_\r\n",
    b"#t\r\n",
    b"#",
    b",1.5\r\n",
    b",inf\r\n",
    b",nan\r\n",
    b",",
    b"(12\r\n",
    b"!3\r\na\rb\r\n",
    b"=5\r\ntxt:a\r\n",
    b"=",
    b"%1\r\n",
    b"%0\r\n",
    b"%2\r\n",
    b"~1\r\n",
    b"~2\r\n",
    b">1\r\n",
    b">2\r\n",
    b"|1\r\n",
    b"|0\r\n",
    b"|",
];

fn random_stream(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..random.usize(0..25) {
        match random.u8(..20) {
            0 => stream.push(random.u8(..)),
            1 => stream.extend((0..random.usize(0..150)).map(|_| random.u8(b'0'..b':'))),
            _ => stream.extend_from_slice(PIECES[random.usize(..PIECES.len())]),
        }
    }
    stream
}

#[test]
fn random_bytes_from_a_client_do_no_harm() {
    let mut random = fastrand::Rng::with_seed(1);
    (0..STREAMS).for_each(|_| checks::requests(&random_stream(&mut random)));
}

#[test]
fn random_bytes_from_a_server_do_no_harm() {
    let mut random = fastrand::Rng::with_seed(1);
    (0..STREAMS).for_each(|_| checks::replies(&random_stream(&mut random)));
}
