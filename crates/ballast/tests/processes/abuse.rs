//! Invalid and abusive input on each port: the sender gets an error or is disconnected, and all
//! other clients are still served.

use crate::client::{Client, until};
use crate::servers::{MODEST, Process};
use bench::clock;
use std::net::SocketAddr;
use std::time::Duration;

/// Memory of a test server beside that for records: code, stacks, buffers.
const BESIDE_BYTES: u64 = 96 << 20;

#[test]
fn random_bytes_end_a_connection_and_nothing_else() {
    let coordinator = Process::coordinator();
    let server = Process::joined(&coordinator, &MODEST);
    for (seed, address) in ports(&coordinator, &server)
        .into_iter()
        .zip(0..)
        .flat_map(|(a, n)| (0..40).map(move |seed| (40 * n + seed, a)))
    {
        let mut random = fastrand::Rng::with_seed(seed);
        let length = random.usize(1..20_000);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        let mut client = Client::connect(address);
        client.try_send(&bytes);
        client.finish();
        assert!(client.is_closed(), "{address} keeps seed {seed}");
    }
    server.assert_serves("random bytes");
    Process::joined(&coordinator, &MODEST).assert_serves("random bytes for its coordinator");
}

#[test]
fn bytes_that_nearly_make_sense_end_a_connection_and_nothing_else() {
    let server = Process::alone(&MODEST);
    let alphabet: [&[u8]; 16] = [
        b"*",
        b"$",
        b"\r\n",
        b"1",
        b"3",
        b"-1",
        b"0",
        b"GET",
        b"SET",
        b" ",
        b"\"",
        b"key",
        b"\n",
        b"99999999999999999999",
        b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"\0",
    ];
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let pieces = (0..random.usize(1..40)).map(|_| alphabet[random.usize(..alphabet.len())]);
        let bytes = pieces.collect::<Vec<_>>().concat();
        let mut client = server.client();
        client.try_send(&bytes);
        client.finish();
        assert!(client.is_closed(), "seed {seed} is kept");
    }
    server.assert_serves("requests that are none");
}

#[test]
fn absurd_lengths_are_refused_before_memory_is_taken_for_them() {
    let server = Process::alone(&MODEST);
    let before = server.resident_bytes();
    for (bytes, error) in [
        (&b"*11184811\r\n"[..], "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*99999999999\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*x\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n$4000000000\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"GET \"open\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
    ] {
        let mut client = server.client();
        client.send(bytes);
        let told = client.raw_answer().expect("an error is told");
        assert_eq!(String::from_utf8_lossy(&told), error, "{}", bytes.escape_ascii());
        assert!(client.is_closed());
    }
    let mut endless = server.client();
    endless.try_send(&vec![b'x'; 70_000]);
    let told = endless.raw_answer().expect("an error is told");
    assert_eq!(told, b"-ERR Protocol error: too big inline request\r\n");
    let mut promising = server.client();
    promising.send(b"*1000000\r\n$3\r\nSET\r\n");
    server.assert_serves("absurd lengths");
    assert!(server.resident_bytes() < before + BESIDE_BYTES);
}

#[test]
fn what_does_not_fit_into_a_record_is_refused_and_the_connection_goes_on() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    let long_key = vec![b'k'; types::limits::KEY_BYTES_MAX + 1];
    assert!(client.ask(&[b"SET", &long_key[..], b"v"]).is_error("ERR "));
    assert_eq!(client.ask(&[b"GET", &long_key[..]]).0, resp::Value::Null);
    let longest_key = &long_key[1..];
    let longest = vec![b'v'; types::limits::VALUE_BYTES_MAX];
    assert_eq!(client.ask(&[b"SET", longest_key, &longest]).text(), "OK");
    assert_eq!(client.ask(&[b"STRLEN", longest_key]).number(), longest.len() as i64);
    let error = client.ask(&[b"APPEND", longest_key, b"x"]);
    assert_eq!(error.text(), "ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    assert_eq!(client.ask(&[b"STRLEN", longest_key]).number(), longest.len() as i64);
    let before = server.resident_bytes();
    let maximum = longest.len();
    for too_long in [vec![b'v'; maximum + 1], vec![b'v'; 50 << 20]] {
        let error = client.ask(&[b"SET", longest_key, &too_long]);
        let bytes = too_long.len();
        let told =
            format!("ERR argument of {bytes} bytes is longer than the maximum of {maximum} bytes");
        assert_eq!(error.text(), told);
    }
    assert_eq!(client.ask(&[b"STRLEN", longest_key]).number(), maximum as i64);
    assert!(server.resident_bytes() < before + BESIDE_BYTES);
}

#[test]
fn a_client_that_has_ended_its_side_gets_all_its_answers() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    client.send(&b"INCR n\r\n".repeat(5_000));
    client.finish();
    for number in 1..=5_000 {
        assert_eq!(client.answer().number(), number);
    }
    assert!(client.is_closed());
    let mut silent = server.client();
    silent.send(b"*2\r\n$3\r\nGET\r\n$5\r\nha");
    silent.finish();
    assert!(silent.is_closed(), "half a request is given up");
    server.assert_serves("clients that end in the middle");
}

