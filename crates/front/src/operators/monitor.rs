//! `MONITOR`: every request as a line, for the connections in `MONITOR` mode.
//!
//! Without such connections, a request only reads one word. Otherwise each line is added to the
//! queue of every reactor with such a connection, and is sent in that reactor's next turn.

use super::lock;
use crossbeam_utils::CachePadded;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{ReactorId, UnixMillis};

/// Most bytes of lines queued for a reactor. Further lines are dropped.
const LINES_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
struct ReactorMonitors {
    watchers: AtomicU64,
    lines: Mutex<Vec<u8>>,
}

/// The connections in `MONITOR` mode, and the lines queued for them.
pub(crate) struct Monitors {
    watchers: AtomicU64,
    reactors: Box<[CachePadded<ReactorMonitors>]>,
}

impl Monitors {
    pub(crate) fn new(reactors: u16) -> Monitors {
        let reactors = (0..reactors).map(|_| CachePadded::default()).collect();
        Monitors { watchers: AtomicU64::new(0), reactors }
    }

    /// Returns whether any connection is in `MONITOR` mode.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// Counts a connection of this reactor that has entered `MONITOR` mode.
    pub(crate) fn add(&self, reactor: ReactorId) {
        self.reactors[usize::from(reactor.0)].watchers.fetch_add(1, Ordering::Relaxed);
        self.watchers.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a connection of this reactor from the count.
    pub(crate) fn remove(&self, reactor: ReactorId) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
        self.reactors[usize::from(reactor.0)].watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Queues a line for all connections in `MONITOR` mode.
    pub(crate) fn show(&self, line: &[u8]) {
        for reactor in &self.reactors {
            if reactor.watchers.load(Ordering::Relaxed) > 0 {
                let mut lines = lock(&reactor.lines);
                if lines.len() + line.len() <= LINES_BYTES_MAX {
                    lines.extend_from_slice(line);
                }
            }
        }
    }

    /// Takes the lines for this reactor's connections.
    pub(crate) fn take(&self, reactor: ReactorId) -> Vec<u8> {
        std::mem::take(&mut *lock(&self.reactors[usize::from(reactor.0)].lines))
    }
}

/// Formats a request as a line. The caller has redacted passwords.
pub(crate) fn line(wall: UnixMillis, table: u8, peer: &str, args: &[&[u8]]) -> Vec<u8> {
    let (seconds, micros) = (wall.0 / 1000, wall.0 % 1000 * 1000);
    let mut line = format!("+{seconds}.{micros:06} [{table} {peer}]").into_bytes();
    for argument in args {
        line.extend_from_slice(b" \"");
        for &byte in *argument {
            match byte {
                b'"' | b'\\' => line.extend_from_slice(&[b'\\', byte]),
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                b'\t' => line.extend_from_slice(b"\\t"),
                0x07 => line.extend_from_slice(b"\\a"),
                0x08 => line.extend_from_slice(b"\\b"),
                b' '..=b'~' => line.push(byte),
                other => line.extend_from_slice(format!("\\x{other:02x}").as_bytes()),
            }
        }
        line.push(b'"');
    }
    line.extend_from_slice(b"\r\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_arguments_as_redis_does() {
        let line = line(UnixMillis(1_234_567), 3, "1.2.3.4:5", &[b"SET", b"a\"b", b"\x01\r\n"]);
        let wanted = b"+1234.567000 [3 1.2.3.4:5] \"SET\" \"a\\\"b\" \"\\x01\\r\\n\"\r\n";
        assert_eq!(line, wanted);
    }

    #[test]
    fn lines_reach_the_reactors_that_have_watchers() {
        let monitors = Monitors::new(2);
        monitors.add(ReactorId(1));
        monitors.show(b"x");
        assert_eq!(monitors.take(ReactorId(0)), b"");
        assert_eq!(monitors.take(ReactorId(1)), b"x");
        monitors.remove(ReactorId(1));
        assert!(!monitors.is_watched());
    }
}
