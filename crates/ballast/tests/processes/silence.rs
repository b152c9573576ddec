//! Addresses that neither answer nor refuse, as behind a firewall that drops packets.

use crate::client::until;
use crate::servers::binary;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// A listener that never accepts and whose queue is full, so connection requests are dropped.
struct Silent {
    address: SocketAddr,
    _sockets: Vec<OwnedFd>,
}

impl Silent {
    fn new() -> Silent {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = |flags| {
            let made = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
            made.expect("a socket can be made")
        };
        let listener = socket(SocketFlags::CLOEXEC);
        bind(&listener, &any).expect("there is a free port");
        listen(&listener, 0).expect("it can be listened on");
        let address = getsockname(&listener).expect("it has an address");
        let address = SocketAddr::try_from(address).expect("an address and a port");
        let mut sockets = vec![listener];
        // One more than the queue accepts.
        for _ in 0..4 {
            let filler = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            // These connections stay in progress.
            let _ = connect(&filler, &address);
            sockets.push(filler);
        }
        Silent { address, _sockets: sockets }
    }
}

#[test]
fn commands_of_operators_end_with_an_error_where_nobody_answers() {
    let silent = Silent::new();
    let address = silent.address.to_string();
    let move_all = ["migrate", "--from", &address, "--to", &address, "--slots", "0-16383"];
    for words in [&["cluster", "status", "--coordinator", &address][..], &move_all] {
        let mut command = Command::new(binary());
        command.args(words).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut ended = None;
        until("the command ends", || {
            ended = child.try_wait().expect("it can be waited for");
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| !status.success()), "{words:?}");
        let output = child.wait_with_output().expect("it has ended");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&address) && said.contains("is it running?"), "{said}");
    }
}
