//! The client's picture of the cluster: the owner of each slot, and the slots that move.

use planted::Bug;
use resp::{Items, Reply};
use std::ops::Range;
use types::{SLOT_COUNT, Slot};

/// Position of a server among those that a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerIndex(pub(crate) u16);

impl ServerIndex {
    /// Stands for an unknown owner in the table of slots.
    const NONE: ServerIndex = ServerIndex(u16::MAX);

    /// Returns the position.
    pub fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// Most servers of a map. Memory of a client is proportional to it.
pub(crate) const SERVERS_MAX: usize = 1024;
/// Longest host name.
const HOST_BYTES_MAX: usize = 255;

const _: () = assert!(SERVERS_MAX < ServerIndex::NONE.0 as usize);

/// The owner of each slot, as the newest map and redirections say.
#[derive(Debug)]
pub(crate) struct SlotRoutes {
    owners: Box<[ServerIndex]>,
    /// The source of each slot of which records may not have arrived at the owner. A wrong one costs
    /// time and never a wrong result.
    sources: Box<[ServerIndex]>,
    migrations: Vec<KnownMigration>,
    /// Cluster and version of the map; `None` before the first one.
    map: Option<(Vec<u8>, u64)>,
}

impl SlotRoutes {
    pub(crate) fn new() -> SlotRoutes {
        let owners = vec![ServerIndex::NONE; usize::from(SLOT_COUNT)].into_boxed_slice();
        let (sources, migrations) = (owners.clone(), Vec::new());
        SlotRoutes { owners, sources, migrations, map: None }
    }

    /// Returns the server that may have records of a slot which its owner does not have yet.
    pub(crate) fn source(&self, slot: Slot) -> Option<ServerIndex> {
        let source = self.sources.get(usize::from(slot.0)).copied();
        let source = source.filter(|source| *source != ServerIndex::NONE)?;
        // Before the flip, the source is the owner.
        self.owner(slot).is_some_and(|owner| owner != source).then_some(source)
    }

    /// Returns the owner of a slot, if it is known.
    pub(crate) fn owner(&self, slot: Slot) -> Option<ServerIndex> {
        let owner = self.owners.get(usize::from(slot.0)).copied();
        owner.filter(|owner| *owner != ServerIndex::NONE)
    }

    /// Records a redirection.
    pub(crate) fn moved(&mut self, slot: Slot, owner: ServerIndex) {
        assert!(owner != ServerIndex::NONE, "a redirection names a server");
        if let Some(place) = self.owners.get_mut(usize::from(slot.0)) {
            *place = owner;
        }
    }

    /// Returns whether a map is newer than the present one. Versions of different clusters are not
    /// comparable: the addresses of a client now lead to another cluster.
    pub(crate) fn is_news(&self, map: &MapReply<'_>) -> bool {
        let present = self.map.as_ref().filter(|_| !planted::is(Bug::OlderMapAdopted));
        present.is_none_or(|(cluster, version)| *cluster != map.cluster || *version < map.version)
    }

    /// Returns the version of the present map, if there is one.
    pub(crate) fn version(&self) -> Option<u64> {
        self.map.as_ref().map(|(_, version)| *version)
    }

    /// Replaces the owners of all slots. `servers` are the indices of the map's servers.
    pub(crate) fn replace(&mut self, map: &MapReply<'_>, servers: &[ServerIndex]) {
        assert_eq!(servers.len(), map.servers.len(), "each server of a map has an index");
        self.owners.fill(ServerIndex::NONE);
        for &SlotRange { first, last, owner } in &map.ranges {
            let index = servers[owner];
            self.owners[usize::from(first.0)..=usize::from(last.0)].fill(index);
        }
        self.map = Some((map.cluster.to_vec(), map.version));
        self.adopt_migrations(map, servers);
    }

    /// Returns whether a map has the version of the present one, and tells of migrations. It may
    /// come from a server that knows more of their progress.
    pub(crate) fn is_present(&self, map: &MapReply<'_>) -> bool {
        let (cluster, version) = (map.cluster, map.version);
        let is_same = |(known, at): &(Vec<u8>, u64)| known == cluster && *at == version;
        map.migrations.is_some() && self.map.as_ref().is_some_and(is_same)
    }

