//! Transports: the way from an address to a stream of bytes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A stream of bytes to a server.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A connection that is being made.
pub type Connecting<'t> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 't>>;

/// A way to connect to servers. An implementation with TLS wraps the stream of [`Tcp`] and checks
/// the server's name.
pub trait Transport: Send + Sync + 'static {
    /// Connects to an address, which is `host:port`. The client limits the time.
    fn connect<'t>(&'t self, address: &'t str) -> Connecting<'t>;
}

/// Connections over TCP without encryption.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn connect<'t>(&'t self, address: &'t str) -> Connecting<'t> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
