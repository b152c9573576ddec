//! The client, and the commands that it has methods for.

use crate::driver::ClientHandle;
use crate::scan::{KeyScanOptions, Scan};
use crate::transport::{Tcp, Transport};
use crate::values::{self, TimeToLive, Versioned, WriteOutcome};
use client_core::{
    ClientError, ClientOptions, FailureCause, PreparedRequest, RepeatRule, Request, RequestOutcome,
    RequestRoute,
};
use resp::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use types::{Slot, slot_of};

/// A client of one server or of a cluster.
///
/// Clones share the connections. Any number of tasks may use them at the same time: their requests
/// go out in pipelines. When too many are unanswered, further ones wait.
///
/// Every method ends by [`ClientOptions::deadline`]. Errors say whether a request can have had an
/// effect: see [`ClientError`].
#[derive(Clone)]
pub struct Client {
    handle: Arc<ClientHandle>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server, or to a cluster that one of these servers (`host:port`) belongs to.
    /// Returns when one of them has accepted the client. Must be called within a `tokio` runtime,
    /// whose tasks then serve the connections.
    pub async fn connect(
        seeds: &[impl AsRef<str>],
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        Client::connect_over(seeds, options, Tcp).await
    }

    /// Does the same as [`Client::connect`] with connections of this transport.
    pub async fn connect_over(
        seeds: &[impl AsRef<str>],
        options: ClientOptions,
        transport: impl Transport,
    ) -> Result<Client, ClientError> {
        if seeds.is_empty() {
            return Err(ClientError::NotExecuted(FailureCause::Unreachable));
        }
        let seeds: Vec<String> = seeds.iter().map(|seed| seed.as_ref().to_owned()).collect();
        let client = Client { handle: ClientHandle::start(&seeds, options, Box::new(transport)) };
        client.command(Request::new("PING").read_only()).await?;
        Ok(client)
    }

