//! Tests of connections opened by a service, and of mail from other threads.

use crate::common::{BUS, ECHO, Mail, Notice, expect, frame, send, server};
use runtime::{ConnectTag, Opened};
use std::net::TcpListener;
use types::PollPolicy;
use types::ReactorId;

#[test]
fn a_service_connects_to_a_server_and_both_sides_learn_of_it() {
    let (ours, other) = (server(1, PollPolicy::Sleep), server(1, PollPolicy::Sleep));
    let mailbox = ours.reactors.mailboxes().of(ReactorId(0));
    mailbox.send(Mail::Connect(other.bus, ConnectTag(42)));
    let Notice::Opened(connection, Opened::Connected { tag }) = ours.next() else {
        panic!("the connection is opened");
    };
    assert_eq!(tag, ConnectTag(42));
    assert!(matches!(other.next(), Notice::Opened(_, Opened::Accepted { port: BUS, .. })));

    // Both sides echo, so one round shows that bytes go both ways.
    mailbox.send(Mail::Say(connection, frame(crate::common::QUIT, b"over")));
    assert!(matches!(other.next(), Notice::Closed(..)));
    assert!(matches!(ours.next(), Notice::Closed(closed, _) if closed == connection));
    ours.reactors.stop();
    other.reactors.stop();
}

#[test]
fn a_connection_that_is_refused_is_told_once() {
    let server = server(1, PollPolicy::Sleep);
    let unused = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = unused.local_addr().expect("it is bound");
    drop(unused);
    let mailbox = server.reactors.mailboxes().of(ReactorId(0));
    for round in 0..100 {
        mailbox.send(Mail::Connect(address, ConnectTag(round)));
    }
    for round in 0..100 {
        assert_eq!(server.next(), Notice::ConnectFailed(ConnectTag(round)));
    }
    mailbox.send(Mail::Number(1));
    assert_eq!(server.next(), Notice::Mail(1), "no other event came");
    server.reactors.stop();
}

#[test]
fn an_address_that_cannot_be_reached_is_a_failure_and_no_panic() {
    let server = server(1, PollPolicy::Sleep);
    let mailbox = server.reactors.mailboxes().of(ReactorId(0));
    // The system refuses port 0 and a broadcast address at once.
    for (number, address) in ["127.0.0.1:0", "255.255.255.255:1"].into_iter().enumerate() {
        let tag = ConnectTag(number as u64);
        mailbox.send(Mail::Connect(address.parse().expect("an address"), tag));
        assert_eq!(server.next(), Notice::ConnectFailed(tag));
    }
    server.reactors.stop();
}

#[test]
fn mail_of_many_threads_wakes_the_reactor_and_none_is_lost() {
    const SENDERS: u64 = 4;
    const ROUNDS: u64 = 5_000;
    let server = server(2, PollPolicy::Sleep);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let mailboxes = server.reactors.mailboxes().clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mailbox = mailboxes.of(ReactorId((round % 2) as u16));
                    mailbox.send(Mail::Number(sender << 32 | round));
                }
            });
        }
        // Mail from one sender to one reactor arrives in order.
        let mut next = [[0, 1]; SENDERS as usize];
        for _ in 0..SENDERS * ROUNDS {
            let Notice::Mail(number) = server.next() else { panic!("only mail was sent") };
            let (sender, round) = (number >> 32, number & 0xffff_ffff);
            let expected = &mut next[sender as usize][(round % 2) as usize];
            assert_eq!(round, *expected);
            *expected += 2;
        }
    });
    server.reactors.stop();
}

#[test]
fn mail_to_a_waiting_reactor_is_read_at_once_every_time() {
    let server = server(1, PollPolicy::Sleep);
    let mailbox = server.reactors.mailboxes().of(ReactorId(0));
    for number in 0..2_000 {
        mailbox.send(Mail::Number(number));
        assert_eq!(server.next(), Notice::Mail(number));
    }
    server.reactors.stop();
}

#[test]
fn mail_about_a_connection_that_has_gone_is_harmless() {
    let server = server(1, PollPolicy::Sleep);
    let mailbox = server.reactors.mailboxes().of(ReactorId(0));
    let mut gone = server.client();
    let connection = server.opened();
    send(&mut gone, &frame(crate::common::DROP, &[]));
    assert!(matches!(server.next(), Notice::Closed(..)));
    let mut next = server.client();
    assert_ne!(server.opened(), connection);
    mailbox.send(Mail::Say(connection, b"for somebody else".to_vec()));
    mailbox.send(Mail::Resume(connection));
    let request = frame(ECHO, b"mine");
    send(&mut next, &request);
    expect(&mut next, &request);
    server.reactors.stop();
}
