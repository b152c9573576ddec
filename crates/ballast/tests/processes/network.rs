//! A separate network for the processes of a cluster, in which connections can be cut. Each process
//! runs in a network namespace. A bridge joins all namespaces and the test.
//!
//! A cut is silent: packets are lost without an error. Requires root and `ip`.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// An unused MAC address, to which a bridge delivers nothing.
const NOBODY: &str = "02:00:00:00:00:01";
/// The test's address on the bridge.
const OURS: u8 = 254;

/// The network of a cluster.
pub(crate) struct Network {
    /// Name of the bridge, and prefix of all other names.
    name: String,
    subnet: [u8; 3],
    places: usize,
}

impl Network {
    /// Creates a network with this many places. Returns the reason if that is not possible.
    pub(crate) fn new(places: usize) -> Result<Network, String> {
        // Use a new name each time, because the system may still be removing an earlier network.
        static NETWORKS: AtomicU8 = AtomicU8::new(0);
        let letter = char::from(b'a' + NETWORKS.fetch_add(1, Ordering::Relaxed) % 26);
        let process = std::process::id();
        let subnet = [10, 128 + (process >> 8 & 127) as u8, process as u8];
        let network = Network { name: format!("bl{process}{letter}"), subnet, places };
        let bridge = &*network.name;
        ip(&["link", "add", bridge, "type", "bridge"])?;
        let ours = network.at(OURS);
        ip(&["address", "add", &format!("{ours}/24"), "dev", bridge])?;
        ip(&["link", "set", bridge, "up"])?;
        for number in 0..places {
            let (space, cable) = (network.space(number), network.cable(number));
            ip(&["netns", "add", &space])?;
            let inside = ["peer", "name", "eth0", "netns", &space];
            ip(&[&["link", "add", &cable, "type", "veth"], &inside[..]].concat())?;
            ip(&["link", "set", &cable, "master", bridge, "up"])?;
            let address = format!("{}/24", network.address(number));
            ip(&["-n", &space, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    fn at(&self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, last)
    }

    fn space(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn cable(&self, number: usize) -> String {
        format!("{}v{number}", self.name)
    }

    /// Returns the address of a place.
    pub(crate) fn address(&self, number: usize) -> Ipv4Addr {
        self.at(number as u8 + 1)
    }

    /// Returns the words before a command that runs it at a place.
    pub(crate) fn enter(&self, number: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.space(number)].map(String::from).into()
    }

    /// Cuts the connection between two places.
    pub(crate) fn cut(&self, one: usize, other: usize) {
        self.cut_from(one, other);
        self.cut_from(other, one);
    }

    /// Drops the packets from the first place to the second.
    pub(crate) fn cut_from(&self, here: usize, there: usize) {
        let there = self.address(there).to_string();
        let to_nobody = ["lladdr", NOBODY, "dev", "eth0", "nud", "permanent"];
        let space = self.space(here);
        let words = ["-n", &space, "neighbour", "replace", &there];
        ip(&[&words, &to_nobody[..]].concat()).expect("our network can be changed");
    }

    /// Restores the connection between two places.
    pub(crate) fn join(&self, one: usize, other: usize) {
        for (here, there) in [(one, other), (other, one)] {
            let (space, there) = (self.space(here), self.address(there).to_string());
            // A direction that was not cut may have no entry.
            let _ = ip(&["-n", &space, "neighbour", "del", &there, "dev", "eth0"]);
        }
    }

    /// Cuts a place off from all others.
    pub(crate) fn isolate(&self, number: usize) {
        ip(&["link", "set", &self.cable(number), "nomaster"]).expect("our network can be changed");
    }

    /// Reconnects a place to all others.
    pub(crate) fn connect(&self, number: usize) {
        ip(&["link", "set", &self.cable(number), "master", &self.name])
            .expect("our network can be changed");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Places may not exist. Cables disappear with their namespaces.
        for number in 0..self.places {
            let _ = ip(&["netns", "del", &self.space(number)]);
        }
        let _ = ip(&["link", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    match Command::new("ip").args(words).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("ip {}: {}", words.join(" "), said.trim()))
        }
        Err(error) => Err(format!("ip: {error}")),
    }
}
