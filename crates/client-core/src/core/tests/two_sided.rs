//! Reads at both sides of a migration: slots 0 to 16383 move from `a:1` to `b:2`.

use super::*;

/// Returns a map in which `b:2` owns everything, which moves from `a:1`. `missing`: the slots that have
/// not arrived, if the server knows them.
fn moving(version: u64, owner: &str, missing: Option<&[(u16, u16)]>) -> String {
    let missing = match missing {
        None => "_\r\n".to_owned(),
        Some(spans) => {
            let spans = spans.iter().map(|(first, last)| format!("*2\r\n:{first}\r\n:{last}\r\n"));
            format!("*{}\r\n{}", spans.len(), spans.collect::<String>())
        }
    };
    let owner = usize::from(owner == "b:2");
    format!(
        "%5\r\n$7\r\ncluster\r\n$2\r\nc1\r\n$7\r\nversion\r\n:{version}\r\n\
         $7\r\nservers\r\n*2\r\n*3\r\n$1\r\nx\r\n$1\r\na\r\n:1\r\n*3\r\n$1\r\ny\r\n$1\r\nb\r\n:2\r\n\
         $6\r\nranges\r\n*1\r\n*3\r\n:0\r\n:16383\r\n:{owner}\r\n\
         $10\r\nmigrations\r\n*1\r\n*5\r\n:0\r\n:16383\r\n:0\r\n:1\r\n{missing}"
    )
}

/// Returns a client that is connected to both servers and knows of the migration.
fn connected_to_both() -> Table {
    connected_with(smart())
}

fn smart() -> ClientOptions {
    ClientOptions { two_sided_reads: true, ..ClientOptions::default() }
}

/// Returns a client that is connected to `a:1` and knows of the migration before its flip.
fn connected_before_the_flip() -> Table {
    let mut table = Table::with(&["a:1"], smart());
    table.submit(0, RequestRoute::Any, RepeatRule::Harmless, &["PING"]);
    table.log_in("a:1");
    assert_eq!(table.written("a:1"), ["BALLAST.MAP", "PING"]);
    table.reply("a:1", &moving(1, "a:1", None));
    table.reply("a:1", "+PONG\r\n");
    table
}

fn connected_with(options: ClientOptions) -> Table {
    let mut table = Table::with(&["a:1"], options);
    table.submit(0, RequestRoute::Any, RepeatRule::Harmless, &["PING"]);
    table.log_in("a:1");
    assert_eq!(table.written("a:1"), ["BALLAST.MAP", "PING"]);
    table.reply("a:1", &moving(1, "b:2", None));
    table.reply("a:1", "+PONG\r\n");
    table.submit(1, RequestRoute::Slot(slot_of(b"k")), RepeatRule::Never, &["SET", "k", "1"]);
    table.log_in("b:2");
    assert_eq!(table.written("b:2"), ["SET k 1"]);
    table.reply("b:2", "+OK\r\n");
    table
}

impl Table {
    fn value_of(&mut self, token: u32, key: &str) {
        let request = PreparedRequest::value_of(key.as_bytes());
        let (mut effects, deadline) = (Vec::new(), self.now + DEADLINE);
        let id = self.core.submit(self.now, request, deadline, token, &mut effects);
        self.ids.insert(token, id);
        self.carry_out(effects);
    }

    /// Begins a read at both sides.
    fn read_both(&mut self, token: u32) {
        self.value_of(token, "k");
        assert_eq!(self.written("b:2"), ["BALLAST.READ k"]);
        assert_eq!(self.written("a:1"), ["BALLAST.READCOPY k"]);
    }

    fn value(&self, token: u32) -> Option<String> {
        match self.outcome(token) {
            Ok(Value::Bulk(value)) => Some(String::from_utf8(value).unwrap()),
            Ok(Value::Null) => None,
            other => panic!("{other:?}"),
        }
    }
}

/// Answers of the target, for migration 7 and epoch 2, at the time 1000.
const NOT_HERE: &str = "*3\r\n:7\r\n:2\r\n:1000\r\n";
const GONE: &str = "_\r\n";

fn copy(pair: (u64, u64), value: Option<&str>, expiry: u64) -> String {
    let (migration, epoch) = pair;
    let value = value.map_or("_\r\n".to_owned(), |it| format!("${}\r\n{it}\r\n", it.len()));
    format!("*4\r\n:{migration}\r\n:{epoch}\r\n{value}:{expiry}\r\n")
}

