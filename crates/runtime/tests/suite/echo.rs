//! Tests of connections over loopback: bytes arrive complete and in order, and a misbehaving peer
//! does not affect other connections.

use crate::common::{
    DROP, ECHO, FLOOD, Mail, Notice, PAUSE, QUIT, WHERE, connect, expect, expect_end, frame, send,
    server,
};
use runtime::{Closed, LARGE_MESSAGE_BYTES};
use std::io::Read;
use std::net::Shutdown;
use types::PollPolicy;

#[test]
fn a_request_is_answered() {
    for poll in [PollPolicy::Sleep, PollPolicy::Adaptive, PollPolicy::Busy] {
        let server = server(1, poll);
        let mut client = server.client();
        for round in 0..100u32 {
            let request = frame(ECHO, &round.to_le_bytes());
            send(&mut client, &request);
            expect(&mut client, &request);
        }
        server.reactors.stop();
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    let server = server(1, PollPolicy::Adaptive);
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(7);
    let mut bytes = Vec::new();
    for _ in 0..500 {
        let size = if random.u8(..) < 8 { random.usize(..60_000) } else { random.usize(..200) };
        let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
        bytes.extend(frame(ECHO, &body));
    }
    let mut writer = client.try_clone().expect("a second handle");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let cut = random.usize(1..=rest.len().min(5_000));
                send(&mut writer, &rest[..cut]);
                rest = &rest[cut..];
            }
        });
        expect(&mut client, &bytes);
    });
    server.reactors.stop();
}

#[test]
fn large_frames_arrive_whole_from_clients_and_from_servers() {
    let server = server(1, PollPolicy::Adaptive);
    for address in [server.clients, server.bus] {
        let mut client = connect(address);
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = Vec::new();
        for size in [70_000, 1, 3 << 20, 16_384 - 5, 16_384, 100, 5 << 20, 1 << 20] {
            let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
            bytes.extend(frame(ECHO, &body));
        }
        let mut writer = client.try_clone().expect("a second handle");
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut writer, &bytes));
            expect(&mut client, &bytes);
        });
    }
    server.reactors.stop();
}

#[test]
fn large_frames_one_after_the_other_arrive_however_they_are_cut() {
    let server = server(1, PollPolicy::Adaptive);
    let mut random = fastrand::Rng::with_seed(3);
    let mut clients: Vec<_> = (0..20).map(|_| server.client()).collect();
    for round in 0..30 {
        let size = random.usize(20_000..300_000);
        let request = frame(ECHO, &vec![round; size]);
        let cut = random.usize(1..request.len());
        for part in [&request[..cut], &request[cut..]] {
            clients.iter_mut().for_each(|client| send(client, part));
        }
        clients.iter_mut().for_each(|client| expect(client, &request));
    }
    server.reactors.stop();
}

#[test]
fn messages_around_every_threshold_follow_large_ones_however_they_are_cut() {
    const BITE: usize = 20 << 10;
    let lengths = [6, 100, BITE, 2 * BITE, LARGE_MESSAGE_BYTES, 64 << 10, 1 << 20, 3 << 20];
    let server = server(1, PollPolicy::Adaptive);
    let mut client = server.client();
    for large in [LARGE_MESSAGE_BYTES, 300_000, 1 << 20] {
        for length in lengths.into_iter().flat_map(|length| [length - 1, length, length + 1]) {
            for cut in [1, 4, BITE - 1, BITE, BITE + 1, large, length - 1] {
                let expected = frame(ECHO, &vec![1; large - 5]);
                send(&mut client, &expected);
                expect(&mut client, &expected);
                let request = frame(ECHO, &vec![cut as u8; length - 5]);
                let (first, rest) = request.split_at(cut.min(request.len()));
                send(&mut client, first);
                if cut % 2 == 0 {
                    // The server has received the first part when it has answered another client.
                    let ping = frame(ECHO, b"ping");
                    let mut other = server.client();
                    send(&mut other, &ping);
                    expect(&mut other, &ping);
                }
                send(&mut client, rest);
                expect(&mut client, &request);
            }
        }
    }
    server.reactors.stop();
}

#[test]
fn who_sends_no_more_still_gets_its_answers() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    let request = frame(ECHO, &[3; 10_000]);
    send(&mut client, &request);
    send(&mut client, &request);
    send(&mut client, &request[..4_000]);
    client.shutdown(Shutdown::Write).expect("a connected socket");
    expect(&mut client, &request);
    expect(&mut client, &request);
    expect_end(&mut client);
    assert!(matches!(server.next_event(), Notice::Closed(_, Closed::ByService)));
    server.reactors.stop();
}

