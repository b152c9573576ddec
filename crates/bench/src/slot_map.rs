//! Slot map of a client: the server at which it requests a key's slot.

use anyhow::{Context, Result, ensure};
use resp::{Items, Reply};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::{SLOT_COUNT, Slot};

/// Server, numbered in the order in which the client learned of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NodeIndex(pub u16);

/// Slot map, updated by redirects and by `CLUSTER SLOTS`.
#[derive(Clone, Debug)]
pub struct SlotMap {
    addresses: Vec<SocketAddr>,
    owners: Box<[NodeIndex]>,
}

/// Set of slots.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SlotSet {
    /// Membership of each slot; empty for the empty set.
    members: Arc<[bool]>,
}

impl SlotSet {
    /// Returns the set of slots for which `holds` is true.
    pub fn which(holds: impl FnMut(Slot) -> bool) -> SlotSet {
        SlotSet { members: (0..SLOT_COUNT).map(Slot).map(holds).collect() }
    }

    /// Returns whether a slot is in the set.
    #[inline]
    pub fn contains(&self, slot: Slot) -> bool {
        self.members.get(usize::from(slot.0)).is_some_and(|is_member| *is_member)
    }
}

/// Destination of a redirect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redirect {
    /// The slot has another owner from now on.
    Moved(Slot, SocketAddr),
    /// Send the request there once, after `ASKING`.
    Ask(SocketAddr),
}

/// Range of slots and its owner in `CLUSTER SLOTS`.
type Owned = (Slot, Slot, SocketAddr);

impl SlotMap {
    /// Creates a map with all slots at the first of these servers.
    pub fn new(servers: &[SocketAddr]) -> SlotMap {
        assert!(!servers.is_empty(), "a client needs a server");
        let owners = vec![NodeIndex(0); usize::from(SLOT_COUNT)].into_boxed_slice();
        SlotMap { addresses: servers.to_vec(), owners }
    }

    /// Returns the owner of a slot.
    #[inline]
    pub fn owner(&self, slot: Slot) -> NodeIndex {
        self.owners[usize::from(slot.0)]
    }

    /// Returns the address of a server.
    pub fn address(&self, node: NodeIndex) -> SocketAddr {
        self.addresses[usize::from(node.0)]
    }

    /// Returns all known servers.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.addresses.len() as u16).map(NodeIndex)
    }

    /// Returns the server with this address, and adds it if it is new.
    pub fn node(&mut self, address: SocketAddr) -> NodeIndex {
        if let Some(position) = self.addresses.iter().position(|&known| known == address) {
            return NodeIndex(position as u16);
        }
        self.addresses.push(address);
        NodeIndex((self.addresses.len() - 1) as u16)
    }

    /// Updates one slot from a `MOVED`.
    pub fn moved(&mut self, slot: Slot, address: SocketAddr) -> NodeIndex {
        let node = self.node(address);
        self.owners[usize::from(slot.0)] = node;
        node
    }

    /// Updates the map from the `CLUSTER SLOTS` reply of the server at `asked`. Slots that the
    /// reply does not contain keep their owner.
    pub fn replace(&mut self, reply: Reply<'_>, asked: SocketAddr) -> Result<()> {
        for (first, last, address) in parse_slots(reply, asked.ip())? {
            let node = self.node(address);
            self.owners[usize::from(first.0)..=usize::from(last.0)].fill(node);
        }
        Ok(())
    }
}

/// Parses a redirect from an error reply; `None` for other errors. `asked` is the server that
/// replied: an empty host means the same host with another port.
pub fn parse_redirect(error: &[u8], asked: SocketAddr) -> Option<Redirect> {
    let text = std::str::from_utf8(error).ok()?;
    let mut words = text.split_ascii_whitespace();
    let code = words.next()?;
    let slot = Slot(words.next()?.parse().ok().filter(|&slot| slot < SLOT_COUNT)?);
    let (host, port) = words.next()?.rsplit_once(':')?;
    let ip = if host.is_empty() { asked.ip() } else { host.parse().ok()? };
    let address = SocketAddr::new(ip, port.parse().ok()?);
    match code {
        "MOVED" => Some(Redirect::Moved(slot, address)),
        "ASK" => Some(Redirect::Ask(address)),
        _ => None,
    }
}

/// Parses a reply to `CLUSTER SLOTS`: `[[first, last, [host, port, ...], ...], ...]`.
pub fn parse_slots(reply: Reply<'_>, asked: IpAddr) -> Result<Vec<Owned>> {
    items(reply)?.map(|range| parse_owned(range, asked)).collect()
}

