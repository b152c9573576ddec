//! A server whose longest packed values are so short that most values have pages, and its client.

use super::*;
use settings::Setting;
use types::TableId;

/// A server with one client.
pub(super) struct PagedValues {
    pub(super) world: World,
    pub(super) client: Asking,
    /// Set while a transaction is queued around each command.
    pub(super) in_transactions: bool,
}

impl PagedValues {
    /// Starts a server with this setting of `max-packed-bytes`.
    pub(super) fn new(packed_bytes: &str) -> PagedValues {
        let mut configuration = ServerConfiguration::default();
        let setting = Setting::find("max-packed-bytes").expect("a setting");
        setting.set(&mut configuration, packed_bytes).expect("a valid value");
        let mut world = World::new(configuration);
        let client = world.connect(1, 0, HERE);
        PagedValues { world, client, in_transactions: false }
    }

    fn ask_once(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
        self.client.input.extend_from_slice(request.as_bytes());
        let reply = self.world.go_on(&mut self.client);
        assert!(!reply.is_empty(), "no answer to {line}");
        reply
    }

    /// Returns the reply to a command of words that may be empty.
    pub(super) fn ask(&mut self, line: &str) -> String {
        if !self.in_transactions {
            return self.ask_once(line);
        }
        self.ask_once("MULTI");
        assert_eq!(self.ask_once(line), "+QUEUED\r\n");
        let replies = self.ask_once("EXEC");
        replies.strip_prefix("*1\r\n").unwrap_or_else(|| panic!("{line}: {replies}")).to_owned()
    }

    /// Sends a request of these words as they are, and returns the reply.
    pub(super) fn ask_bytes(&mut self, words: &[&[u8]]) -> Vec<u8> {
        resp::RequestWriter::write(words, &mut self.client.input);
        self.world.go_on_bytes(&mut self.client)
    }

    /// Returns the dump of a value.
    pub(super) fn dump(&mut self, key: &str) -> Vec<u8> {
        let reply = self.ask_bytes(&[b"DUMP", key.as_bytes()]);
        let start = reply.iter().position(|byte| *byte == b'\n').expect("a bulk string") + 1;
        reply[start..reply.len() - 2].to_vec()
    }

    /// Restores a value, and returns the reply.
    pub(super) fn restore(&mut self, key: &str, dump: &[u8], words: &[&str]) -> String {
        let mut request: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), b"0", dump];
        request.extend(words.iter().map(|word| word.as_bytes()));
        String::from_utf8(self.ask_bytes(&request)).expect("a text")
    }

    /// Returns the number of an integer reply.
    pub(super) fn number(&mut self, line: &str) -> i64 {
        let reply = self.ask(line);
        let number = reply.strip_prefix(':').and_then(|number| number.trim().parse().ok());
        number.unwrap_or_else(|| panic!("{line}: {reply}"))
    }

    /// Returns the strings of a reply; of nested arrays, all together.
    pub(super) fn strings(&mut self, line: &str) -> Vec<String> {
        let reply = self.ask(line);
        assert!(reply.starts_with(['*', '$', '_']), "{line}: {reply}");
        let lines: Vec<&str> = reply.split("\r\n").collect();
        let lengths =
            lines.iter().enumerate().filter(|(_, line)| line.starts_with('$') && **line != "$-1");
        lengths.map(|(at, _)| lines[at + 1].to_owned()).collect()
    }

    /// Returns the number of pages, those without a root included.
    pub(super) fn pages(&self) -> u64 {
        self.world.cores[0].backend.table_records(TableId::PAGES)
    }

    /// Lets the server run for so many turns, a millisecond apart.
    pub(super) fn run(&mut self, turns: usize) {
        for _ in 0..turns {
            self.world.turn();
            self.world.now = self.world.now + Duration::from_millis(1);
        }
    }

    /// Lets the server run until pages without a root are removed.
    pub(super) fn sweep(&mut self, until_pages: u64) {
        let begun = self.world.now;
        while self.pages() > until_pages {
            self.run(1);
            assert!(self.world.now.since(begun) < Duration::from_secs(60), "{}", self.pages());
        }
    }
}
