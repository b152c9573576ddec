//! The client over connections in memory, with a server that the test plays. The clock of the
//! runtime stands still unless all tasks wait, so time limits pass at once.

use ballast_client::{
    ByteStream, Client, ClientError, ClientOptions, Connecting, FailureCause, Transport, Value,
};
use resp::{ReplyLimits, ReplyParser};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longer than any time limit of a client.
const LONG: Duration = Duration::from_secs(60);

/// Connections in memory. The other ends go to the test.
struct InMemory {
    accepted: mpsc::UnboundedSender<DuplexStream>,
    buffer_bytes: usize,
}

impl Transport for InMemory {
    fn connect<'t>(&'t self, _: &'t str) -> Connecting<'t> {
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(self.buffer_bytes);
            self.accepted.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }
}

/// The server's end of a connection.
struct Played {
    stream: DuplexStream,
    parser: ReplyParser,
    received: Vec<u8>,
}

impl Played {
    /// Returns the next request in words; `None` when the client has closed the connection.
    async fn request(&mut self) -> Option<Vec<String>> {
        loop {
            let mut rest = &self.received[..];
            // A request has the form of a reply that is an array of strings.
            let found = self.parser.next(&mut rest).expect("clients send requests");
            let found = found.map(|received| Value::from(received.reply));
            let taken = self.received.len() - rest.len();
            if let Some(Value::Array(words)) = found {
                self.received.drain(..taken);
                let words = words.into_iter().map(|word| match word {
                    Value::Bulk(word) => String::from_utf8_lossy(&word).into_owned(),
                    other => panic!("{other:?} is no argument"),
                });
                return Some(words.collect());
            }
            if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    async fn line(&mut self) -> String {
        self.request().await.expect("the client sends a request").join(" ")
    }

    async fn reply(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.expect("the client reads");
    }

    /// Answers the login and the request for the map.
    async fn log_in(&mut self) {
        assert_eq!(self.line().await, "HELLO 3");
        self.reply("%0\r\n").await;
    }

    /// Answers every request until the connection ends: `GET` with its key.
    async fn serve(mut self) {
        while let Some(words) = self.request().await {
            match words[0].as_str() {
                "HELLO" => self.reply("%0\r\n").await,
                "PING" => self.reply("+PONG\r\n").await,
                "GET" => self.reply(&format!("${}\r\n{}\r\n", words[1].len(), words[1])).await,
                "SET" => self.reply("+OK\r\n").await,
                _ => self.reply("-ERR unknown command\r\n").await,
            }
        }
    }
}

/// The servers of a client: connections in the order in which it has opened them.
struct Servers(mpsc::UnboundedReceiver<DuplexStream>);

impl Servers {
    async fn accept(&mut self) -> Played {
        let stream = self.0.recv().await.expect("the client connects");
        let parser = ReplyParser::new(ReplyLimits::default());
        Played { stream, parser, received: Vec::new() }
    }
}

/// Returns a connected client, and the server's end of its connection.
async fn connected(options: ClientOptions) -> (Client, Played, Servers) {
    connected_through(options, 64 << 10).await
}

async fn connected_through(options: ClientOptions, bytes: usize) -> (Client, Played, Servers) {
    let (accepted, streams) = mpsc::unbounded_channel();
    let mut servers = Servers(streams);
    let transport = InMemory { accepted, buffer_bytes: bytes };
    let played = async {
        let mut played = servers.accept().await;
        played.log_in().await;
        assert_eq!(played.line().await, "BALLAST.MAP");
        played.reply("-ERR unknown command\r\n").await;
        assert_eq!(played.line().await, "PING");
        played.reply("+PONG\r\n").await;
        played
    };
    let client = Client::connect_over(&["server:1"], options, transport);
    let (client, played) = tokio::join!(client, played);
    (client.expect("the server accepts the client"), played, servers)
}

#[tokio::test(start_paused = true)]
async fn every_task_gets_its_own_reply() {
    let (client, played, _servers) = connected(ClientOptions::default()).await;
    tokio::spawn(played.serve());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200 {
        let client = client.clone();
        tasks.spawn(async move {
            for round in 0..20 {
                let key = format!("{number}:{round}");
                assert_eq!(client.get(&key).await, Ok(Some(key.into_bytes())));
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("every task gets its replies");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_makes_callers_wait() {
    let options = ClientOptions { queue_bytes_max: 4 * 256, ..ClientOptions::default() };
    let (client, mut played, _servers) = connected(options).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..6 {
        let client = client.clone();
        tasks.spawn(async move { client.get(format!("k{number}")).await });
    }
    for _ in 0..4 {
        played.line().await;
    }
    assert!(timeout(Duration::from_secs(1), played.line()).await.is_err(), "a fifth request");
    played.reply("_\r\n_\r\n").await;
    played.line().await;
    played.line().await;
    played.reply("_\r\n_\r\n_\r\n_\r\n").await;
    while let Some(ended) = tasks.join_next().await {
        assert_eq!(ended.expect("no task panics"), Ok(None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_for_the_queue_has_a_deadline() {
    let options =
        ClientOptions { queue_bytes_max: 256, silence_max: LONG, ..ClientOptions::default() };
    let (client, mut played, _servers) = connected(options).await;
    let (first, second) = tokio::join!(client.increment("k"), client.increment("k"));
    assert_eq!(first, Err(ClientError::MaybeExecuted(FailureCause::Deadline)));
    assert_eq!(second, Err(ClientError::NotExecuted(FailureCause::Deadline)));
    assert_eq!(played.line().await, "INCRBY k 1");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_gives_its_place_back_and_its_reply_goes_to_nobody() {
    let options = ClientOptions { queue_bytes_max: 256, ..ClientOptions::default() };
    let (client, mut played, _servers) = connected(options).await;
    {
        let call = client.get("gone");
        tokio::select! {
            biased;
            outcome = call => panic!("nobody has answered: {outcome:?}"),
            line = played.line() => assert_eq!(line, "GET gone"),
        }
    }
    let answer = async {
        assert_eq!(played.line().await, "GET next");
        played.reply("$4\r\ngone\r\n$4\r\nnext\r\n").await;
    };
    let (outcome, ()) = tokio::join!(client.get("next"), answer);
    assert_eq!(outcome, Ok(Some(b"next".to_vec())));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_before_it_was_sent_is_not_sent() {
    let (client, played, mut servers) = connected(ClientOptions::default()).await;
    drop(played);
    let reader = tokio::spawn({
        let client = client.clone();
        async move { client.get("k").await }
    });
    // The new connection has not logged in, so requests wait.
    let mut played = servers.accept().await;
    assert!(timeout(Duration::from_millis(1), client.increment("k")).await.is_err());
    played.log_in().await;
    let mut line = played.line().await;
    if line == "BALLAST.MAP" {
        played.reply("-ERR unknown command\r\n").await;
        line = played.line().await;
    }
    assert_eq!(line, "GET k");
    played.reply("_\r\n").await;
    assert_eq!(reader.await.expect("no task panics"), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn after_a_broken_connection_reads_are_repeated_and_increments_are_not() {
    let (client, mut played, mut servers) = connected(ClientOptions::default()).await;
    let answer = async {
        let lines = [played.line().await, played.line().await];
        assert_eq!(lines, ["GET k", "INCRBY k 1"]);
        drop(played);
        servers.accept().await.serve().await;
    };
    let calls = async { tokio::join!(client.get("k"), client.increment("k")) };
    tokio::select! {
        () = answer => panic!("the client does not disconnect"),
        (read, increment) = calls => {
            assert_eq!(read, Ok(Some(b"k".to_vec())));
            let lost = ClientError::MaybeExecuted(FailureCause::ConnectionLost);
            assert_eq!(increment, Err(lost));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn large_values_pass_small_buffers_in_both_directions() {
    let (client, played, _servers) = connected_through(ClientOptions::default(), 1 << 10).await;
    tokio::spawn(played.serve());
    let keys: Vec<String> = (0..8).map(|number| format!("{number}").repeat(60_000)).collect();
    let calls: Vec<_> = keys
        .iter()
        .map(|key| {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move { client.get(key).await })
        })
        .collect();
    for (call, key) in calls.into_iter().zip(&keys) {
        assert_eq!(call.await.expect("no task panics"), Ok(Some(key.clone().into_bytes())));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_above_the_limit_ends_the_connection() {
    let options = ClientOptions { reply_bytes_max: 1 << 10, ..ClientOptions::default() };
    let (client, mut played, _servers) = connected(options).await;
    let answer = async {
        played.line().await;
        played.reply("$2000\r\n").await;
        assert_eq!(played.request().await, None, "the client closes the connection");
    };
    let (outcome, ()) = tokio::join!(client.increment("k"), answer);
    assert_eq!(outcome, Err(ClientError::MaybeExecuted(FailureCause::ConnectionLost)));
}

#[tokio::test(start_paused = true)]
async fn the_last_clone_closes_the_connections() {
    let (client, mut played, _servers) = connected(ClientOptions::default()).await;
    let clone = client.clone();
    drop(client);
    assert!(timeout(LONG, played.request()).await.is_err(), "one clone is left");
    drop(clone);
    assert_eq!(timeout(LONG, played.request()).await, Ok(None));
}
