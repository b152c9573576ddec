//! `CONFIG`.

use super::glob::glob_matches;
use super::table::flag::{ADMIN, ANYTIME, DANGEROUS, NOSCRIPT};
use super::table::{Command, Keys, command, help};
use super::{Call, Done, Refusal, Undone, cluster::reply_done, printable, refused};
use crate::configuration::{SETTINGS, Setting, When};
use crate::engine::Node;
use crate::operators::host::Job;
use types::limits::TABLES_MAX;

const OPERATOR: u16 = ADMIN | DANGEROUS | NOSCRIPT | ANYTIME;

pub(super) static CONFIG: &[Command] = &[
    command("config|get", -3, OPERATOR, Keys::None, get).text(
        "2.0.0",
        "O(N) of the number of settings",
        "Returns settings.",
    ),
    help("config|help"),
    command("config|resetstat", 2, OPERATOR, Keys::None, reset_statistics).text(
        "2.0.0",
        "O(1)",
        "Counts everything from 0 again.",
    ),
    command("config|rewrite", 2, OPERATOR, Keys::None, rewrite).text(
        "2.8.0",
        "O(1)",
        "Writes settings into the file that they came from.",
    ),
    command("config|set", -4, OPERATOR, Keys::None, set).text(
        "2.0.0",
        "O(N) of the number of settings",
        "Changes settings, all of them or none.",
    ),
];

/// Settings of Redis that clients and tools ask for, and that are what they are here.
fn fixed(node: &Node) -> Vec<(&'static str, String)> {
    let yes_no = |yes| if yes { "yes" } else { "no" }.to_string();
    vec![
        ("appendfsync", "no".into()),
        ("appendonly", "no".into()),
        ("cluster-enabled", yes_no(node.is_cluster())),
        ("cluster-databases", TABLES_MAX.to_string()),
        ("databases", TABLES_MAX.to_string()),
        ("latency-tracking", "yes".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("notify-keyspace-events", String::new()),
        ("replica-read-only", "yes".into()),
        ("save", String::new()),
    ]
}

/// `CONFIG GET pattern [pattern ...]`.
/// A setting that is named, not described by a pattern, is called as the client called it.
fn get(call: &mut Call<'_>) -> Done {
    let patterns = &call.args[2..];
    let node = call.engine.node();
    let configuration = node.configuration();
    let mut all = fixed(node);
    all.extend(SETTINGS.iter().map(|setting| (setting.name, setting.show(&configuration))));
    all.sort_unstable();
    let mut found: Vec<(&[u8], &str)> = Vec::new();
    for (name, value) in &all {
        let mut matching = patterns.iter().filter(|p| glob_matches(p, name.as_bytes(), true));
        let Some(pattern) = matching.next() else { continue };
        let is_name = !pattern.iter().any(|byte| b"*?[".contains(byte));
        found.push((if is_name { pattern } else { name.as_bytes() }, value));
    }
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name);
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

/// `CONFIG SET name value [name value ...]`.
fn set(call: &mut Call<'_>) -> Done {
    let (pairs, odd) = call.args[2..].as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Refusal::Syntax.into());
    }
    let node = call.engine.node();
    let mut changed = (*node.configuration()).clone();
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
        match Setting::find(&name) {
            Some(setting) if setting.when == When::Always => {
                setting.set(&mut changed, value).map_err(|wrong| failed(&wrong))?;
            }
            Some(setting) if same(&setting.show(&changed), value) => {}
            Some(_) => {
                return Err(failed("can't set immutable config: it counts when the server starts"));
            }
            None => match fixed(node).into_iter().find(|(fixed, _)| *fixed == name) {
                Some((_, fixed)) if same(&fixed, value) => {}
                Some((_, fixed)) => {
                    return Err(failed(&format!(
                        "this server knows no other value than '{fixed}'"
                    )));
                }
                None => {
                    return Err(refused(format!(
                        "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                    )));
                }
            },
        }
        names.push(name);
    }
    node.configure(changed);
    node.wake_all();
    call.engine.follow_operators();
    call.ok()
}

fn same(value: &str, other: &str) -> bool {
    value.eq_ignore_ascii_case(other)
}

/// `CONFIG RESETSTAT`.
fn reset_statistics(call: &mut Call<'_>) -> Done {
    call.engine.reset_statistics();
    call.ok()
}

/// `CONFIG REWRITE`: done by the process, since writing to a disk takes longer than a turn may.
fn rewrite(call: &mut Call<'_>) -> Done {
    if let Some(answer) = call.answer {
        return reply_done(call, answer);
    }
    let node = call.engine.node();
    if node.operators.host().is_none_or(|host| host.file().is_none()) {
        return Err(refused("ERR The server is running without a config file"));
    }
    Err(Undone::Begin(Job::Rewrite(node.configuration())))
}
