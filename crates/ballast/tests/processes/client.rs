//! A blocking client: one request at a time, or raw bytes.

use bench::clock;
use resp::{ReceivedReply, ReplyLimits, ReplyParser, RequestWriter, Value};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Time after which a server counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a condition holds that other processes establish.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(comes_true(holds), "in vain: {what}");
}

/// Waits for such a condition, and returns whether it holds in time.
pub(crate) fn comes_true(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = clock::now() + PATIENCE;
    while !holds() {
        if clock::now() >= deadline {
            return false;
        }
        clock::sleep(Duration::from_millis(5));
    }
    true
}

/// A reply as a tree, with accessors for tests. Each panics if the reply has another type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer(pub(crate) Value);

impl Answer {
    /// Returns the text of a string or error.
    pub(crate) fn text(&self) -> String {
        match &self.0 {
            Value::Simple(text) | Value::Error(text) | Value::Bulk(text) => {
                String::from_utf8_lossy(text).into_owned()
            }
            Value::Verbatim { text, .. } => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{other:?} where a text belongs"),
        }
    }

    /// Returns the number.
    pub(crate) fn number(&self) -> i64 {
        match &self.0 {
            Value::Integer(number) => *number,
            other => panic!("{other:?} where a number belongs"),
        }
    }

    /// Returns the items of an array.
    pub(crate) fn items(&self) -> Vec<Answer> {
        match &self.0 {
            Value::Array(items) => items.iter().cloned().map(Answer).collect(),
            other => panic!("{other:?} where an array belongs"),
        }
    }

    /// Returns whether the reply is an error with this beginning.
    pub(crate) fn is_error(&self, beginning: &str) -> bool {
        matches!(&self.0, Value::Error(text) if text.starts_with(beginning.as_bytes()))
    }

    /// Returns the server to which the reply redirects the client.
    pub(crate) fn redirection(&self) -> Option<SocketAddr> {
        let text = self.is_error("MOVED").then(|| self.text())?;
        let to = text.rsplit(' ').next().and_then(|to| to.parse().ok());
        Some(to.expect("a redirection names an address"))
    }

    /// Returns whether the request was not executed, but may be later.
    pub(crate) fn is_temporary(&self) -> bool {
        let temporary = ["TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "LOADING"];
        temporary.iter().any(|error| self.is_error(error))
    }
}

pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    stream: TcpStream,
    parser: ReplyParser,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::on(TcpStream::connect(address).expect("the server listens"), address)
    }

    /// Connects, if the address accepts connections.
    pub(crate) fn try_connect(address: SocketAddr, patience: Duration) -> Option<Client> {
        let stream = TcpStream::connect_timeout(&address, patience).ok()?;
        Some(Client::on(stream, address))
    }

    /// Returns the reply to a command on a new connection, unless there is none in time or it is an
    /// error.
    pub(crate) fn ask_once<W: AsRef<[u8]>>(
        address: SocketAddr,
        words: &[W],
        connect_max: Duration,
        answer_max: Duration,
    ) -> Option<Answer> {
        let mut client = Client::try_connect(address, connect_max)?;
        let is_sent = client.try_request(words);
        client.answer_within(answer_max).filter(|answer| is_sent && !answer.is_error(""))
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

    /// Sends pipelined requests and waits for all replies.
    pub(crate) fn ask_all(&mut self, requests: &[Vec<String>]) -> Vec<Answer> {
        let mut bytes = Vec::new();
        for request in requests {
            let words: Vec<&[u8]> = request.iter().map(|word| word.as_bytes()).collect();
            RequestWriter::write(&words, &mut bytes);
        }
        self.send(&bytes);
        requests.iter().map(|_| self.answer()).collect()
    }

    pub(crate) fn request<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        assert!(self.try_request(words), "the server reads");
    }

    /// Sends a request. Returns false if the connection is broken.
    pub(crate) fn try_request<W: AsRef<[u8]>>(&mut self, words: &[W]) -> bool {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut request = Vec::new();
        RequestWriter::write(&words, &mut request);
        self.try_send(&request)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends bytes. Returns false if the server has closed the connection meanwhile.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Closes the sending side of the connection.
    pub(crate) fn finish(&mut self) {
        // The connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.take(|reply, _| Answer(reply)).expect("the server answers")
    }

    /// Returns the next reply; `None` if the connection is broken or the time limit has passed.
    pub(crate) fn answer_within(&mut self, patience: Duration) -> Option<Answer> {
        self.stream.set_read_timeout(Some(patience)).expect("a socket has a time limit");
        self.try_take(|reply, _| Answer(reply)).ok().flatten()
    }

    /// Returns the next reply as bytes; `None` if the server has closed the connection.
    pub(crate) fn raw_answer(&mut self) -> Option<Vec<u8>> {
        self.take(|_, bytes| bytes.to_vec())
    }

    /// Returns the next reply and its bytes; `None` if the server has closed the connection.
    pub(crate) fn answer_and_bytes(&mut self) -> Option<(Value, Vec<u8>)> {
        self.take(|reply, bytes| (reply, bytes.to_vec()))
    }

    /// Returns whether the server closes the connection, after any number of replies.
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
            let found = found.map(|ReceivedReply { reply, .. }| Value::from(reply));
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