fn parse_owned(range: Reply<'_>, asked: IpAddr) -> Result<Owned> {
    let mut range = items(range)?;
    let first = slot(range.next())?;
    let last = slot(range.next())?;
    ensure!(first <= last, "CLUSTER SLOTS has a range that ends before it begins");
    let mut owner = items(range.next().context("CLUSTER SLOTS has a range without an owner")?)?;
    let ip = match owner.next() {
        Some(Reply::Bulk(host)) if !host.is_empty() => {
            std::str::from_utf8(host)?.parse().context("the owner's host is not an IP address")?
        }
        _ => asked,
    };
    let Some(Reply::Integer(port)) = owner.next() else {
        anyhow::bail!("CLUSTER SLOTS has an owner without a port")
    };
    Ok((first, last, SocketAddr::new(ip, u16::try_from(port)?)))
}

fn items(reply: Reply<'_>) -> Result<Items<'_>> {
    match reply {
        Reply::Array(items) => Ok(items),
        other => anyhow::bail!("CLUSTER SLOTS returned {other:?}, expected an array"),
    }
}

fn slot(reply: Option<Reply<'_>>) -> Result<Slot> {
    match reply {
        Some(Reply::Integer(number)) if (0..i64::from(SLOT_COUNT)).contains(&number) => {
            Ok(Slot(number as u16))
        }
        other => anyhow::bail!("CLUSTER SLOTS returned {other:?}, expected a slot"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn redirects_are_read_and_other_errors_are_not() {
        let asked = address("10.0.0.1:7000");
        for (text, redirect) in [
            (
                "MOVED 3999 127.0.0.1:6381",
                Some(Redirect::Moved(Slot(3999), address("127.0.0.1:6381"))),
            ),
            ("MOVED 1 :6381", Some(Redirect::Moved(Slot(1), address("10.0.0.1:6381")))),
            ("ASK 1 ::1:6381", Some(Redirect::Ask(address("[::1]:6381")))),
            ("MOVED 16384 127.0.0.1:6381", None),
            ("MOVED 1 127.0.0.1", None),
            ("ERR unknown command", None),
            ("", None),
        ] {
            assert_eq!(parse_redirect(text.as_bytes(), asked), redirect, "{text}");
        }
    }

    #[test]
    fn a_slot_map_replaces_what_it_names() {
        let asked = address("127.0.0.1:7000");
        let bytes = b"*2\r\n*3\r\n:0\r\n:99\r\n*2\r\n$9\r\n127.0.0.1\r\n:7001\r\n\
                      *3\r\n:100\r\n:16383\r\n*2\r\n$0\r\n\r\n:7000\r\n";
        let mut parser = resp::ReplyParser::new(resp::ReplyLimits::default());
        let received = parser.next(&mut &bytes[..]).unwrap().unwrap();
        let mut routes = SlotMap::new(&[asked]);
        routes.replace(received.reply, asked).unwrap();
        assert_eq!(routes.address(routes.owner(Slot(99))), address("127.0.0.1:7001"));
        assert_eq!(routes.owner(Slot(100)), NodeIndex(0));
        routes.moved(Slot(100), address("127.0.0.1:7001"));
        assert_eq!(routes.owner(Slot(100)), NodeIndex(1));
    }

    /// Returns a reply to `CLUSTER SLOTS` with these ranges.
    fn slots_reply(ranges: &[(u16, u16, SocketAddr)]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", ranges.len()).into_bytes();
        for (first, last, owner) in ranges {
            let host = owner.ip().to_string();
            bytes.extend(
                format!(
                    "*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{}\r\n",
                    host.len(),
                    owner.port()
                )
                .bytes(),
            );
        }
        bytes
    }

    #[test]
    fn routes_behave_like_a_map_from_every_slot_to_an_address() {
        use std::collections::BTreeMap;
        let mut random = fastrand::Rng::with_seed(11);
        let servers: Vec<SocketAddr> =
            (7000..7005).map(|port| address(&format!("127.0.0.1:{port}"))).collect();
        let mut routes = SlotMap::new(&servers[..1]);
        let mut naive: BTreeMap<u16, SocketAddr> =
            (0..SLOT_COUNT).map(|slot| (slot, servers[0])).collect();
        for _ in 0..200 {
            let owner = servers[random.usize(..servers.len())];
            let (a, b) = (random.u16(..SLOT_COUNT), random.u16(..SLOT_COUNT));
            if random.bool() {
                routes.moved(Slot(a), owner);
                naive.insert(a, owner);
            } else {
                let (first, last) = (a.min(b), a.max(b));
                let bytes = slots_reply(&[(first, last, owner)]);
                let mut parser = resp::ReplyParser::new(resp::ReplyLimits::default());
                let reply = parser.next(&mut &bytes[..]).unwrap().unwrap().reply;
                routes.replace(reply, servers[0]).unwrap();
                naive.extend((first..=last).map(|slot| (slot, owner)));
            }
            for _ in 0..50 {
                let slot = random.u16(..SLOT_COUNT);
                assert_eq!(routes.address(routes.owner(Slot(slot))), naive[&slot], "slot {slot}");
            }
        }
    }
}
