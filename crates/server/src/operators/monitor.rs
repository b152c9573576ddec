//! `MONITOR`: every request as a line, for the connections that asked for it.
//!
//! While nobody watches, a request reads one word. While somebody does, each line is added to the
//! queue of every reactor that has a watcher, and leaves in that reactor's next turn.

use super::lock;
use crossbeam_utils::CachePadded;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{ReactorId, UnixMillis};

/// Lines that wait for a reactor, in bytes; what comes above is not shown.
const LINES_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
struct OfReactor {
    watchers: AtomicU64,
    lines: Mutex<Vec<u8>>,
}

/// The connections that watch requests, and the lines that wait for them.
#[derive(Debug)]
pub(crate) struct Monitors {
    watchers: AtomicU64,
    reactors: Box<[CachePadded<OfReactor>]>,
}

impl Monitors {
    pub(crate) fn new(reactors: u16) -> Monitors {
        let reactors = (0..reactors).map(|_| CachePadded::default()).collect();
        Monitors { watchers: AtomicU64::new(0), reactors }
    }

    /// Whether anybody watches.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// A connection of this reactor begins to watch.
    pub(crate) fn add(&self, reactor: ReactorId) {
        self.reactors[usize::from(reactor.0)].watchers.fetch_add(1, Ordering::Relaxed);
        self.watchers.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection that watched is gone.
    pub(crate) fn remove(&self, reactor: ReactorId) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
        self.reactors[usize::from(reactor.0)].watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Shows a line to all who watch.
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

    /// The lines for this reactor's watchers.
    pub(crate) fn take(&self, reactor: ReactorId) -> Vec<u8> {
        std::mem::take(&mut *lock(&self.reactors[usize::from(reactor.0)].lines))
    }
}

/// A request as a line. Passwords are not shown.
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
