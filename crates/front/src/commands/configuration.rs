//! `CONFIG`: reads and changes settings.

use super::command::flag::{ADMIN, ANYTIME, DANGEROUS, NOSCRIPT};
use super::command::{Command, Keys, Secrets, command};
use super::glob::glob_matches;
use super::help::help;
use super::slots::reply_done;
use super::{Call, Done, NotExecuted, Refusal, printable, refused};
use crate::operators::host::HostJob;
use node::{Mode, Node};
use settings::{SETTINGS, ServerConfiguration, Setting, When};
use std::borrow::Cow;
use std::sync::Arc;
use types::limits::DATABASES;

const OPERATOR: u32 = ADMIN | DANGEROUS | NOSCRIPT | ANYTIME;

pub(super) static CONFIG: &[Command] = &[
    command("config|get", -3, OPERATOR, Keys::None, get),
    help("config|help"),
    command("config|resetstat", 2, OPERATOR, Keys::None, reset_statistics),
    command("config|rewrite", 2, OPERATOR, Keys::None, rewrite),
    Command {
        secrets: Secrets::After { word: b"requirepass", count: 1 },
        ..command("config|set", -4, OPERATOR, Keys::None, set)
    },
];

/// A Redis setting that clients and tools ask for, but that is constant here.
struct Fixed {
    name: &'static str,
    value: Cow<'static, str>,
    /// The reason, for the error of `CONFIG SET`.
    why: &'static str,
}

/// Returns all constant settings, as this server reports them.
fn fixed(node: &Node) -> Vec<Fixed> {
    let yes_no = |yes| if yes { "yes" } else { "no" };
    let mode = node.persistence();
    let sync = match mode {
        Some(Mode::Disk) => "always",
        Some(Mode::Interval) => "everysec",
        Some(Mode::Memory) | None => "no",
    };
    let tables: Cow<'static, str> = DATABASES.to_string().into();
    const DURABILITY: &str = "the setting 'durability' determines it when the server starts";
    const NUMBER: &str = "the number of databases is fixed";
    const NO_REPLICAS: &str = "Redis replication is not supported";
    let all: [(&str, Cow<'static, str>, &str); 11] = [
        ("appendfsync", sync.into(), DURABILITY),
        ("appendonly", yes_no(mode.is_some()).into(), DURABILITY),
        ("cluster-enabled", yes_no(node.is_cluster()).into(), "the setting 'join' determines it"),
        ("cluster-databases", tables.clone(), NUMBER),
        ("databases", tables, NUMBER),
        ("latency-tracking", "yes".into(), "latencies are always tracked"),
        ("notify-keyspace-events", "".into(), "keyspace notifications are not supported"),
        ("replica-read-only", "yes".into(), NO_REPLICAS),
        ("replicaof", "".into(), NO_REPLICAS),
        ("save", "".into(), "there are no snapshots; the setting 'durability' enables the log"),
        ("slaveof", "".into(), NO_REPLICAS),
    ];
    all.into_iter().map(|(name, value, why)| Fixed { name, value, why }).collect()
}

/// `CONFIG GET pattern [pattern ...]`. A setting matched by its exact name is returned under the
/// client's spelling.
fn get(call: &mut Call<'_>) -> Done {
    let patterns = &call.args[2..];
    let node = call.backend.node();
    let configuration = call.backend.operators.configuration();
    let fixed = fixed(node).into_iter().map(|Fixed { name, value, .. }| (name, value));
    let names = SETTINGS
        .iter()
        .flat_map(|setting| [setting.name, setting.alias].map(|name| (name, setting)).into_iter());
    let named = names.filter(|(name, _)| !name.is_empty());
    let mut all: Vec<(&str, Cow<'_, str>)> =
        named.map(|(name, setting)| (name, setting.show(&configuration).into())).collect();
    all.extend(fixed);
    all.sort_unstable();
    let mut found: Vec<(&[u8], &str)> = Vec::new();
    for (name, value) in &all {
        let mut matching = patterns.iter().filter(|p| glob_matches(p, name.as_bytes(), true));
        let Some(pattern) = matching.next() else { continue };
        let is_name = !pattern.iter().any(|byte| b"*?[".contains(byte));
        found.push((if is_name { pattern } else { name.as_bytes() }, value));
    }
    call.reply.map(found.len());
    call.reply.texts(found);
    Ok(())
}

/// `CONFIG SET name value [name value ...]`.
fn set(call: &mut Call<'_>) -> Done {
    let (pairs, odd) = call.args[2..].as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Refusal::Syntax.into());
    }
    let node = call.backend.node();
    let operators = &call.backend.operators;
    operators.reconfigure(node, |configuration| {
        let (limit, clients) = (configuration.memory.limit, configuration.clients.count_max);
        change(configuration, pairs, node)?;
        if configuration.memory.limit != limit {
            check_memory_limit(configuration, node)?;
        }
        match operators.host() {
            Some(host) if configuration.clients.count_max != clients => {
                check_clients(configuration, host.clients_max())
            }
            Some(_) | None => Ok(()),
        }
    })?;
    node.wake_all();
    call.backend.follow_settings();
    call.ok()
}