#[test]
fn a_reset_closes_one_connection_and_disturbs_no_other() {
    let server = server(1, PollPolicy::Sleep);
    let mut steady = server.client();
    let victim = server.client();
    let (_, reset) = (server.opened(), server.opened());
    // Closing with unread bytes makes the system reset the connection.
    server.reactors.mailboxes().iter().for_each(|all| all.send(Mail::Say(reset, vec![1])));
    victim.peek(&mut [0]).expect("the byte arrives");
    drop(victim);
    assert_eq!(server.next(), Notice::Closed(reset, Closed::ByPeer));
    let request = frame(ECHO, b"still here");
    send(&mut steady, &request);
    expect(&mut steady, &request);
    server.reactors.stop();
}

#[test]
fn the_last_answer_leaves_before_the_connection_is_closed() {
    let server = server(1, PollPolicy::Sleep);
    for size in [1, 3 << 20] {
        let mut client = server.client();
        let farewell = frame(QUIT, &vec![9; size]);
        send(&mut client, &farewell);
        send(&mut client, &frame(ECHO, b"too late"));
        expect(&mut client, &farewell);
        expect_end(&mut client);
        assert!(matches!(server.next_event(), Notice::Closed(_, Closed::ByService)));
    }
    server.reactors.stop();
}

#[test]
fn the_service_can_close_at_once() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    send(&mut client, &frame(DROP, &[]));
    expect_end(&mut client);
    assert!(matches!(server.next_event(), Notice::Closed(_, Closed::ByService)));
    server.reactors.stop();
}

#[test]
fn who_does_not_take_the_last_answer_is_cut_off() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    send(&mut client, &frame(QUIT, &vec![0; 32 << 20]));
    assert!(matches!(server.next_event(), Notice::Closed(_, Closed::TooSlow)));
    server.reactors.stop();
}

#[test]
fn a_slow_reader_is_not_read_until_it_has_taken_its_answers() {
    let server = server(1, PollPolicy::Sleep);
    let mut slow = server.client();
    let mut steady = server.client();
    // The first answers fill the client's socket. The other requests fill the server's socket and
    // block the client, because the server does not read them.
    let request = frame(ECHO, &[5; 1000]);
    slow.set_nonblocking(true).expect("a socket");
    let asked = ask_until_stopped(&mut slow, &request);
    let counts = server.reactors.counts();
    assert!(counts[0].bytes_in < asked as u64, "the server read everything: {counts:?}");
    slow.set_nonblocking(false).expect("a socket");

    let quick = frame(ECHO, b"quick");
    send(&mut steady, &quick);
    expect(&mut steady, &quick);

    // Once the client reads, it gets every answer.
    for _ in 0..asked / request.len() {
        expect(&mut slow, &request);
    }
    server.reactors.stop();
}

#[test]
fn requests_left_over_by_a_congested_client_are_answered_though_nothing_more_arrives() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    let flood = frame(FLOOD, &(512u32 << 10).to_le_bytes());
    send(&mut client, &flood.repeat(40));
    assert!(take(&mut client, 40 * (512 << 10)).iter().all(|&byte| byte == FLOOD));
    server.reactors.stop();
}

/// Sends requests until the sockets are full. Returns the number of bytes sent.
fn ask_until_stopped(client: &mut std::net::TcpStream, request: &[u8]) -> usize {
    use std::io::Write;
    let many = request.repeat(1000);
    let mut asked = 0;
    loop {
        match client.write(&many[asked % request.len()..]) {
            Ok(count) => asked += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return asked,
            Err(error) => panic!("{error}"),
        }
    }
}

fn take(client: &mut std::net::TcpStream, count: usize) -> Vec<u8> {
    let mut taken = vec![0; count];
    client.read_exact(&mut taken).expect("the server answers");
    taken
}

#[test]
fn a_paused_connection_is_not_read_and_goes_on_where_it_stopped() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    let opened = server.opened();
    let request = frame(ECHO, b"after the pause");
    send(&mut client, &[frame(PAUSE, &[]), request.clone(), request[..7].to_vec()].concat());
    assert_eq!(server.next(), Notice::Paused(opened));
    // Mail is processed after input: an answer to the request would arrive before it.
    server.reactors.mailboxes().of(opened.reactor()).send(Mail::Say(opened, b"first".to_vec()));
    expect(&mut client, b"first");
    server.reactors.mailboxes().of(opened.reactor()).send(Mail::Resume(opened));
    expect(&mut client, &request);
    send(&mut client, &request[7..]);
    expect(&mut client, &request);
    server.reactors.stop();
}