#[test]
fn both_answers_together_are_the_value_in_any_order() {
    for (value, expiry, expected) in [
        (Some("1"), 0, Some("1")),
        (Some("1"), 1001, Some("1")),
        (Some("1"), 1000, None),
        (None, 0, None),
    ] {
        for is_source_first in [false, true] {
            let mut table = connected_to_both();
            table.read_both(2);
            let copied = copy((7, 2), value, expiry);
            if is_source_first {
                table.reply("a:1", &copied);
                assert!(table.is_open(2), "the source alone decides nothing");
                table.reply("b:2", NOT_HERE);
            } else {
                table.reply("b:2", NOT_HERE);
                assert!(table.is_open(2));
                table.reply("a:1", &copied);
            }
            assert_eq!(table.value(2).as_deref(), expected, "{value:?} until {expiry}");
            assert_eq!(table.core.source_values(), 1);
            assert_eq!(table.core.open_requests(), 0);
        }
    }
}

#[test]
fn whatever_the_target_has_counts_and_the_source_is_not_heard() {
    for (reply, expected) in [("$3\r\nnew\r\n", Some("new")), ("_\r\n", None)] {
        for is_source_first in [false, true] {
            let mut table = connected_to_both();
            table.read_both(2);
            if is_source_first {
                table.reply("a:1", &copy((7, 2), Some("old"), 0));
            }
            table.reply("b:2", reply);
            assert_eq!(table.value(2).as_deref(), expected);
            assert_eq!(table.core.source_values(), 0);
            if !is_source_first {
                table.reply("a:1", &copy((7, 2), Some("old"), 0));
            }
            table.get(3, "k");
            assert_eq!(table.written("b:2"), ["GET k"]);
            table.reply("b:2", "$1\r\n3\r\n");
            assert_eq!(table.value(3).as_deref(), Some("3"), "later replies are in their places");
        }
    }
}

/// Checks that the read goes to the owner again, by a command that waits.
fn assert_owner_is_asked_again(table: &mut Table, token: u32) {
    assert!(table.is_open(token));
    assert_eq!(table.written("b:2"), ["GET k"]);
    table.reply("b:2", "$1\r\n9\r\n");
    assert_eq!(table.value(token).as_deref(), Some("9"));
}

#[test]
fn answers_that_do_not_fit_lead_to_the_owner() {
    for other in [
        copy((8, 2), Some("1"), 0),
        copy((7, 3), Some("1"), 0),
        copy((7, 3), None, 0),
        GONE.to_owned(),
        "-LOADING wait\r\n".to_owned(),
        "-ERR unknown command\r\n".to_owned(),
        "+OK\r\n".to_owned(),
        "*0\r\n".to_owned(),
        "*3\r\n:7\r\n:2\r\n$1\r\n1\r\n".to_owned(),
        "*4\r\n:7\r\n:2\r\n:1\r\n:0\r\n".to_owned(),
    ] {
        for is_source_first in [false, true] {
            let mut table = connected_to_both();
            table.read_both(2);
            if is_source_first {
                table.reply("a:1", &other);
                table.reply("b:2", NOT_HERE);
            } else {
                table.reply("b:2", NOT_HERE);
                table.reply("a:1", &other);
            }
            assert_owner_is_asked_again(&mut table, 2);
        }
    }
}

#[test]
fn a_source_that_is_slow_or_lost_is_not_awaited() {
    let mut table = connected_to_both();
    table.read_both(2);
    table.reply("b:2", NOT_HERE);
    table.core.handle(table.now, ClientEvent::Tick, &mut Vec::new());
    assert_eq!(table.written("b:2"), [] as [&str; 0]);
    table.pass(1);
    assert_owner_is_asked_again(&mut table, 2);
    table.reply("a:1", &copy((7, 2), Some("1"), 0));
    let mut table = connected_to_both();
    table.read_both(2);
    table.lose("a:1");
    assert!(table.is_open(2));
    table.reply("b:2", NOT_HERE);
    assert_owner_is_asked_again(&mut table, 2);
}

#[test]
fn when_the_owner_is_asked_again_the_first_answer_counts() {
    for late in [copy((7, 2), Some("1"), 0), copy((7, 3), Some("1"), 0), GONE.to_owned()] {
        let fits = late == copy((7, 2), Some("1"), 0);
        let mut table = connected_to_both();
        table.read_both(2);
        table.reply("b:2", NOT_HERE);
        table.pass(1);
        assert_eq!(table.written("b:2"), ["GET k"]);
        table.reply("a:1", &late);
        assert_eq!(table.is_open(2), !fits, "{late:?}");
        table.reply("b:2", "$1\r\n2\r\n");
        assert_eq!(table.value(2).as_deref(), Some(if fits { "1" } else { "2" }));
        table.get(3, "k");
        assert_eq!(table.written("b:2"), ["GET k"]);
        table.reply("b:2", "$1\r\n3\r\n");
        assert_eq!(table.value(3).as_deref(), Some("3"), "later replies are in their places");
    }
}

