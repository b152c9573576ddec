//! Commands for operators: latency, monitoring, persistence, shutdown, users, and debugging.

use super::command::flag::{ADMIN, ALLOW_BUSY, ANYTIME, DANGEROUS, FAST, NO_MULTI, NOSCRIPT};
use super::command::{Command, Family, Keys, SECOND, command, container};
use super::help::help;
use super::slots::reply_done;
use super::table::commands_and_subcommands;
use super::{Call, Done, Refusal, slow_log};
use super::{printable, refused, uppercase_is};
use crate::operators::host::HostJob;
use crate::operators::lock;
use crate::operators::slow::Moments;
use node::Mode;
use settings::DebugCommand;
use std::net::SocketAddr;
use std::time::Duration;

/// Flags of commands for operators.
pub(super) const OPERATOR: u32 = ADMIN | DANGEROUS | NOSCRIPT | ANYTIME;
/// Flags of commands for operators that are not allowed inside a transaction.
const OUTSIDE: u32 = ADMIN | DANGEROUS | NOSCRIPT | NO_MULTI;

pub(super) static FAMILY: Family = Family {
    group: "server",
    category: None,
    commands: &[
        container("acl", ACL),
        command("bgrewriteaof", 1, OUTSIDE, Keys::None, background_rewrite),
        command("bgsave", -1, OUTSIDE, Keys::None, background_save),
        container("commandlog", slow_log::COMMANDLOG),
        container("debug", DEBUG),
        command("failover", -1, OPERATOR, Keys::None, no_replicas),
        command("lastsave", 1, FAST | ANYTIME | ADMIN | DANGEROUS, Keys::None, last_save),
        container("latency", LATENCY),
        command("monitor", 1, OPERATOR, Keys::None, monitor),
        command("psync", -3, OUTSIDE, Keys::None, no_replicas),
        command("replicaof", 3, OPERATOR, Keys::None, replica_of),
        command("role", 1, NOSCRIPT | FAST | ANYTIME, Keys::None, role),
        command("save", 1, OUTSIDE, Keys::None, save),
        command("shutdown", -1, OPERATOR | NO_MULTI | ALLOW_BUSY, Keys::None, shut_down),
        command("slaveof", 3, OPERATOR, Keys::None, replica_of),
        container("slowlog", slow_log::SLOWLOG),
        command("sync", 1, OUTSIDE, Keys::None, no_replicas),
    ],
};

static ACL: &[Command] = &[
    command("acl|cat", -2, NOSCRIPT | ANYTIME, Keys::None, acl_categories),
    help("acl|help"),
    command("acl|list", 2, OPERATOR, Keys::None, acl_list),
    command("acl|users", 2, OPERATOR, Keys::None, acl_users),
    command("acl|whoami", 2, NOSCRIPT | ANYTIME, Keys::None, |call| call.bulk(b"default")),
];

static DEBUG: &[Command] = &[
    command("debug|change-repl-id", 2, OPERATOR, Keys::None, debug_nothing),
    help("debug|help"),
    command("debug|object", 3, OPERATOR, SECOND, debug_object),
    command("debug|set-active-expire", 3, OPERATOR, Keys::None, debug_active_expire),
    command("debug|sleep", 3, OPERATOR, Keys::None, debug_sleep),
];

static LATENCY: &[Command] = &[
    command("latency|doctor", 2, OPERATOR, Keys::None, latency_doctor),
    command("latency|graph", 3, OPERATOR, Keys::None, latency_graph),
    help("latency|help"),
    command("latency|histogram", -2, OPERATOR, Keys::None, latency_histogram),
    command("latency|history", 3, OPERATOR, Keys::None, latency_history),
    command("latency|latest", 2, OPERATOR, Keys::None, latency_latest),
    command("latency|reset", -2, OPERATOR, Keys::None, latency_reset),
];

/// Returns the latency samples of the event that argument 2 names.
fn moments(call: &Call<'_>) -> Moments {
    let latency = lock(&call.backend.operators.latency);
    let kind = latency.iter().find(|(kind, _)| kind.as_bytes() == call.args[2]);
    kind.map(|(_, moments)| moments.clone()).unwrap_or_default()
}

