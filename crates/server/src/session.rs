//! What a connection is between two of its requests.

use resp::Protocol;
use types::TableId;

/// State that commands of one connection share.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Number of the connection on this server, never used twice.
    pub(crate) id: u64,
    /// The peer's address, for people.
    pub(crate) peer: String,
    /// The table that its commands work on.
    pub(crate) table: TableId,
    /// How replies are written.
    pub(crate) protocol: Protocol,
    /// Set by `CLIENT SETNAME`; empty: none.
    pub(crate) name: Vec<u8>,
    /// Set by `CLIENT SETINFO LIB-NAME`.
    pub(crate) library_name: Vec<u8>,
    /// Set by `CLIENT SETINFO LIB-VER`.
    pub(crate) library_version: Vec<u8>,
    /// Set by `QUIT`: the connection closes once everything has been sent.
    pub(crate) closing: bool,
}

impl Session {
    /// A connection that has just been opened.
    pub(crate) fn new(id: u64, peer: String) -> Session {
        Session {
            id,
            peer,
            table: TableId(0),
            protocol: Protocol::Resp2,
            name: Vec::new(),
            library_name: Vec::new(),
            library_version: Vec::new(),
            closing: false,
        }
    }

    /// The line that `CLIENT INFO` shows.
    pub(crate) fn describe(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "id={} addr={} name={} db={} resp={} lib-name={} lib-ver={}\n",
            self.id,
            self.peer,
            text(&self.name),
            self.table.0,
            if self.protocol == Protocol::Resp3 { 3 } else { 2 },
            text(&self.library_name),
            text(&self.library_version),
        )
    }
}