#[test]
fn a_client_that_sends_byte_by_byte_is_served_like_any_other() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    let requests =
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nv\r\n+v\r\nget k\r\n*2\r\n$4\r\nincr\r\n$1\r\nn\r\n";
    for byte in requests {
        client.send(&[*byte]);
        // Pause, so that each byte is sent in a packet of its own.
        clock::sleep(Duration::from_micros(200));
    }
    assert_eq!(client.answer().text(), "OK");
    assert_eq!(client.answer().text(), "v\r\n+v");
    assert_eq!(client.answer().number(), 1);
}

#[test]
fn a_client_that_never_reads_its_answers_costs_little_and_gets_them_all_when_it_does() {
    let server = Process::alone(&[&["--memory", "64mb"], &MODEST[..]].concat());
    let large = vec![b'v'; 1 << 20];
    server.client().ask(&[&b"SET"[..], b"large", &large]);
    let mut greedy: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut greedy {
        client.send(&b"GET large\r\n".repeat(300));
    }
    // After the server has served other clients, it has read these requests.
    for _ in 0..100 {
        server.assert_serves("requests for much");
    }
    let most = (64 << 20) + BESIDE_BYTES;
    let held = server.resident_bytes();
    assert!(held < most, "{held} bytes are held for clients that do not read");
    for client in &mut greedy {
        client.finish();
        for _ in 0..300 {
            assert_eq!(client.answer().text().len(), large.len());
        }
        assert!(client.is_closed());
    }
}

#[test]
fn a_full_server_refuses_writes_serves_reads_and_recovers_by_deletes() {
    let server = Process::alone(&[&["--memory", "64mb"], &MODEST[..]].concat());
    let mut client = server.client();
    let value = vec![b'v'; 10_000];
    let key = |number: u32| format!("key:{number}").into_bytes();
    let mut written = 0;
    let refusal = loop {
        let answer = client.ask(&[b"SET", &key(written)[..], &value]);
        match answer.is_error("") {
            true => break answer,
            false => written += 1,
        }
        assert!(written < 10_000, "64 MiB do not hold so much");
    };
    assert_eq!(refusal.text(), "OOM command not allowed when used memory > 'maxmemory'.");
    assert!(written > 3_000, "only {written} records fit");
    for number in 0..written {
        assert_eq!(client.ask(&[b"STRLEN", &key(number)[..]]).number(), value.len() as i64);
    }
    for number in 0..written / 2 {
        assert_eq!(client.ask(&[b"DEL", &key(number)[..]]).number(), 1, "deletes go on");
    }
    until("deletes make room", || !client.ask(&[b"SET", &key(0)[..], &value]).is_error("OOM"));
    for number in 0..written / 3 {
        until("writes go on", || !client.ask(&[b"SET", &key(number)[..], &value]).is_error("OOM"));
    }
    assert_eq!(client.ask(&["DBSIZE"]).number(), i64::from(written - written / 2 + written / 3));
}

