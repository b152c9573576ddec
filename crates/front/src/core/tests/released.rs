//! Requests that become runnable together: how many of them one turn executes, and how much output
//! it produces.

use super::*;
use types::limits::CLIENT_BACKLOG_MAX;

/// Length of the values that the clients of these tests read.
const VALUE_BYTES: usize = 200_000;

/// Starts a server that holds writes for some seconds.
fn paused() -> (World, Asking) {
    let mut world = World::new(ServerConfiguration::default());
    let mut operator = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut operator, "CLIENT PAUSE 4000 WRITE"), "+OK\r\n");
    (world, operator)
}

impl World {
    /// Sends a long value, which is held, and so many reads of it.
    fn send(&mut self, client: &mut Asking, reads: usize) {
        let value = vec![b'v'; VALUE_BYTES];
        resp::RequestWriter::write(&[b"SET", b"a", &value], &mut client.input);
        for _ in 0..reads {
            resp::RequestWriter::write(&[b"GET", b"a"], &mut client.input);
        }
        assert_eq!(self.go_on(client), "", "the value is held");
    }

    /// Returns the bytes of the output that the client has not read.
    fn unread(&self, client: &Asking) -> usize {
        self.sockets.outputs.get(&client.connection).map_or(0, Vec::len)
    }
}

#[test]
fn requests_that_become_runnable_stop_while_a_client_has_too_much_unread_output() {
    let (mut world, mut operator) = paused();
    let mut client = world.connect(2, 0, HERE);
    world.send(&mut client, 100);
    world.ask(&mut operator, "CLIENT UNPAUSE");
    let (mut read, mut rounds) = (0, 0);
    while read < 5 + 100 * VALUE_BYTES {
        for _ in 0..5 {
            world.turn();
        }
        let unread = world.unread(&client);
        assert!(unread <= CLIENT_BACKLOG_MAX + 2 * VALUE_BYTES, "{unread} bytes in round {rounds}");
        assert!(unread > 0, "nobody goes on after {read} bytes, {rounds} rounds");
        read += world.answer(&client).len();
        rounds += 1;
    }
    assert!(rounds > 100 * VALUE_BYTES / (CLIENT_BACKLOG_MAX + 2 * VALUE_BYTES), "{rounds}");
}

#[test]
fn a_client_that_does_not_read_its_output_is_not_answered_with_a_time_out() {
    let (mut world, mut operator) = paused();
    let mut client = world.connect(2, 0, HERE);
    world.send(&mut client, 20);
    world.ask(&mut operator, "CLIENT UNPAUSE");
    world.pass(Duration::from_secs(12));
    let mut all = String::new();
    while all.len() < 5 + 20 * VALUE_BYTES {
        let answer = world.answer(&client);
        assert!(!answer.is_empty(), "nothing follows {} bytes", all.len());
        all += &answer;
        world.pass(Duration::from_millis(20));
    }
    assert!(!all.contains("TRYAGAIN"));
}

#[test]
fn the_end_of_a_pause_does_not_run_all_requests_in_one_turn() {
    const PARKED: usize = 1_000;
    let (mut world, mut operator) = paused();
    let mut clients: Vec<Asking> = (2..5).map(|number| world.connect(number, 0, HERE)).collect();
    for (client, asking) in clients.iter_mut().enumerate() {
        let sets = (0..PARKED).map(|key| format!("SET {client}:{key} 1\r\n"));
        assert_eq!(world.ask(asking, sets.collect::<String>().trim_end()), "");
    }
    world.ask(&mut operator, "CLIENT UNPAUSE");
    let (mut done, mut turns) = (0, 0);
    while done < clients.len() * PARKED {
        let replies: usize = clients.iter().map(|client| world.answer(client).len() / 5).sum();
        assert!(replies <= 600, "{replies} requests in one turn");
        (done, turns) = (done + replies, turns + 1);
        assert!(turns < 100, "only {done} requests are answered");
        world.turn();
    }
}
