//! The HTTP endpoint for Prometheus: one thread that answers `GET /metrics`, one client at a time.

use anyhow::Context;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Most bytes of a request. Prometheus sends shorter ones.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Time limit of a request with its answer, so that no client blocks the others for long.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a failure to accept a connection, for instance for lack of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Listens, unless the port is 0, and answers each scrape with the result of `page`.
pub(crate) fn start(
    address: SocketAddr,
    page: impl Fn() -> String + Send + 'static,
) -> anyhow::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address} for metrics"))?;
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        loop {
            let answered = match listener.accept() {
                Ok((stream, _)) => answer(&mut LimitedStream::new(stream, PATIENCE), &page),
                Err(error) => {
                    pause();
                    Err(error)
                }
            };
            if let Err(error) = answered {
                tracing::debug!(%error, "metrics request failed");
            }
        }
    })?;
    tracing::info!(%address, "metrics endpoint ready");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "nothing tells when there are descriptors again")]
fn pause() {
    std::thread::sleep(ACCEPT_AGAIN);
}

#[expect(clippy::disallowed_methods, reason = "the time limit of a blocking connection")]
fn now() -> Instant {
    Instant::now()
}

/// A stream whose reads and writes fail after a deadline.
struct LimitedStream {
    stream: TcpStream,
    deadline: Instant,
}

impl LimitedStream {
    fn new(stream: TcpStream, patience: Duration) -> LimitedStream {
        LimitedStream { stream, deadline: now() + patience }
    }

    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for LimitedStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(into)
    }
}

impl Write for LimitedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: &mut LimitedStream, page: &impl Fn() -> String) -> io::Result<()> {
    let mut lines = BufReader::new(Read::by_ref(stream).take(REQUEST_BYTES_MAX));
    let mut request = String::new();
    lines.read_line(&mut request)?;
    let mut header = String::from("x");
    while !header.trim_end().is_empty() {
        header.clear();
        lines.read_line(&mut header)?;
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, body) = match (method, path.split('?').next().unwrap_or_default()) {
        ("GET", "/metrics") => ("200 OK", page()),
        ("GET", "/") => ("200 OK", "Metrics are at /metrics\n".to_string()),
        ("GET", _) => ("404 Not Found", "Metrics are at /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "Only GET is supported\n".to_string()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns both ends of a connection.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_request_that_arrives_byte_by_byte_has_one_deadline() {
        let (mut client, server) = connected();
        let mut stream = LimitedStream::new(server, PATIENCE);
        client.write_all(b"GE").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.deadline = now();
        // The next byte has arrived, and each read alone would be in time.
        let late = answer(&mut stream, &|| unreachable!("the request is not complete"));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(stream.write(b"x").is_err(), "the answer has the same deadline");
    }

    #[test]
    fn a_request_is_answered_within_the_deadline() {
        let (mut client, server) = connected();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        answer(&mut LimitedStream::new(server, PATIENCE), &|| "page".to_owned()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\npage"), "{text}");
    }
}
