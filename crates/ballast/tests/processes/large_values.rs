//! Large values: cut anywhere, from many slow clients, given up half-way, and afterwards.

use crate::client::{Answer, Client, until};
use crate::servers::{MODEST, Process};
use resp::Value;
use types::limits::VALUE_BYTES_MAX;

/// Memory of a test server beside that for records: code, stacks, buffers.
const BESIDE_BYTES: u64 = 96 << 20;
/// One read of an ordinary buffer.
const BITE_BYTES: usize = 20 << 10;
/// Length from which a message gets a buffer of its own in advance.
const LARGE_BYTES: usize = 3 * BITE_BYTES;
/// Length from which a value is copied piece by piece.
const PIECEWISE_BYTES: usize = 32 << 10;

const DRIVERS: [&str; 2] = ["epoll", "uring"];

fn server(driver: &str, memory: &str) -> Process {
    Process::alone(&[&["--driver", driver, "--memory", memory], &MODEST[..]].concat())
}

/// Returns a value in which each part is different.
fn value(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

fn is_bulk(answer: &Answer, expected: &[u8]) -> bool {
    matches!(&answer.0, Value::Bulk(bytes) if bytes[..] == *expected)
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn a_large_value_is_stored_whole_wherever_its_request_is_cut() {
    for driver in DRIVERS {
        let server = server(driver, "256mb");
        let (mut client, mut other) = (server.client(), server.client());
        let thresholds = [PIECEWISE_BYTES, BITE_BYTES, LARGE_BYTES, 256 << 10, VALUE_BYTES_MAX - 1];
        for length in thresholds.into_iter().flat_map(|at| [at - 1, at, at + 1]) {
            let value = value(length, length as u64);
            let request = set("key", &value);
            let end = request.len();
            // In the lengths, in the line ends, and at the ends of buffers.
            let cuts = [1, 5, 21, 30, BITE_BYTES, LARGE_BYTES, end - value.len(), end - 2, end - 1];
            for cut in cuts.into_iter().filter(|cut| *cut < end) {
                assert_eq!(other.ask(&["DEL", "key"]).number(), i64::from(cut > 1));
                client.send(&request[..cut]);
                // When it has answered another client, the server has received the first part.
                assert_eq!(other.ask(&["EXISTS", "key"]).number(), 0);
                client.send(&request[cut..]);
                assert_eq!(client.answer().text(), "OK", "{driver}: {length} cut at {cut}");
                let stored = other.ask(&["GET", "key"]);
                assert!(is_bulk(&stored, &value), "{driver}: {length} cut at {cut}");
            }
            other.ask(&["DEL", "key"]);
        }
    }
}

#[test]
fn large_and_small_requests_in_a_pipeline_are_answered_in_order() {
    for driver in DRIVERS {
        let server = server(driver, "256mb");
        let mut client = server.client();
        let large = value(500_000, 7);
        for _ in 0..5 {
            let batch = [set("a", &large), set("b", b"small"), set("c", &large[1..])].concat();
            client.send(&[&batch[..], b"GET b\r\nSTRLEN a\r\nSTRLEN c\r\n"].concat());
            for expected in ["OK", "OK", "OK", "small"] {
                assert_eq!(client.answer().text(), expected, "{driver}");
            }
            assert_eq!(client.answer().number(), 500_000, "{driver}");
            assert_eq!(client.answer().number(), 499_999, "{driver}");
        }
    }
}

/// Sends the beginning of a request that announces a large value.
fn announce(client: &mut Client, sent: usize) {
    client.send(&set("unfinished", &vec![b'v'; VALUE_BYTES_MAX])[..sent]);
}

#[test]
fn clients_that_announce_large_values_and_send_little_hold_little_memory() {
    for driver in DRIVERS {
        let server = server(driver, "64mb");
        let large = value(1 << 20, 3);
        let mut clients: Vec<Client> = (0..300).map(|_| server.client()).collect();
        // From each of them, another large message is expected.
        for client in &mut clients {
            client.send(&set("key", &large));
            assert_eq!(client.answer().text(), "OK");
        }
        for (number, client) in clients.iter_mut().enumerate() {
            announce(client, [100, 3_000, BITE_BYTES + 1][number % 3]);
        }
        for _ in 0..100 {
            server.assert_serves("announced values");
        }
        let held = server.resident_bytes();
        assert!(held < (64 << 20) + BESIDE_BYTES, "{driver}: {held} bytes are held");
    }
}

#[test]
fn a_client_that_disconnects_within_a_value_changes_nothing_and_its_memory_is_free() {
    for driver in DRIVERS {
        let server = server(driver, "64mb");
        let mut observer = server.client();
        let large = value(2 << 20, 5);
        for round in 0..100 {
            let mut client = server.client();
            client.send(&set("key", &large));
            assert_eq!(client.answer().text(), "OK");
            announce(&mut client, 1 + round * VALUE_BYTES_MAX / 100);
        }
        until("the clients are gone", || {
            observer.ask(&["CLIENT", "LIST"]).text().lines().count() == 1
        });
        assert_eq!(observer.ask(&["EXISTS", "unfinished"]).number(), 0, "{driver}");
        assert!(is_bulk(&observer.ask(&["GET", "key"]), &large), "{driver}");
        let held = server.resident_bytes();
        assert!(held < (64 << 20) + BESIDE_BYTES, "{driver}: {held} bytes are held");
    }
}
