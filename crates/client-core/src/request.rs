//! Requests, with the knowledge that routing and retries need.

use crate::core::ServerIndex;
use planted::Bug;
use resp::RequestWriter;
use types::{Slot, slot_of};

/// The server that a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRoute {
    /// The owner of this slot.
    Slot(Slot),
    /// Any server.
    Any,
    /// This server.
    At(ServerIndex),
}

/// The effect of executing a request twice. It decides whether the client may send a request again
/// whose first copy may have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatRule {
    /// None: the request only reads.
    Harmless,
    /// The second execution fails, because the first one has changed the version that the request
    /// requires. The reply is an array that begins with 0 if the condition did not hold.
    Conditional,
    /// A second execution may change data again.
    Never,
}

impl RepeatRule {
    /// Returns the rule of a write on condition of a version; 0: that the key does not exist. The
    /// absence of a key has no version of its own: if the key is removed between two executions,
    /// the condition holds again.
    pub fn of_version(version: u64) -> RepeatRule {
        match version {
            0 if !planted::is(Bug::AbsenceRepeated) => RepeatRule::Never,
            _ => RepeatRule::Conditional,
        }
    }
}

/// The end of each line of the protocol.
const LINE_END: &[u8] = b"\r\n";

/// A request in the form in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedRequest {
    pub(crate) bytes: Vec<u8>,
    pub(crate) route: RequestRoute,
    pub(crate) repeat: RepeatRule,
    /// Length of the key, if the request only reads the value of one key.
    value_key_bytes: Option<usize>,
}

impl PreparedRequest {
    /// Creates a request from its arguments, the first of which is the command's name.
    pub fn new(arguments: &[&[u8]], route: RequestRoute, repeat: RepeatRule) -> PreparedRequest {
        let length: usize = arguments.iter().map(|argument| argument.len() + 16).sum();
        let mut bytes = Vec::with_capacity(length + 16);
        RequestWriter::write(arguments, &mut bytes);
        PreparedRequest { bytes, route, repeat, value_key_bytes: None }
    }

    /// Creates a request about one key.
    pub fn of_key(key: &[u8], arguments: &[&[u8]], repeat: RepeatRule) -> PreparedRequest {
        PreparedRequest::new(arguments, RequestRoute::Slot(slot_of(key)), repeat)
    }

    /// Creates a request for the value of a key. While the key's slot moves, the client may ask both
    /// sides of the migration.
    pub fn value_of(key: &[u8]) -> PreparedRequest {
        let request = PreparedRequest::of_key(key, &[b"GET", key], RepeatRule::Harmless);
        PreparedRequest { value_key_bytes: Some(key.len()), ..request }
    }

    /// Returns the key, if the request only reads the value of one key.
    pub(crate) fn value_key(&self) -> Option<&[u8]> {
        let end = self.bytes.len().checked_sub(LINE_END.len())?;
        self.bytes.get(end.checked_sub(self.value_key_bytes?)?..end)
    }

    /// Returns the server that the request is sent to.
    pub fn route(&self) -> RequestRoute {
        self.route
    }

    /// Returns the length of the request as it is sent.
    pub fn encoded_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Any command, for `ballast_client::Client::command`.
///
/// ```
/// use ballast_client_core::Request;
/// let request = Request::new("GETRANGE").key("greeting").argument("0").argument("4").read_only();
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    arguments: Vec<Vec<u8>>,
    route: RequestRoute,
    repeat: RepeatRule,
}

impl Request {
    /// Begins a request with the command's name.
    pub fn new(name: &str) -> Request {
        let arguments = vec![name.as_bytes().to_vec()];
        Request { arguments, route: RequestRoute::Any, repeat: RepeatRule::Never }
    }