fn latency_latest(call: &mut Call<'_>) -> Done {
    let latency = lock(&call.backend.operators.latency);
    call.reply.array(latency.len());
    for (kind, moments) in &*latency {
        let (at, millis) = moments.samples.back().copied().unwrap_or_default();
        call.reply.array(4);
        call.reply.bulk(kind.as_bytes());
        for number in [at, millis, moments.longest] {
            call.reply.integer(number as i64);
        }
    }
    Ok(())
}

/// `LATENCY HISTORY kind`.
fn latency_history(call: &mut Call<'_>) -> Done {
    let moments = moments(call);
    call.reply.array(moments.samples.len());
    for (at, millis) in moments.samples {
        call.reply.array(2);
        call.reply.integer(at as i64);
        call.reply.integer(millis as i64);
    }
    Ok(())
}

/// `LATENCY RESET [kind ...]`.
fn latency_reset(call: &mut Call<'_>) -> Done {
    let kinds = &call.args[2..];
    let mut latency = lock(&call.backend.operators.latency);
    let before = latency.len();
    latency.retain(|kind, _| !kinds.is_empty() && !kinds.contains(&kind.as_bytes()));
    let forgotten = before - latency.len();
    drop(latency);
    call.integer(forgotten as i64)
}

/// `LATENCY GRAPH kind`: one line per sample, with bars relative to the longest.
fn latency_graph(call: &mut Call<'_>) -> Done {
    let moments = moments(call);
    if moments.samples.is_empty() {
        let kind = printable(call.args[2], 128);
        return Err(refused(format!("ERR No samples available for event '{kind}'")));
    }
    let name = String::from_utf8_lossy(call.args[2]).into_owned();
    let mut text = format!("{name} - longest {} ms\n", moments.longest);
    let now = call.wall.0 / 1000;
    for (at, millis) in &moments.samples {
        let bar = "#".repeat((millis * 60 / moments.longest.max(1)) as usize);
        text.push_str(&format!("{:>8} s ago {millis:>8} ms {bar}\n", now.saturating_sub(*at)));
    }
    call.text(&text)
}

fn latency_doctor(call: &mut Call<'_>) -> Done {
    let threshold = call.backend.configuration.operators.latency_threshold;
    let latency = lock(&call.backend.operators.latency).clone();
    let text = match (threshold, latency.is_empty()) {
        (0, true) => "Latency monitoring is off. To record events of 100 ms or more: \
                      CONFIG SET latency-monitor-threshold 100\n"
            .to_string(),
        (threshold, true) => format!("No event has taken {threshold} ms or more.\n"),
        (_, false) => latency
            .iter()
            .map(|(kind, moments)| {
                let count = moments.samples.len();
                let sum: u64 = moments.samples.iter().map(|(_, millis)| millis).sum();
                let mean = sum / count.max(1) as u64;
                let longest = moments.longest;
                format!("{kind}: {count} seconds with latency spikes, mean {mean} ms, longest {longest} ms. SLOWLOG GET lists slow commands.\n")
            })
            .collect(),
    };
    call.text(&text)
}

/// `LATENCY HISTOGRAM [command ...]`. A microsecond in its reply is 1,024 nanoseconds, as in Redis.
fn latency_histogram(call: &mut Call<'_>) -> Done {
    let names = &call.args[2..];
    let counts = call.backend.operators.counts();
    let is_wanted = |command: &Command| {
        let belongs = |name: &&[u8]| {
            let parent = command.name.split('|').next().unwrap_or_default();
            [command.name, parent].iter().any(|own| own.as_bytes().eq_ignore_ascii_case(name))
        };
        names.is_empty() || names.iter().any(belongs)
    };
    let called: Vec<_> = crate::operators::sources::called(&counts)
        .into_iter()
        .filter(|(command, sum)| sum.calls > 0 && is_wanted(command))
        .collect();
    call.reply.map(called.len());
    for (command, sum) in called {
        let mut buckets: Vec<(u64, u64)> = Vec::new();
        for power in 0..31 {
            let within = sum.within(1024 << power);
            if within > buckets.last().map_or(0, |(_, before)| *before) {
                buckets.push((1 << power, within));
            }
        }
        call.reply.bulk(command.name.as_bytes());
        call.reply.map(2);
        call.reply.bulk(b"calls");
        call.reply.integer(sum.calls as i64);
        call.reply.bulk(b"histogram_usec");
        call.reply.map(buckets.len());
        for (micros, count) in buckets {
            call.reply.integer(micros as i64);
            call.reply.integer(count as i64);
        }
    }
    Ok(())
}