/// Applies all pairs of name and value. After an error, some are applied.
fn change(
    changed: &mut ServerConfiguration,
    pairs: &[[&[u8]; 2]],
    node: &Node,
) -> Result<(), NotExecuted> {
    let mut names: Vec<String> = Vec::new();
    for [name, value] in pairs {
        let name = printable(&name.to_ascii_lowercase(), 128);
        let failed = |why: &str| {
            refused(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
            ))
        };
        if names.contains(&name) {
            return Err(failed("duplicate parameter"));
        }
        let value = std::str::from_utf8(value).map_err(|_| failed("argument must be UTF-8"))?;
        match Setting::find_any(&name) {
            Some(setting) if setting.when == When::Always => {
                setting.set(changed, value).map_err(|wrong| failed(&wrong))?;
            }
            Some(setting) => {
                let mut same = changed.clone();
                setting.set(&mut same, value).map_err(|wrong| failed(&wrong))?;
                if same != *changed {
                    return Err(failed(&format!(
                        "can't set immutable config: it takes effect only when the server starts, \
                         and is '{}'",
                        setting.show(changed)
                    )));
                }
            }
            None => {
                let Some(fixed) = fixed(node).into_iter().find(|fixed| fixed.name == name) else {
                    return Err(refused(format!(
                        "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                    )));
                };
                if !fixed.value.eq_ignore_ascii_case(value) {
                    let Fixed { value, why, .. } = fixed;
                    return Err(failed(&format!("the value is always '{value}': {why}")));
                }
            }
        }
        names.push(name);
    }
    Ok(())
}

/// Refuses a memory limit above the one at the start, which the server has mapped, and one that
/// leaves no memory for data.
fn check_memory_limit(changed: &ServerConfiguration, node: &Node) -> Result<(), NotExecuted> {
    let (limit, at_start) = (changed.memory.limit.0, node.settings().memory_bytes);
    let least = node.store().log().limit_min().min(at_start);
    let bound = match limit {
        _ if limit > at_start => {
            format!("cannot exceed {at_start}, the value at the server's start")
        }
        _ if limit < least => format!("must be at least {least}, for the reactors of this server"),
        _ => return Ok(()),
    };
    Err(refused(format!(
        "ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument {bound}"
    )))
}

/// Refuses more clients than there are file descriptors for them: further connections would take
/// those of replicas and of other servers.
fn check_clients(changed: &ServerConfiguration, clients_max: u32) -> Result<(), NotExecuted> {
    if changed.clients.count_max <= clients_max {
        return Ok(());
    }
    Err(refused(format!(
        "ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument cannot \
         exceed {clients_max}, for which there are file descriptors: for more, raise the limit of \
         open files (ulimit -n, or LimitNOFILE of the server's unit) and start the server again"
    )))
}

/// `CONFIG RESETSTAT`.
fn reset_statistics(call: &mut Call<'_>) -> Done {
    call.backend.reset_statistics();
    call.ok()
}

/// `CONFIG REWRITE`: a job of the process, since writing to disk takes longer than a turn may.
fn rewrite(call: &mut Call<'_>) -> Done {
    if let Some(answer) = call.answer {
        return reply_done(call, answer);
    }
    let operators = &call.backend.operators;
    if operators.host().is_none_or(|host| host.file().is_none()) {
        return Err(refused("ERR The server is running without a config file"));
    }
    let job = HostJob::Rewrite(Arc::clone(operators));
    Err(call.backend.begin(job))
}
