//! Arguments that are longer than any value.

use super::*;
use types::limits::VALUE_BYTES_MAX;

fn long_set(bytes: usize) -> String {
    format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${bytes}\r\n{}\r\n", "x".repeat(bytes))
}

fn refusal(bytes: usize) -> String {
    format!(
        "-ERR argument of {bytes} bytes is longer than the maximum of {VALUE_BYTES_MAX} bytes\r\n"
    )
}

#[test]
fn a_value_that_is_too_long_is_refused_in_its_turn_and_the_connection_goes_on() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let bytes = VALUE_BYTES_MAX + 1;
    let pipeline = format!("SET a 1\r\n{}GET a\r\nPING", long_set(bytes));
    let answered = world.ask(&mut client, &pipeline);
    assert_eq!(answered, format!("+OK\r\n{}$1\r\n1\r\n+PONG\r\n", refusal(bytes)));

    // Such a request makes a transaction fail, as an unknown command does.
    let pipeline = format!("MULTI\r\nSET a 2\r\n{}EXEC\r\nGET a", long_set(bytes));
    let answered = world.ask(&mut client, &pipeline);
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let expected = format!("+OK\r\n+QUEUED\r\n{}{aborted}$1\r\n1\r\n", refusal(bytes));
    assert_eq!(answered, expected);

    // Its error keeps its position behind parked requests, and it counts for `SKIP`.
    let mut operator = world.connect(2, 1, HERE);
    world.ask(&mut operator, "CLIENT PAUSE 1000 WRITE");
    let skipped = format!("CLIENT REPLY SKIP\r\n{}", long_set(bytes));
    let pipeline = format!("SET a 3\r\n{}{skipped}GET a", long_set(bytes));
    assert_eq!(world.ask(&mut client, &pipeline), "");
    world.ask(&mut operator, "CLIENT UNPAUSE");
    world.pass(Duration::ZERO);
    let answered = world.answer(&client) + &world.go_on(&mut client);
    assert_eq!(answered, format!("+OK\r\n{}$1\r\n3\r\n", refusal(bytes)));
    assert!(!world.is_closed(&client));
}

#[test]
fn what_comes_of_too_long_a_value_is_taken_at_once_and_above_a_limit_ends_the_connection() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut client, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$536870912"), "");
    assert_eq!(client.input, b"", "nothing of it is kept");
    for _ in 0..10 {
        assert_eq!(world.ask(&mut client, &"x".repeat(100_000)), "");
        assert_eq!(client.input, b"");
    }
    let mut other = world.connect(2, 0, HERE);
    let told = "-ERR Protocol error: invalid bulk length\r\n";
    assert_eq!(world.ask(&mut other, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$536870913"), told);
    assert!(world.is_closed(&other) && !world.is_closed(&client));
}

#[test]
fn strangers_may_not_even_send_what_is_refused() {
    let mut configuration = ServerConfiguration::default();
    configuration.access.requirepass = "secret".to_owned();
    let mut world = World::new(configuration);
    let mut stranger = world.connect(1, 0, HERE);
    let told = "-ERR Protocol error: invalid bulk length\r\n";
    assert_eq!(world.ask(&mut stranger, "*2\r\n$4\r\nAUTH\r\n$16385"), told);
    assert!(world.is_closed(&stranger));
}