    /// Adds a key. The first one decides which server gets the request. In a cluster, all keys of a
    /// command must be of one slot.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Request {
        let key = key.as_ref();
        if self.route == RequestRoute::Any {
            self.route = RequestRoute::Slot(slot_of(key));
        }
        self.argument(key)
    }

    /// Adds an argument that is not a key.
    pub fn argument(mut self, argument: impl AsRef<[u8]>) -> Request {
        self.arguments.push(argument.as_ref().to_vec());
        self
    }

    /// Declares that the command changes nothing, so that the client may repeat it after it has lost
    /// the connection.
    pub fn read_only(mut self) -> Request {
        self.repeat = RepeatRule::Harmless;
        self
    }

    /// Returns whether the command would change the state of a connection that others use, or make the
    /// requests behind it wait.
    pub fn is_stateful(&self) -> bool {
        let words = |at: usize| self.arguments.get(at).map(|word| word.to_ascii_uppercase());
        let (name, argument) = (words(0).unwrap_or_default(), words(1).unwrap_or_default());
        match &name[..] {
            b"CLIENT" => argument == b"REPLY" || argument == b"TRACKING",
            b"XREAD" | b"XREADGROUP" => {
                let words = self.arguments.iter().map(|word| word.to_ascii_uppercase());
                words.take_while(|word| word != b"STREAMS").any(|word| word == b"BLOCK")
            }
            name => STATEFUL.contains(&name),
        }
    }

    /// Returns the request as it is sent, to this server if there is one.
    pub fn prepare(&self, at: Option<ServerIndex>) -> PreparedRequest {
        let arguments: Vec<&[u8]> = self.arguments.iter().map(Vec::as_slice).collect();
        let route = at.map_or(self.route, RequestRoute::At);
        PreparedRequest::new(&arguments, route, self.repeat)
    }
}

/// Commands that change the state of their connection, or its order of replies, or that wait: a server
/// executes nothing behind them on their connection.
const STATEFUL: [&[u8]; 30] = [
    b"AUTH",
    b"BLMOVE",
    b"BLMPOP",
    b"BLPOP",
    b"BRPOP",
    b"BRPOPLPUSH",
    b"BZMPOP",
    b"BZPOPMAX",
    b"BZPOPMIN",
    b"DISCARD",
    b"EXEC",
    b"HELLO",
    b"MONITOR",
    b"MULTI",
    b"PSUBSCRIBE",
    b"PSYNC",
    b"PUNSUBSCRIBE",
    b"QUIT",
    b"READONLY",
    b"READWRITE",
    b"RESET",
    b"SELECT",
    b"SSUBSCRIBE",
    b"SUBSCRIBE",
    b"SYNC",
    b"UNSUBSCRIBE",
    b"UNWATCH",
    b"WAIT",
    b"WAITAOF",
    b"WATCH",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_would_make_others_wait_are_known() {
        let request = |words: &[&str]| {
            words[1..].iter().fold(Request::new(words[0]), |it, word| it.argument(*word))
        };
        for words in [
            &["BLPOP", "q", "0"][..],
            &["bzmpop", "0", "1", "z", "MIN"],
            &["WAIT", "1", "0"],
            &["XREAD", "COUNT", "1", "block", "0", "STREAMS", "s", "$"],
            &["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"],
        ] {
            assert!(request(words).is_stateful(), "{words:?}");
        }
        for words in [&["LPOP", "q"][..], &["XREAD", "STREAMS", "block", "0"], &["GET", "block"]] {
            assert!(!request(words).is_stateful(), "{words:?}");
        }
    }

    #[test]
    fn the_first_key_decides_the_route() {
        let request = Request::new("MGET").key("{a}1").key("{a}2");
        assert_eq!(request.route, RequestRoute::Slot(slot_of(b"a")));
        assert_eq!(
            request.prepare(None).bytes,
            b"*3\r\n$4\r\nMGET\r\n$4\r\n{a}1\r\n$4\r\n{a}2\r\n"
        );
        assert_eq!(Request::new("PING").prepare(None).route, RequestRoute::Any);
    }

    #[test]
    fn a_request_for_a_value_knows_its_key() {
        for key in [&b"k"[..], b"", b"a\r\nb"] {
            let request = PreparedRequest::value_of(key);
            assert_eq!(request.value_key(), Some(key));
            assert_eq!(request.route(), RequestRoute::Slot(slot_of(key)));
        }
        let other = PreparedRequest::of_key(b"k", &[b"TTL", b"k"], RepeatRule::Harmless);
        assert_eq!(other.value_key(), None);
    }

    #[test]
    fn commands_that_change_a_connection_are_known() {
        for (name, argument, is_stateful) in [
            ("multi", None, true),
            ("Select", Some("1"), true),
            ("CLIENT", Some("reply"), true),
            ("CLIENT", Some("LIST"), false),
            ("GET", Some("k"), false),
        ] {
            let request = Request::new(name);
            let request = match argument {
                Some(argument) => request.argument(argument),
                None => request,
            };
            assert_eq!(request.is_stateful(), is_stateful, "{name} {argument:?}");
        }
    }
}