    /// Takes over the migrations of a map. A server that is not the target of a migration does not
    /// know its progress; the progress known so far remains.
    pub(crate) fn adopt_migrations(&mut self, map: &MapReply<'_>, servers: &[ServerIndex]) {
        assert_eq!(servers.len(), map.servers.len(), "each server of a map has an index");
        let migrations = map.migrations.as_deref().unwrap_or_default();
        if migrations.is_empty() && self.migrations.is_empty() {
            return;
        }
        let before = std::mem::take(&mut self.migrations);
        let nothing = vec![ServerIndex::NONE; usize::from(SLOT_COUNT)].into_boxed_slice();
        let progress = std::mem::replace(&mut self.sources, nothing);
        for &MovingSlots { slots, source, target, ref missing } in migrations {
            let (source, target) = (servers[source], servers[target]);
            let migration = KnownMigration { slots, source, target };
            let range = slots.positions();
            match missing {
                Some(missing) => {
                    missing.iter().for_each(|it| self.sources[it.positions()].fill(source));
                }
                None if before.contains(&migration) => {
                    self.sources[range.clone()].copy_from_slice(&progress[range]);
                }
                None => self.sources[range].fill(source),
            }
            self.migrations.push(migration);
        }
        assert!(
            self.migrations.len() <= MIGRATIONS_MAX,
            "a map with too many migrations is adopted"
        );
    }

    /// Forgets that this server is the owner or the source of slots.
    pub(crate) fn forget(&mut self, server: ServerIndex) {
        let places = self.owners.iter_mut().chain(self.sources.iter_mut());
        places.filter(|place| **place == server).for_each(|place| *place = ServerIndex::NONE);
    }
}

/// Host and port as a server states them. The host may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
}

impl ServerAddress<'_> {
    /// Returns the address as `host:port`. An empty host stands for that of the answering server.
    pub(crate) fn text(&self, answering: &str) -> String {
        let own_host = answering.rsplit_once(':').map_or(answering, |(host, _)| host);
        let host = if self.host.is_empty() { own_host } else { self.host };
        format!("{host}:{}", self.port)
    }
}

/// A range of slots in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: Slot,
    pub(crate) last: Slot,
    /// Position among the servers of the map. It is below their number.
    pub(crate) owner: usize,
}

/// First and last slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotSpan {
    pub(crate) first: Slot,
    pub(crate) last: Slot,
}

impl SlotSpan {
    fn parse(first: &Reply<'_>, last: &Reply<'_>) -> Option<SlotSpan> {
        let span = SlotSpan { first: slot(first)?, last: slot(last)? };
        (span.first <= span.last).then_some(span)
    }

    /// Returns the positions of the slots in a table of all slots.
    fn positions(self) -> Range<usize> {
        usize::from(self.first.0)..usize::from(self.last.0) + 1
    }
}

/// A migration that the client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownMigration {
    slots: SlotSpan,
    source: ServerIndex,
    target: ServerIndex,
}

/// A migration in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovingSlots {
    pub(crate) slots: SlotSpan,
    /// Positions among the servers of the map. They are below their number.
    pub(crate) source: usize,
    pub(crate) target: usize,
    /// Slots of which records may still be at the source, ascending; `None`: unknown.
    pub(crate) missing: Option<Vec<SlotSpan>>,
}

/// Most migrations of a map that a client takes. Reads of other moving slots wait at the owner.
const MIGRATIONS_MAX: usize = 64;

/// A reply to `BALLAST.MAP`, checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MapReply<'a> {
    pub(crate) cluster: &'a [u8],
    pub(crate) version: u64,
    pub(crate) servers: Vec<ServerAddress<'a>>,
    pub(crate) ranges: Vec<SlotRange>,
    /// The migrations; `None` if the server does not tell.
    pub(crate) migrations: Option<Vec<MovingSlots>>,
}

/// Longest name of a cluster.
const CLUSTER_BYTES_MAX: usize = 64;

impl<'a> MapReply<'a> {
    /// Parses a reply to `BALLAST.MAP`; `None` if it is none. Unknown fields are skipped, because
    /// newer servers may send more.
    pub(crate) fn parse(reply: &Reply<'a>) -> Option<MapReply<'a>> {
        let (Reply::Map(mut fields) | Reply::Array(mut fields)) = *reply else { return None };
        let (mut cluster, mut version, mut servers, mut ranges) = (None, None, None, None);
        let mut migrations = None;
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            let Reply::Bulk(name) = name else { return None };
            match name {
                b"cluster" => cluster = Some(bytes(&value)?),
                b"version" => version = Some(unsigned(&value)?),
                b"servers" => servers = Some(parse_servers(items(&value)?)?),
                b"ranges" => ranges = Some(items(&value)?),
                b"migrations" => migrations = Some(items(&value)?),
                _ => {}
            }
        }
        let cluster: &[u8] = cluster.filter(|name: &&[u8]| name.len() <= CLUSTER_BYTES_MAX)?;
        let (version, servers) = (version?, servers?);
        let ranges = parse_ranges(ranges?, servers.len())?;
        let migrations = match migrations {
            Some(list) => Some(parse_migrations(list, servers.len())?),
            None => None,
        };
        Some(MapReply { cluster, version, servers, ranges, migrations })
    }
}