fn monitor(call: &mut Call<'_>) -> Done {
    call.session.status.is_monitor = true;
    call.ok()
}

/// `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]`: closes the connection without a reply.
fn shut_down(call: &mut Call<'_>) -> Done {
    let mut is_abort = false;
    let has = |wanted: &[u8]| call.args[1..].iter().any(|word| uppercase_is(word, wanted));
    if has(b"SAVE") && has(b"NOSAVE") {
        return Err(Refusal::Syntax.into());
    }
    for word in &call.args[1..] {
        match &word.to_ascii_uppercase()[..] {
            b"NOSAVE" | b"NOW" | b"FORCE" => {}
            b"SAVE" if call.backend.node().persistence().is_none() => return save(call),
            // The write-ahead log is complete when the process has ended.
            b"SAVE" => {}
            b"ABORT" if call.args.len() == 2 => is_abort = true,
            _ => return Err(Refusal::Syntax.into()),
        }
    }
    if is_abort {
        return Err(refused("ERR No shutdown in progress."));
    }
    let Some(host) = call.backend.operators.host() else {
        return Err(refused("ERR there is no process to shut down"));
    };
    tracing::info!(client = call.session.facts.peer, "SHUTDOWN received");
    host.shut_down();
    call.session.closing = true;
    Ok(())
}

fn save(call: &mut Call<'_>) -> Done {
    refuse_unless_saved(call)?;
    call.ok()
}

/// `BGSAVE [SCHEDULE | CANCEL]`.
fn background_save(call: &mut Call<'_>) -> Done {
    match call.args[1..] {
        [] => {}
        [word] if uppercase_is(word, b"SCHEDULE") => {}
        [word] if uppercase_is(word, b"CANCEL") => {
            return Err(refused("ERR Background saving is currently not in progress or scheduled"));
        }
        _ => return Err(Refusal::Syntax.into()),
    }
    refuse_unless_saved(call)?;
    call.reply.simple("Background saving started");
    Ok(())
}

/// `BGREWRITEAOF`.
fn background_rewrite(call: &mut Call<'_>) -> Done {
    refuse_unless_saved(call)?;
    call.reply.simple("Background append only file rewriting started");
    Ok(())
}

/// Refuses to save unless `durability` is `disk`. With `disk`, each write is on disk before its
/// reply, so a save has nothing to do. With other settings, a save on demand is not supported.
fn refuse_unless_saved(call: &Call<'_>) -> Done {
    let node = call.backend.node();
    let (disk, in_memory_mode) = match node.durability().is_with_others() {
        true => ("the disks of the backups", "the operating system decides when it reaches them"),
        false => ("the disk", "synced to the disk within some seconds"),
    };
    match node.persistence() {
        Some(Mode::Disk) => Ok(()),
        Some(Mode::Interval) => Err(refused(format!(
            "ERR not supported with durability 'interval': every acknowledged write is in the \
             log, and synced to {disk} within a second. With --durability disk, writes are synced \
             before the reply"
        ))),
        Some(Mode::Memory) => Err(refused(format!(
            "ERR not supported with durability 'memory': every acknowledged write is in the log, \
             and {in_memory_mode}. With --durability disk, writes are synced before the reply"
        ))),
        None => Err(refused(
            "ERR not supported without persistence: this server has its data in memory only. \
             Start it with --durability disk, interval or memory to keep a log",
        )),
    }
}

/// `LASTSAVE`.
fn last_save(call: &mut Call<'_>) -> Done {
    let uptime = call.backend.uptime(call.now);
    let last = call.backend.node().last_save(call.wall, uptime);
    call.integer(last as i64)
}

fn role(call: &mut Call<'_>) -> Done {
    call.reply.array(3);
    call.reply.bulk(b"master");
    call.reply.integer(0);
    call.reply.array(0);
    Ok(())
}

/// `FAILOVER`, `PSYNC`, `SYNC`.
fn no_replicas(_: &mut Call<'_>) -> Done {
    Err(refused("ERR not supported: this server has no replicas and cannot be one"))
}

/// `REPLICAOF host port`, `REPLICAOF NO ONE`.
fn replica_of(call: &mut Call<'_>) -> Done {
    if call.backend.node().is_cluster() {
        return Err(refused("ERR REPLICAOF not allowed in cluster mode."));
    }
    match uppercase_is(call.args[1], b"NO") && uppercase_is(call.args[2], b"ONE") {
        true => call.ok(),
        false => no_replicas(call),
    }
}

