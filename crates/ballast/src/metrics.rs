//! The HTTP endpoint for Prometheus: one thread that answers `GET /metrics`, one client at a time.

use anyhow::Context;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Most bytes of a request. Prometheus sends shorter ones.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Time limit of a read or write, so that no client blocks the others for long.
const PATIENCE: Duration = Duration::from_secs(2);

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
        for stream in listener.incoming() {
            let answered = stream.and_then(|stream| answer(stream, &page));
            if let Err(error) = answered {
                tracing::debug!(%error, "metrics request failed");
            }
        }
    })?;
    tracing::info!(%address, "metrics endpoint ready");
    Ok(())
}

fn answer(mut stream: TcpStream, page: &impl Fn() -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new((&stream).take(REQUEST_BYTES_MAX));
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
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