#[test]
fn a_paused_client_can_send_what_the_sockets_hold_and_gets_all_its_answers_later() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    let opened = server.opened();
    send(&mut client, &frame(PAUSE, &[]));
    assert_eq!(server.next(), Notice::Paused(opened));
    let request = frame(ECHO, &[8; 1000]);
    client.set_nonblocking(true).expect("a socket");
    let asked = ask_until_stopped(&mut client, &request);
    assert!(asked < 64 << 20, "the server takes {asked} bytes of a client that it does not serve");
    client.set_nonblocking(false).expect("a socket");
    server.reactors.mailboxes().of(opened.reactor()).send(Mail::Resume(opened));
    for _ in 0..asked / request.len() {
        expect(&mut client, &request);
    }
    server.reactors.stop();
}

/// Waiting for several requests must end even if fewer arrive.
#[test]
fn a_crowd_of_clients_is_answered_and_so_is_who_is_left_of_it() {
    let server = server(1, PollPolicy::Adaptive);
    let mut clients: Vec<_> = (0..32).map(|_| server.client()).collect();
    for round in 0..500u32 {
        let request = frame(ECHO, &round.to_le_bytes());
        clients.iter_mut().for_each(|client| send(client, &request));
        clients.iter_mut().for_each(|client| expect(client, &request));
    }
    let mut last = clients.pop().expect("there were some");
    for round in 0..500u32 {
        let request = frame(ECHO, &round.to_le_bytes());
        send(&mut last, &request);
        expect(&mut last, &request);
    }
    server.reactors.stop();
}

#[test]
fn a_paused_connection_whose_peer_has_gone_is_closed() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    let opened = server.opened();
    send(&mut client, &frame(PAUSE, &[]));
    assert_eq!(server.next(), Notice::Paused(opened));
    server.reactors.mailboxes().of(opened.reactor()).send(Mail::Say(opened, vec![1]));
    client.peek(&mut [0]).expect("the byte arrives");
    drop(client);
    assert_eq!(server.next(), Notice::Closed(opened, Closed::ByPeer));
    server.reactors.stop();
}

#[test]
fn connections_are_spread_evenly_over_the_reactors() {
    let server = server(3, PollPolicy::Sleep);
    let mut clients: Vec<_> = (0..12).map(|_| server.client()).collect();
    let mut counts = [0; 3];
    for client in &mut clients {
        send(client, &frame(WHERE, &[]));
        counts[usize::from(take(client, 1)[0])] += 1;
    }
    assert_eq!(counts, [4, 4, 4]);
    server.reactors.stop();
}

#[test]
fn stopping_sends_what_there_is_and_closes_every_connection() {
    let server = server(2, PollPolicy::Adaptive);
    let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    for client in &mut clients {
        send(client, &frame(FLOOD, &(4u32 << 20).to_le_bytes()));
        take(client, 1);
    }
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                assert_eq!(take(client, (4 << 20) - 1).len(), (4 << 20) - 1);
                expect_end(client);
            });
        }
        server.reactors.stop();
    });
    assert!(std::net::TcpStream::connect(server.clients).is_err(), "the port is closed");
}

#[test]
fn a_storm_of_connections_that_misbehave_disturbs_nobody() {
    let server = server(2, PollPolicy::Adaptive);
    let mut steady = server.client();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let address = server.clients;
            scope.spawn(move || misbehave(address, fastrand::Rng::with_seed(seed)));
        }
        for round in 0..2_000u32 {
            let request = frame(ECHO, &round.to_le_bytes());
            send(&mut steady, &request);
            expect(&mut steady, &request);
        }
    });
    drop(steady);
    // Every opened connection is closed exactly once.
    let (mut opened, mut closed) = (std::collections::BTreeSet::new(), 0);
    while opened.len() < 601 || closed < 601 {
        match server.next() {
            Notice::Opened(connection, _) => assert!(opened.insert(connection)),
            Notice::Closed(connection, _) => {
                assert!(opened.contains(&connection));
                closed += 1;
            }
            Notice::ConnectFailed(_) | Notice::Paused(_) | Notice::Mail(_) => {}
        }
    }
    server.reactors.stop();
}

/// Connects 200 times, and misbehaves in a random way each time.
fn misbehave(address: std::net::SocketAddr, mut random: fastrand::Rng) {
    use std::io::Write;
    for _ in 0..200 {
        let mut client = connect(address);
        let request = frame(ECHO, &vec![random.u8(..); random.usize(..40_000)]);
        // The server may have closed the connection before the write.
        let _ = match random.u8(..6) {
            0 => Ok(()),
            1 => client.write_all(&request[..random.usize(..request.len())]),
            2 => client.write_all(&request.repeat(random.usize(..20))),
            3 => client.write_all(&u32::MAX.to_le_bytes().repeat(100)),
            4 => client.write_all(&frame(DROP, &[]).repeat(3)),
            _ => client.write_all(&request).and_then(|()| client.shutdown(Shutdown::Write)),
        };
        if random.bool() {
            client.set_nonblocking(true).expect("a socket");
            let _ = client.read(&mut [0; 100]);
        }
    }
}