#[test]
fn a_full_server_rests_when_nobody_asks_for_anything() {
    let server = Process::alone(&[&["--memory", "64mb"], &MODEST[..]].concat());
    let mut client = server.client();
    let value = vec![b'v'; 100_000];
    let mut number = 0;
    while !client.ask(&[b"SET", format!("key:{number}").as_bytes(), &value]).is_error("OOM") {
        number += 1;
    }
    let window = Duration::from_millis(300);
    until("the server rests", || {
        let before = server.cpu_time();
        clock::sleep(window);
        server.cpu_time() - before < window / 10
    });
}

#[test]
fn a_server_full_of_small_records_still_deletes_them_all() {
    let server = Process::alone(&[&["--memory", "32mb"], &MODEST[..]].concat());
    let mut client = server.client();
    let mut written = Vec::new();
    for batch in 0.. {
        let keys: Vec<String> = (0..500).map(|number| format!("key:{batch}:{number}")).collect();
        let set = |key: &String| ["SET", key, "v"].map(String::from).to_vec();
        let answers = client.ask_all(&keys.iter().map(set).collect::<Vec<_>>());
        let held = keys.into_iter().zip(&answers).filter(|(_, answer)| answer.text() == "OK");
        written.extend(held.map(|(key, _)| key));
        if answers.iter().any(|answer| answer.is_error("OOM")) {
            break;
        }
        assert!(batch < 4_000, "32 MiB do not hold so much");
    }
    for keys in written.chunks(500) {
        let del = |key: &String| ["DEL", key].map(String::from).to_vec();
        let answers = client.ask_all(&keys.iter().map(del).collect::<Vec<_>>());
        assert!(answers.iter().all(|answer| answer.0 == resp::Value::Integer(1)), "{answers:?}");
    }
    assert_eq!(client.ask(&["DBSIZE"]).number(), 0);
    until("memory is free", || !client.ask(&["SET", "key", "v"]).is_error("OOM"));
}

#[test]
fn strangers_on_the_bus_are_shown_the_door() {
    let coordinator = Process::coordinator();
    let server = Process::joined(&coordinator, &MODEST);
    let before = server.resident_bytes();
    for address in [coordinator.address, server.bus_address()] {
        let mut idle: Vec<Client> = (0..50).map(|_| Client::connect(address)).collect();
        for frame in [b"PING\r\n".repeat(20), vec![0; 64], vec![0xff; 64]] {
            let mut client = Client::connect(address);
            client.try_send(&frame);
            assert!(client.is_closed(), "{address} keeps {}", frame.escape_ascii());
        }
        for client in &mut idle {
            client.finish();
            assert!(client.is_closed(), "{address} keeps who has gone");
        }
    }
    server.assert_serves("strangers");
    assert!(server.resident_bytes() < before + BESIDE_BYTES);
}

#[test]
fn who_says_nothing_on_the_bus_is_sent_away() {
    let coordinator = Process::coordinator();
    let server = Process::joined(&coordinator, &MODEST);
    let mut silent: Vec<Client> = (0..300).map(|_| Client::connect(server.bus_address())).collect();
    // A header that announces more bytes than a handshake may have.
    let mut verbose = Client::connect(server.bus_address());
    verbose.try_send(&[&b"BLST"[..], &1000u32.to_le_bytes(), &[0; 8]].concat());
    for client in silent.iter_mut().chain([&mut verbose]) {
        assert!(client.is_closed(), "the server keeps it");
    }
    server.assert_serves("silent strangers");
}

/// Returns all ports: those for clients, the bus, and the coordinator.
fn ports(coordinator: &Process, server: &Process) -> [SocketAddr; 3] {
    [server.address, server.bus_address(), coordinator.address]
}