fn parse_servers<'a>(list: Items<'a>) -> Option<Vec<ServerAddress<'a>>> {
    let servers = list.map(|server| {
        let mut fields = items(&server)?;
        let (_name, host, port) = (fields.next()?, fields.next()?, fields.next()?);
        Some(ServerAddress { host: host_name(bytes(&host)?)?, port: number(&port)? })
    });
    // One more than allowed is enough to refuse the list.
    let servers: Option<Vec<_>> = servers.take(SERVERS_MAX + 1).collect();
    servers.filter(|servers| servers.len() <= SERVERS_MAX)
}

fn parse_migrations(list: Items<'_>, servers: usize) -> Option<Vec<MovingSlots>> {
    let parse = |migration: Reply<'_>| {
        let mut fields = items(&migration)?;
        let slots = SlotSpan::parse(&fields.next()?, &fields.next()?)?;
        let mut server = || number(&fields.next()?).map(usize::from).filter(|at| *at < servers);
        let (source, target) = (server()?, server()?);
        let missing = match fields.next()? {
            Reply::Null => None,
            missing => Some(parse_missing(items(&missing)?, slots)?),
        };
        Some(MovingSlots { slots, source, target, missing })
    };
    list.take(MIGRATIONS_MAX).map(parse).collect()
}

/// Parses ascending ranges of slots within a range.
fn parse_missing(list: Items<'_>, within: SlotSpan) -> Option<Vec<SlotSpan>> {
    let parse = |span: Reply<'_>| {
        let mut fields = items(&span)?;
        SlotSpan::parse(&fields.next()?, &fields.next()?)
    };
    let spans: Vec<SlotSpan> =
        list.take(usize::from(SLOT_COUNT)).map(parse).collect::<Option<_>>()?;
    let is_inside = |span: &SlotSpan| within.first <= span.first && span.last <= within.last;
    let is_ascending = spans.windows(2).all(|pair| pair[0].last < pair[1].first);
    (is_ascending && spans.iter().all(is_inside)).then_some(spans)
}

fn parse_ranges(list: Items<'_>, servers: usize) -> Option<Vec<SlotRange>> {
    if list.len() > usize::from(SLOT_COUNT) {
        return None;
    }
    list.map(|range| {
        let mut fields = items(&range)?;
        let (first, last) = (slot(&fields.next()?)?, slot(&fields.next()?)?);
        let owner: u16 = number(&fields.next()?)?;
        let range = SlotRange { first, last, owner: usize::from(owner) };
        (range.first <= range.last && range.owner < servers).then_some(range)
    })
    .collect()
}

/// Parses the error `MOVED slot host:port`; `None` for other errors.
pub(crate) fn parse_moved(error: &[u8]) -> Option<(Slot, ServerAddress<'_>)> {
    let text = std::str::from_utf8(error).ok()?;
    let mut words = text.strip_prefix("MOVED ")?.split(' ');
    let slot = Slot(words.next()?.parse().ok().filter(|slot| *slot < SLOT_COUNT)?);
    let (host, port) = words.next()?.rsplit_once(':')?;
    let host = host_name(host.as_bytes())?;
    Some((slot, ServerAddress { host, port: port.parse().ok()? }))
}

/// Returns a host name, if it is one. It may be empty.
fn host_name(bytes: &[u8]) -> Option<&str> {
    let host = std::str::from_utf8(bytes).ok()?;
    let is_one = host.len() <= HOST_BYTES_MAX && host.chars().all(|c| c.is_ascii_graphic());
    is_one.then_some(host)
}

fn items<'a>(reply: &Reply<'a>) -> Option<Items<'a>> {
    match *reply {
        Reply::Array(items) => Some(items),
        _ => None,
    }
}