#[test]
fn errors_of_the_target_are_those_of_any_request() {
    let mut table = connected_to_both();
    table.read_both(2);
    table.reply("b:2", &moved("k", "c:3"));
    table.log_in("c:3");
    assert_eq!(table.written("c:3"), ["BALLAST.READ k"], "the source is not asked twice");
    table.reply("a:1", &copy((7, 2), Some("1"), 0));
    table.reply("c:3", NOT_HERE);
    assert_eq!(table.value(2).as_deref(), Some("1"), "the copy is that of the named migration");
    // A server that does not know the command is asked by another one.
    let mut table = connected_to_both();
    table.read_both(2);
    table.reply("b:2", "-ERR unknown command 'BALLAST.READ'\r\n");
    assert_owner_is_asked_again(&mut table, 2);
    // The connection to the target is lost: the read is repeated.
    let mut table = connected_to_both();
    table.read_both(2);
    table.reply("a:1", &copy((7, 2), Some("1"), 0));
    table.lose("b:2");
    table.pass(10);
    table.log_in("b:2");
    let written = table.written("b:2");
    assert_eq!(written.last().map(String::as_str), Some("BALLAST.READ k"), "{written:?}");
    let maps = written.iter().filter(|it| *it == "BALLAST.MAP").map(|_| "-ERR no\r\n");
    table.reply("b:2", &format!("{}{NOT_HERE}", maps.collect::<String>()));
    assert_eq!(table.value(2).as_deref(), Some("1"));
}

#[test]
fn a_read_that_is_cancelled_or_overdue_leaves_its_answers_in_place() {
    let mut table = connected_to_both();
    table.read_both(2);
    table.event(ClientEvent::Cancel(table.ids[&2]));
    table.read_both(3);
    table.reply("a:1", &copy((7, 2), Some("2"), 0));
    table.reply("a:1", &copy((7, 2), Some("3"), 0));
    table.reply("b:2", NOT_HERE);
    table.reply("b:2", NOT_HERE);
    assert_eq!(table.value(3).as_deref(), Some("3"));
}

#[test]
fn only_values_of_slots_that_move_are_read_at_both_sides() {
    let one_sided = |table: &mut Table, owner: &str| {
        table.value_of(2, "k");
        assert_eq!(table.written(owner), ["GET k"]);
    };
    // The flip has not come yet.
    one_sided(&mut connected_before_the_flip(), "a:1");
    // The client does not want it.
    one_sided(&mut connected_with(ClientOptions::default()), "b:2");
    // Everything else about a key is asked at its owner.
    let mut table = connected_to_both();
    table.get(2, "k");
    assert_eq!(table.written("b:2"), ["GET k"]);
    // A redirection tells of the flip before the map does.
    let mut table = connected_before_the_flip();
    table.value_of(2, "k");
    assert_eq!(table.written("a:1"), ["GET k"]);
    table.reply("a:1", &moved("k", "b:2"));
    table.log_in("b:2");
    assert_eq!(table.written("b:2"), ["BALLAST.READ k"]);
    assert_eq!(table.written("a:1"), ["BALLAST.READCOPY k"]);
}

#[test]
fn the_target_tells_which_slots_have_arrived() {
    let slot = slot_of(b"k").0;
    let mut table = connected_to_both();
    table.read_both(2);
    table.reply("a:1", GONE);
    table.reply("b:2", "$1\r\n1\r\n");
    table.pass(50);
    assert_eq!(table.written("b:2"), ["BALLAST.MAP"], "the target is asked, not any server");
    table.reply("b:2", &moving(1, "b:2", Some(&[(0, slot - 1), (slot + 1, 16383)])));
    table.value_of(3, "k");
    assert_eq!(table.written("b:2"), ["GET k"]);
    table.reply("b:2", "$1\r\n1\r\n");
    // A server that does not know the progress takes nothing back.
    table.pass(1_000);
    table.core.map.is_wanted = true;
    table.pass(50);
    table.event(ClientEvent::Tick);
    let asked = ["a:1", "b:2"].map(|address| table.written(address) == ["BALLAST.MAP"]);
    table.reply(if asked[0] { "a:1" } else { "b:2" }, &moving(2, "b:2", None));
    table.value_of(4, "k");
    assert_eq!(table.written("b:2").last().map(String::as_str), Some("GET k"));
}

#[test]
fn one_read_in_a_hundred_asks_for_the_record() {
    let mut table = connected_to_both();
    for token in 2..502 {
        table.value_of(token, "k");
    }
    let marked = |requests: Vec<String>| requests.iter().filter(|it| it.ends_with(" PULL")).count();
    assert_eq!(marked(table.written("b:2")), 5);
    assert_eq!(table.core.two_sided_reads(), 500);
    assert_eq!(table.written("a:1").len(), 500);
}
