//! Commands on keys, whatever they hold.

use super::table::flag::{FAST, READONLY, WRITE};
use super::table::{ALL, Family, ONE, command};
use super::{Call, Done};
use store::{Key, Need};

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[
        command("del", -2, WRITE, ALL, del).text(
            "1.0.0",
            "O(N) of the number of keys",
            "Deletes keys and counts those that existed.",
        ),
        command("exists", -2, READONLY | FAST, ALL, exists).text(
            "1.0.0",
            "O(N) of the number of keys",
            "Counts the keys that exist.",
        ),
        command("touch", -2, READONLY | FAST, ALL, exists).text(
            "3.2.1",
            "O(N) of the number of keys",
            "Counts the keys that exist; nothing is remembered of it.",
        ),
        command("type", 2, READONLY | FAST, ONE, kind).text(
            "1.0.0",
            "O(1)",
            "Returns what kind of value a key has.",
        ),
        command("unlink", -2, WRITE | FAST, ALL, del).text(
            "4.0.0",
            "O(N) of the number of keys",
            "Deletes keys and counts those that existed.",
        ),
    ],
};

/// `DEL key [key ...]` and `UNLINK`: both count what they removed, so both read first.
fn del(call: &mut Call<'_>) -> Done {
    let keys: Vec<Key<'_>> = (1..call.args.len()).map(|at| call.key(at)).collect();
    let removed = call.engine.worker.update(
        call.session.table,
        &keys,
        Need::Records,
        |records, changes| {
            let mut removed = 0;
            for (at, record) in records.iter().enumerate() {
                // A key that is named twice is removed, and counted, once.
                let again = keys[..at].iter().any(|key| key.bytes == keys[at].bytes);
                if record.is_some() && !again {
                    changes.delete(at);
                    removed += 1;
                }
            }
            removed
        },
    )?;
    call.reply.integer(removed);
    Ok(())
}

/// `EXISTS key [key ...]` and `TOUCH`: a key that is named twice counts twice.
fn exists(call: &mut Call<'_>) -> Done {
    let keys: Vec<Key<'_>> = (1..call.args.len()).map(|at| call.key(at)).collect();
    let count = call
        .engine
        .worker
        .read(call.session.table, &keys, |records| records.iter().flatten().count())?;
    call.reply.integer(count as i64);
    Ok(())
}

/// `TYPE key`.
fn kind(call: &mut Call<'_>) -> Done {
    let key = call.key(1);
    let exists = call.engine.worker.read_one(call.session.table, key, |record| record.is_some())?;
    call.reply.simple(if exists { "string" } else { "none" });
    Ok(())
}