fn bytes<'a>(reply: &Reply<'a>) -> Option<&'a [u8]> {
    match *reply {
        Reply::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

fn unsigned(reply: &Reply<'_>) -> Option<u64> {
    match *reply {
        Reply::Integer(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

fn number(reply: &Reply<'_>) -> Option<u16> {
    unsigned(reply).and_then(|number| u16::try_from(number).ok())
}

fn slot(reply: &Reply<'_>) -> Option<Slot> {
    number(reply).filter(|slot| *slot < SLOT_COUNT).map(Slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::{Protocol, ReplyLimits, ReplyParser, ReplyWriter};

    /// Returns a map with one server and these ranges.
    fn map_bytes(version: i64, ranges: &[[i64; 3]]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut reply = ReplyWriter::new(Protocol::Resp3, &mut out);
        reply.map(5);
        reply.bulk(b"cluster");
        reply.bulk(b"c1");
        reply.bulk(b"later");
        reply.array(1);
        reply.null();
        reply.bulk(b"version");
        reply.integer(version);
        reply.bulk(b"servers");
        reply.array(1);
        reply.array(3);
        reply.bulk(b"name");
        reply.bulk(b"10.0.0.1");
        reply.integer(7000);
        reply.bulk(b"ranges");
        reply.array(ranges.len());
        for range in ranges {
            reply.array(3);
            range.iter().for_each(|number| reply.integer(*number));
        }
        out
    }

    fn with_map<T>(bytes: &[u8], f: impl FnOnce(Option<MapReply<'_>>) -> T) -> T {
        let mut input = bytes;
        let mut parser = ReplyParser::new(ReplyLimits::default());
        let received = parser.next(&mut input).unwrap().unwrap();
        f(MapReply::parse(&received.reply))
    }

    #[test]
    fn a_map_is_parsed_and_invalid_ones_are_not() {
        with_map(&map_bytes(7, &[[0, 5, 0], [6, 16383, 0]]), |map| {
            let map = map.unwrap();
            assert_eq!((map.cluster, map.version, map.ranges.len()), (&b"c1"[..], 7, 2));
            assert_eq!(map.servers, [ServerAddress { host: "10.0.0.1", port: 7000 }]);
        });
        for ranges in [[[5, 4, 0]], [[0, 16384, 0]], [[-1, 0, 0]], [[0, 1, 1]]] {
            with_map(&map_bytes(7, &ranges), |map| assert_eq!(map, None, "{ranges:?}"));
        }
        with_map(&map_bytes(-1, &[]), |map| assert_eq!(map, None));
        for other in [&b"+OK\r\n"[..], b"*0\r\n", b"*2\r\n:1\r\n:2\r\n", b"-ERR unknown\r\n"] {
            with_map(other, |map| assert_eq!(map, None, "{other:?}"));
        }
    }

    #[test]
    fn only_a_newer_map_or_that_of_another_cluster_counts() {
        let mut routes = SlotRoutes::new();
        with_map(&map_bytes(7, &[[0, 5, 0]]), |map| {
            let map = map.unwrap();
            assert!(routes.is_news(&map));
            routes.replace(&map, &[ServerIndex(3)]);
            assert!(!routes.is_news(&map), "the same version twice");
            assert!(routes.is_news(&MapReply { cluster: b"c2", version: 1, ..map }));
        });
        with_map(&map_bytes(6, &[]), |map| assert!(!routes.is_news(&map.unwrap())));
        with_map(&map_bytes(8, &[]), |map| assert!(routes.is_news(&map.unwrap())));
        assert_eq!(routes.owner(Slot(5)), Some(ServerIndex(3)));
        assert_eq!(routes.owner(Slot(6)), None);
        routes.moved(Slot(6), ServerIndex(1));
        assert_eq!(routes.owner(Slot(6)), Some(ServerIndex(1)));
        routes.forget(ServerIndex(3));
        assert_eq!((routes.owner(Slot(5)), routes.owner(Slot(6))), (None, Some(ServerIndex(1))));
    }

    #[test]
    fn redirections_are_parsed() {
        let at = |slot, host, port| Some((Slot(slot), ServerAddress { host, port }));
        for (text, moved) in [
            ("MOVED 3999 127.0.0.1:6381", at(3999, "127.0.0.1", 6381)),
            ("MOVED 1 :6381", at(1, "", 6381)),
            ("MOVED 1 ::1:6381", at(1, "::1", 6381)),
            ("MOVED 16384 a:1", None),
            ("MOVED 1 a", None),
            ("MOVED 1 a:65536", None),
            ("MOVED 1 \u{e9}:1", None),
            ("MOVED", None),
            ("ASK 1 a:1", None),
        ] {
            assert_eq!(parse_moved(text.as_bytes()), moved, "{text}");
        }
    }
}