fn acl_users(call: &mut Call<'_>) -> Done {
    call.reply.array(1);
    call.bulk(b"default")
}

fn acl_list(call: &mut Call<'_>) -> Done {
    let needs_password = call.backend.configuration.access.needs_password();
    let password = if needs_password { "#(hidden)" } else { "nopass" };
    call.reply.array(1);
    call.bulk(format!("user default on {password} ~* &* +@all").as_bytes())
}

/// `ACL CAT [category]`.
fn acl_categories(call: &mut Call<'_>) -> Done {
    let all = commands_and_subcommands()
        .map(|(family, command)| (command.name, super::introspection::categories(family, command)));
    let mut names: Vec<&str> = match call.args[2..] {
        [] => all.flat_map(|(_, categories)| categories).map(|name| &name[1..]).collect(),
        [category] => {
            let is_it = |name: &&str| name.as_bytes()[1..].eq_ignore_ascii_case(category);
            let found = all.filter(|(_, categories)| categories.iter().any(is_it));
            found.map(|(name, _)| name).collect()
        }
        _ => return Err(Refusal::Arity.into()),
    };
    if let ([category], true) = (&call.args[2..], names.is_empty()) {
        let category = printable(category, 128);
        return Err(refused(format!("ERR Unknown category '{category}'")));
    }
    names.sort_unstable();
    names.dedup();
    call.reply.bulks(&names);
    Ok(())
}

/// Checks that this client may use `DEBUG`.
fn permit_debug(call: &Call<'_>) -> Done {
    let is_local = || {
        let peer = call.session.facts.peer.parse();
        peer.is_ok_and(|peer: SocketAddr| peer.ip().to_canonical().is_loopback())
    };
    match call.backend.configuration.operators.debug_command {
        DebugCommand::Yes => Ok(()),
        DebugCommand::Local if is_local() => Ok(()),
        DebugCommand::Local | DebugCommand::No => Err(refused(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \
             \"local\", you can run it from a local connection, otherwise you need to set this \
             option in the configuration file, and then restart the server.",
        )),
    }
}

/// `DEBUG CHANGE-REPL-ID`.
fn debug_nothing(call: &mut Call<'_>) -> Done {
    permit_debug(call)?;
    call.ok()
}

/// `DEBUG OBJECT key`.
fn debug_object(call: &mut Call<'_>) -> Done {
    permit_debug(call)?;
    let (table, key) = (call.session.status.table, call.key(2));
    let found = call.backend.peek_one(table, key, |record| {
        record.map(|record| (record.value.stored_bytes(), record.version.0))
    })?;
    let (bytes, version) = found.ok_or_else(|| refused("ERR no such key"))?;
    call.reply.simple(&format!(
        "Value at:0x0 refcount:1 encoding:raw serializedlength:{bytes} lru:0 lru_seconds_idle:0 \
         version:{version}"
    ));
    Ok(())
}

/// `DEBUG SET-ACTIVE-EXPIRE 0 | 1`.
fn debug_active_expire(call: &mut Call<'_>) -> Done {
    permit_debug(call)?;
    let is_on = match call.args[2] {
        b"0" => false,
        b"1" => true,
        _ => return Err(Refusal::NotAnInteger.into()),
    };
    call.backend.node().set_active_expiry(is_on);
    call.ok()
}

/// `DEBUG SLEEP seconds`.
fn debug_sleep(call: &mut Call<'_>) -> Done {
    permit_debug(call)?;
    if let Some(answer) = call.answer {
        return reply_done(call, answer);
    }
    let seconds = std::str::from_utf8(call.args[2]).ok().and_then(|text| text.parse::<f64>().ok());
    let seconds = seconds.filter(|seconds| (0.0..=SLEEP_SECONDS_MAX).contains(seconds));
    let seconds = seconds
        .ok_or_else(|| refused(format!("ERR seconds must be between 0 and {SLEEP_SECONDS_MAX}")))?;
    Err(call.backend.begin(HostJob::Sleep(Duration::from_secs_f64(seconds))))
}

/// Longest sleep, in seconds. Requests that wait longer are answered with `TRYAGAIN`.
const SLEEP_SECONDS_MAX: f64 = 4.5;
