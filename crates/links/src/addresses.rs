//! The addresses of other processes' host names.
//!
//! The last successful result of a name is used until the next one, so a failing resolver removes
//! no address.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The addresses of all names that were looked up.
#[derive(Debug, Default)]
pub struct Addresses {
    names: BTreeMap<String, ResolvedName>,
}

#[derive(Debug, Default)]
struct ResolvedName {
    /// Addresses of the last successful result, in the order in which they are tried.
    addresses: Vec<IpAddr>,
    /// True while a resolver is asked.
    is_asked: bool,
}

/// The address of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLookup {
    /// Address to try; `None` if none is known yet.
    pub address: Option<IpAddr>,
    /// True if the caller must ask a resolver, and report by [`Addresses::answered`].
    pub must_resolve: bool,
}

impl Addresses {
    /// Returns the address of a host.
    pub fn look_up(&mut self, host: &str) -> AddressLookup {
        let known = || self.names.get(host)?.addresses.first().copied();
        match host.parse().ok().or_else(known) {
            Some(address) => AddressLookup { address: Some(address), must_resolve: false },
            None => AddressLookup { address: None, must_resolve: self.ask(host) },
        }
    }

    /// Records a failed connection to an address. The host's next address is tried next. Returns
    /// whether the caller must ask a resolver again.
    pub fn failed(&mut self, host: &str, address: IpAddr) -> bool {
        let Some(name) = self.names.get_mut(host) else { return false };
        if name.addresses.first() == Some(&address) {
            name.addresses.rotate_left(1);
        }
        self.ask(host)
    }

    /// Records the result of a resolver; an empty one if it has failed.
    pub fn answered(&mut self, host: &str, addresses: Vec<IpAddr>) {
        let name = self.names.entry(host.to_owned()).or_default();
        name.is_asked = false;
        // If the set is unchanged, keep the order: a failed address stays last.
        let is_known = name.addresses.iter().all(|known| addresses.contains(known));
        let is_same = name.addresses.len() == addresses.len() && is_known;
        if !addresses.is_empty() && !is_same {
            name.addresses = addresses;
        }
    }

    /// Returns whether a resolver is asked at the moment.
    pub fn is_resolving(&self) -> bool {
        self.names.values().any(|name| name.is_asked)
    }

    /// Returns false if a resolver is already asked for the name.
    fn ask(&mut self, host: &str) -> bool {
        let name = self.names.entry(host.to_owned()).or_default();
        !std::mem::replace(&mut name.is_asked, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn lookup(address: Option<IpAddr>, must_resolve: bool) -> AddressLookup {
        AddressLookup { address, must_resolve }
    }

    #[test]
    fn a_name_is_asked_for_once_and_a_numeric_address_never() {
        let mut addresses = Addresses::default();
        assert_eq!(addresses.look_up("one.example"), lookup(None, true));
        assert_eq!(addresses.look_up("one.example"), lookup(None, false));
        assert_eq!(addresses.look_up("10.0.0.2"), lookup(Some(TWO), false));
        addresses.answered("one.example", vec![ONE]);
        assert_eq!(addresses.look_up("one.example"), lookup(Some(ONE), false));
        assert!(!addresses.is_resolving());
    }

    #[test]
    fn the_last_good_result_stays_when_the_resolver_fails() {
        let mut addresses = Addresses::default();
        addresses.look_up("one.example");
        addresses.answered("one.example", vec![ONE]);
        assert!(addresses.failed("one.example", ONE));
        assert!(!addresses.failed("one.example", ONE), "it is being resolved");
        assert_eq!(addresses.look_up("one.example"), lookup(Some(ONE), false));
        addresses.answered("one.example", Vec::new());
        assert_eq!(addresses.look_up("one.example"), lookup(Some(ONE), false));
        assert!(addresses.failed("one.example", ONE));
        addresses.answered("one.example", vec![TWO]);
        assert_eq!(addresses.look_up("one.example"), lookup(Some(TWO), false));
    }

    #[test]
    fn an_address_that_fails_gives_way_to_the_next_one_of_the_name() {
        let mut addresses = Addresses::default();
        addresses.look_up("two.example");
        addresses.answered("two.example", vec![ONE, TWO]);
        addresses.failed("two.example", ONE);
        assert_eq!(addresses.look_up("two.example"), lookup(Some(TWO), false));
        addresses.answered("two.example", vec![ONE, TWO]);
        let kept = addresses.look_up("two.example");
        assert_eq!(kept, lookup(Some(TWO), false), "the same result changes nothing");
        // A failure of an abandoned address does not affect the current one.
        addresses.failed("two.example", ONE);
        assert_eq!(addresses.look_up("two.example"), lookup(Some(TWO), false));
    }
}
