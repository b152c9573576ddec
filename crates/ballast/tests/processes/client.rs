//! A blocking client: one request at a time, or raw bytes.

use bench::clock;
use resp::{Received, ReplyLimits, ReplyParser, RequestWriter, Value};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// After so long a server hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something holds that others bring about.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = clock::now() + PATIENCE;
    while !holds() {
        assert!(clock::now() < deadline, "in vain: {what}");
        clock::sleep(Duration::from_millis(5));
    }
}

/// A reply as a tree, with the accessors that tests need. Each panics if the reply is another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer(pub(crate) Value);

impl Answer {
    /// A text, an error included.
    pub(crate) fn text(&self) -> String {
        match &self.0 {
            Value::Simple(text) | Value::Error(text) | Value::Bulk(text) => {
                String::from_utf8_lossy(text).into_owned()
            }
            Value::Verbatim { text, .. } => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{other:?} where a text belongs"),
        }
    }

    /// A number.
    pub(crate) fn number(&self) -> i64 {
        match &self.0 {
            Value::Integer(number) => *number,
            other => panic!("{other:?} where a number belongs"),
        }
    }

    /// The items of an array.
    pub(crate) fn items(&self) -> Vec<Answer> {
        match &self.0 {
            Value::Array(items) => items.iter().cloned().map(Answer).collect(),
            other => panic!("{other:?} where an array belongs"),
        }
    }

    /// Whether it is an error that begins like this.
    pub(crate) fn is_error(&self, beginning: &str) -> bool {
        matches!(&self.0, Value::Error(text) if text.starts_with(beginning.as_bytes()))
    }
}

/// One connection.
pub(crate) struct Client {
    /// The server.
    pub(crate) address: SocketAddr,
    stream: TcpStream,
    parser: ReplyParser,
    received: Vec<u8>,
}

impl Client {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::on(TcpStream::connect(address).expect("the server listens"), address)
    }

    /// Connects, if somebody listens there.
    pub(crate) fn try_connect(address: SocketAddr, patience: Duration) -> Option<Client> {
        let stream = TcpStream::connect_timeout(&address, patience).ok()?;
        Some(Client::on(stream, address))
    }

    fn on(stream: TcpStream, address: SocketAddr) -> Client {
        stream.set_nodelay(true).expect("a socket can be told not to wait");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a time limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket has a time limit");
        let parser = ReplyParser::new(ReplyLimits::default());
        Client { address, stream, parser, received: Vec::new() }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Answer {
        self.request(words);
        self.answer()
    }

    /// Sends a few requests at once and waits for all replies.
    pub(crate) fn ask_all(&mut self, requests: &[Vec<String>]) -> Vec<Answer> {
        let mut bytes = Vec::new();
        for request in requests {
            let words: Vec<&[u8]> = request.iter().map(|word| word.as_bytes()).collect();
            RequestWriter::write(&words, &mut bytes);
        }
        self.send(&bytes);
        requests.iter().map(|_| self.answer()).collect()
    }

    /// Sends a request.
    pub(crate) fn request<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        assert!(self.try_request(words), "the server reads");
    }

    /// Sends a request. `false`: the connection is broken.
    pub(crate) fn try_request<W: AsRef<[u8]>>(&mut self, words: &[W]) -> bool {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut request = Vec::new();
        RequestWriter::write(&words, &mut request);
        self.try_send(&request)
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends as much as the server takes. `false`: it has closed the connection meanwhile.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next reply.
    pub(crate) fn answer(&mut self) -> Answer {
        self.take(|reply, _| Answer(reply)).expect("the server answers")
    }

    /// The next reply. `None`: the connection is broken, or nothing has come for so long.
    pub(crate) fn answer_within(&mut self, patience: Duration) -> Option<Answer> {
        self.stream.set_read_timeout(Some(patience)).expect("a socket has a time limit");
        self.try_take(|reply, _| Answer(reply)).ok().flatten()
    }

    /// The next reply as bytes; `None`: the server has closed the connection.
    pub(crate) fn raw_answer(&mut self) -> Option<Vec<u8>> {
        self.take(|_, bytes| bytes.to_vec())
    }

    /// The next reply, and its bytes; `None`: the server has closed the connection.
    pub(crate) fn answer_and_bytes(&mut self) -> Option<(Value, Vec<u8>)> {
        self.take(|reply, bytes| (reply, bytes.to_vec()))
    }

    /// Whether the server closes the connection, after any number of replies.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = [0; 64 << 10];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    fn take<T>(&mut self, read: impl FnOnce(Value, &[u8]) -> T) -> Option<T> {
        match self.try_take(read) {
            Ok(taken) => taken,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{} does not answer: {error}", self.address),
        }
    }

    fn try_take<T>(
        &mut self,
        read: impl FnOnce(Value, &[u8]) -> T,
    ) -> Result<Option<T>, std::io::Error> {
        loop {
            let mut rest = &self.received[..];
            let found = self.parser.next(&mut rest).expect("a reply in Redis's protocol");
            let found = found.map(|Received { reply, .. }| Value::from(reply));
            let taken = self.received.len() - rest.len();
            if let Some(value) = found {
                let result = read(value, &self.received[..taken]);
                self.received.drain(..taken);
                return Ok(Some(result));
            }
            let mut bite = [0; 64 << 10];
            match self.stream.read(&mut bite)? {
                0 => return Ok(None),
                count => self.received.extend_from_slice(&bite[..count]),
            }
        }
    }
}