    /// Returns the value of a key. While its slot moves, the key may be read at both servers: see
    /// [`ClientOptions::two_sided_reads`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, ClientError> {
        let request = PreparedRequest::value_of(key.as_ref());
        values::optional_bytes(self.handle.submit(request).await?.outcome().await?)
    }

    /// Sets the value of a key, without a time to live.
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), ClientError> {
        let key = key.as_ref();
        values::done(self.write(key, &[b"SET", key, value.as_ref()]).await?)
    }

    /// Sets the value of a key, which expires after `life`, in whole milliseconds.
    pub async fn set_for(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        life: Duration,
    ) -> Result<(), ClientError> {
        let (key, life) = (key.as_ref(), life.as_millis().to_string());
        values::done(self.write(key, &[b"SET", key, value.as_ref(), b"PX", life.as_bytes()]).await?)
    }

    /// Removes a key. Returns whether it existed.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, ClientError> {
        let key = key.as_ref();
        values::flag(self.write(key, &[b"DEL", key]).await?)
    }

    /// Returns whether a key exists.
    pub async fn exists(&self, key: impl AsRef<[u8]>) -> Result<bool, ClientError> {
        let key = key.as_ref();
        values::flag(self.read(key, &[b"EXISTS", key]).await?)
    }

    /// Adds one to a number, and returns the sum.
    pub async fn increment(&self, key: impl AsRef<[u8]>) -> Result<i64, ClientError> {
        self.increment_by(key, 1).await
    }

    /// Subtracts one from a number, and returns the difference.
    pub async fn decrement(&self, key: impl AsRef<[u8]>) -> Result<i64, ClientError> {
        self.increment_by(key, -1).await
    }

    /// Adds to a number, and returns the sum.
    pub async fn increment_by(
        &self,
        key: impl AsRef<[u8]>,
        number: i64,
    ) -> Result<i64, ClientError> {
        let (key, number) = (key.as_ref(), number.to_string());
        values::integer(self.write(key, &[b"INCRBY", key, number.as_bytes()]).await?)
    }

    /// Appends to a value, and returns its new length.
    pub async fn append(
        &self,
        key: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<u64, ClientError> {
        let key = key.as_ref();
        values::count(self.write(key, &[b"APPEND", key, bytes.as_ref()]).await?)
    }

    /// Sets the time to live of a key, in whole milliseconds. Returns whether the key exists.
    pub async fn expire(&self, key: impl AsRef<[u8]>, life: Duration) -> Result<bool, ClientError> {
        let (key, life) = (key.as_ref(), life.as_millis().to_string());
        values::flag(self.write(key, &[b"PEXPIRE", key, life.as_bytes()]).await?)
    }

    /// Returns the time to live of a key.
    pub async fn time_to_live(&self, key: impl AsRef<[u8]>) -> Result<TimeToLive, ClientError> {
        let key = key.as_ref();
        values::time_to_live(self.read(key, &[b"PTTL", key]).await?)
    }

    /// Returns the value of a key and its version.
    pub async fn get_versioned(&self, key: impl AsRef<[u8]>) -> Result<Versioned, ClientError> {
        let key = key.as_ref();
        values::versioned(self.read(key, &[b"BALLAST.GET", key]).await?)
    }

    /// Sets the value of a key, and returns the version of the new record.
    pub async fn set_versioned(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<u64, ClientError> {
        let key = key.as_ref();
        let request = [b"BALLAST.SET", key, value.as_ref()];
        let outcome = values::write_outcome(self.write(key, &request).await?)?;
        match outcome {
            WriteOutcome::Written { version } => Ok(version),
            WriteOutcome::Conflict { .. } => {
                Err(ClientError::UnexpectedReply("a conflict without a condition".into()))
            }
        }
    }

    /// Sets the value of a key if its record has this version; 0: if the key does not exist.
    ///
    /// With a version above 0 the client repeats the request after it has lost the connection: it
    /// takes effect at most once. If the version has changed before the repetition, the result is
    /// [`FailureCause::VersionChanged`].
    pub async fn set_if(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        version: u64,
    ) -> Result<WriteOutcome, ClientError> {
        let (key, number) = (key.as_ref(), version.to_string());
        let request = [b"BALLAST.SET", key, value.as_ref(), b"IFVERSION", number.as_bytes()];
        let reply = self.ask(key, &request, RepeatRule::of_version(version)).await?;
        values::write_outcome(reply)
    }

    /// Removes a key if its record has this version. It is repeated like [`Client::set_if`].
    pub async fn delete_if(
        &self,
        key: impl AsRef<[u8]>,
        version: u64,
    ) -> Result<WriteOutcome, ClientError> {
        let (key, number) = (key.as_ref(), version.to_string());
        let request = [b"BALLAST.DEL", key, b"IFVERSION", number.as_bytes()];
        let reply = self.ask(key, &request, RepeatRule::of_version(version)).await?;
        values::write_outcome(reply)
    }

    /// Returns the values of several keys, in their order. The requests go to all servers at the
    /// same time. Keys of one slot are read at one moment, others are not.
    pub async fn get_many(
        &self,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Vec<u8>>>, ClientError> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let groups = by_slot(&keys);
        let requests = groups.iter().map(|(slot, places)| {
            let arguments = std::iter::once(&b"MGET"[..]).chain(places.iter().map(|at| keys[*at]));
            several(*slot, arguments, RepeatRule::Harmless)
        });
        let replies = self.ask_all(requests).await?;
        let mut values: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        for (places, reply) in groups.values().zip(replies) {
            for (at, value) in places.iter().zip(values::list(reply, places.len())?) {
                values[*at] = values::optional_bytes(value)?;
            }
        }
        Ok(values)
    }

    /// Sets the values of several keys. Keys of one slot are written at one moment, others are not:
    /// after an error, any of them may have been written.
    pub async fn set_many(
        &self,
        records: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    ) -> Result<(), ClientError> {
        let keys: Vec<&[u8]> = records.iter().map(|(key, _)| key.as_ref()).collect();
        let groups = by_slot(&keys);
        let requests = groups.iter().map(|(slot, places)| {
            let pairs = places.iter().flat_map(|at| [keys[*at], records[*at].1.as_ref()]);
            several(*slot, std::iter::once(&b"MSET"[..]).chain(pairs), RepeatRule::Never)
        });
        let replies = self.ask_all(requests).await?;
        replies.into_iter().try_for_each(values::done)
    }

    /// Removes several keys. Returns how many existed. After an error, any of them may have been
    /// removed.
    pub async fn delete_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<u64, ClientError> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let groups = by_slot(&keys);
        let requests = groups.iter().map(|(slot, places)| {
            let arguments = std::iter::once(&b"DEL"[..]).chain(places.iter().map(|at| keys[*at]));
            several(*slot, arguments, RepeatRule::Never)
        });
        let replies = self.ask_all(requests).await?;
        replies.into_iter().map(values::count).sum()
    }

    /// Begins a scan of the keys of all servers.
    pub fn scan(&self, options: KeyScanOptions) -> Scan {
        Scan::new(self.handle.clone(), options)
    }

    /// Sends any command to the server of its first key, or to any server if it has none. Commands
    /// that change the state of a connection are refused, because connections are shared.
    pub async fn command(&self, request: Request) -> Result<Value, ClientError> {
        if request.is_stateful() {
            return Err(ClientError::NotExecuted(FailureCause::Unsupported));
        }
        self.handle.submit(request.prepare(None)).await?.outcome().await
    }

    /// Sends a command to every server of the cluster, and returns the addresses with the outcomes.
    pub async fn command_at_each(
        &self,
        request: Request,
    ) -> Result<Vec<(Arc<str>, RequestOutcome)>, ClientError> {
        if request.is_stateful() {
            return Err(ClientError::NotExecuted(FailureCause::Unsupported));
        }
        let mut outcomes = Vec::new();
        let mut submitted = Vec::new();
        for (server, address) in self.handle.servers() {
            submitted.push((address, self.handle.submit(request.prepare(Some(server))).await));
        }
        for (address, submitted) in submitted {
            let outcome = match submitted {
                Ok(submitted) => submitted.outcome().await,
                Err(error) => Err(error),
            };
            outcomes.push((address, outcome));
        }
        Ok(outcomes)
    }

    /// Returns the addresses of the servers of the cluster, as far as they are known.
    pub fn servers(&self) -> Vec<Arc<str>> {
        self.handle.servers().into_iter().map(|(_, address)| address).collect()
    }

    /// Returns the number of reads that were sent to both sides of a migration.
    pub fn two_sided_reads(&self) -> u64 {
        self.handle.two_sided_reads()
    }

    async fn read(&self, key: &[u8], arguments: &[&[u8]]) -> RequestOutcome {
        self.ask(key, arguments, RepeatRule::Harmless).await
    }

    async fn write(&self, key: &[u8], arguments: &[&[u8]]) -> RequestOutcome {
        self.ask(key, arguments, RepeatRule::Never).await
    }

    async fn ask(&self, key: &[u8], arguments: &[&[u8]], repeat: RepeatRule) -> RequestOutcome {
        let request = PreparedRequest::of_key(key, arguments, repeat);
        self.handle.submit(request).await?.outcome().await
    }

    /// Submits all requests before it waits for the first reply. Waits for all, and returns the first
    /// error, if there is one.
    async fn ask_all(
        &self,
        requests: impl Iterator<Item = PreparedRequest>,
    ) -> Result<Vec<Value>, ClientError> {
        let mut submitted = Vec::new();
        for request in requests {
            submitted.push(self.handle.submit(request).await);
        }
        let mut replies = Vec::with_capacity(submitted.len());
        for submitted in submitted {
            replies.push(match submitted {
                Ok(submitted) => submitted.outcome().await,
                Err(error) => Err(error),
            });
        }
        replies.into_iter().collect()
    }
}

/// Returns the positions of the keys of each slot.
fn by_slot(keys: &[&[u8]]) -> BTreeMap<u16, Vec<usize>> {
    let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        groups.entry(slot_of(key).0).or_default().push(at);
    }
    groups
}

fn several<'a>(
    slot: u16,
    arguments: impl Iterator<Item = &'a [u8]>,
    repeat: RepeatRule,
) -> PreparedRequest {
    let arguments: Vec<&[u8]> = arguments.collect();
    PreparedRequest::new(&arguments, RequestRoute::Slot(Slot(slot)), repeat)
}
