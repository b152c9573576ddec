//! The arguments of `CLUSTER MIGRATESLOTS`.

use super::slots::parse_slot;
use super::{parse_integer, printable, uppercase_is};
use types::HashRange;
use types::limits::LATENCY_TARGET_MICROS_MAX;
use wire::control::{MigrationPolicy, PriorityPullMode};

/// A group of slots to move to one server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotMove {
    pub(super) ranges: Vec<HashRange>,
    /// The target's node name, as given.
    pub(super) node: Vec<u8>,
    pub(super) policy: MigrationPolicy,
}

/// Parses groups of `SLOTSRANGE first last [first last ...] NODE id [POLICY name value ...]` that
/// share no slot. Trailing NUL bytes of arguments are removed, because one client sends them.
pub(super) fn parse_migrate(arguments: &[&[u8]]) -> Result<Vec<SlotMove>, String> {
    let trimmed: Vec<&[u8]> = arguments.iter().map(|argument| trim(argument)).collect();
    let mut groups: Vec<SlotMove> = Vec::new();
    let mut rest = &trimmed[..];
    while let [word, after @ ..] = rest {
        if !uppercase_is(word, b"SLOTSRANGE") {
            return Err(SYNTAX.to_string());
        }
        let next = after.iter().position(|word| uppercase_is(word, b"SLOTSRANGE"));
        let (group, others) = after.split_at(next.unwrap_or(after.len()));
        let wanted = parse_group(group)?;
        let before = groups.iter().flat_map(|group| &group.ranges);
        let overlaps = |range: &HashRange| before.clone().any(|other| other.overlaps(*range));
        if wanted.ranges.iter().any(overlaps) {
            return Err("ERR Slot ranges in migrations overlap".to_string());
        }
        groups.push(wanted);
        rest = others;
    }
    if groups.is_empty() { Err(SYNTAX.to_string()) } else { Ok(groups) }
}

const SYNTAX: &str = "ERR syntax error";

fn parse_group(words: &[&[u8]]) -> Result<SlotMove, String> {
    let end = words.iter().position(|word| uppercase_is(word, b"NODE"));
    let end = end.ok_or_else(|| SYNTAX.to_string())?;
    let (pairs, odd) = words[..end].as_chunks::<2>();
    if pairs.is_empty() || !odd.is_empty() {
        return Err(SYNTAX.to_string());
    }
    let mut ranges: Vec<HashRange> = Vec::new();
    for [first, last] in pairs {
        let range = slot_range(first, last)?;
        if let Some(other) = ranges.iter().find(|other| other.overlaps(range)) {
            let [(first, last), (other_first, other_last)] = [range.slots(), other.slots()];
            return Err(format!(
                "ERR Slot range {}-{} overlaps with previous range {}-{}.",
                first.0, last.0, other_first.0, other_last.0
            ));
        }
        ranges.push(range);
    }
    match &words[end + 1..] {
        [node] => Ok(SlotMove { ranges, node: node.to_vec(), policy: MigrationPolicy::default() }),
        [node, word, settings @ ..] if uppercase_is(word, b"POLICY") && !settings.is_empty() => {
            Ok(SlotMove { ranges, node: node.to_vec(), policy: parse_policy(settings)? })
        }
        _ => Err(SYNTAX.to_string()),
    }
}

fn trim(argument: &[u8]) -> &[u8] {
    let end = argument.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    &argument[..end]
}

pub(super) fn slot_range(first: &[u8], last: &[u8]) -> Result<HashRange, String> {
    let slot = |argument| parse_slot(argument).ok_or("ERR Invalid or out of range slot");
    let (first_slot, last_slot) = (slot(first)?, slot(last)?);
    if first_slot > last_slot {
        let (first, last) = (first_slot.0, last_slot.0);
        return Err(format!(
            "ERR Start slot number {first} is greater than end slot number {last}."
        ));
    }
    Ok(HashRange::of_slots(first_slot, last_slot))
}

fn parse_policy(settings: &[&[u8]]) -> Result<MigrationPolicy, String> {
    let mut policy = MigrationPolicy::default();
    let (pairs, odd) = settings.as_chunks::<2>();
    if !odd.is_empty() {
        return Err("ERR POLICY requires pairs of name and value".to_string());
    }
    let mut has_share = false;
    for [name, value] in pairs {
        let number = || {
            let number = parse_integer(value).and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| format!("ERR POLICY {}: not a number", printable(name, 32)))
        };
        let small = || {
            let too_large = |_| format!("ERR POLICY {}: too large", printable(name, 32));
            u16::try_from(number()?).map_err(too_large)
        };
        let upper = name.to_ascii_uppercase();
        match &upper[..] {
            b"PARTITIONS" => policy.partitions = small()?,
            b"PULL-BYTES" => policy.pull_bytes = number()?,
            b"AHEAD" => policy.pulls_ahead = small()?,
            b"SHARE" => {
                policy.background_share = small()?.min(255) as u8;
                has_share = true;
            }
            b"LATENCY-P99" => policy.latency_p99_micros = latency_target(number()?)?,
            b"PRIORITY" if uppercase_is(value, b"OFF") => policy.priority = PriorityPullMode::Off,
            b"PRIORITY" if uppercase_is(value, b"IMMEDIATE") => {
                policy.priority = PriorityPullMode::Immediate;
            }
            b"PRIORITY" => policy.priority = PriorityPullMode::Batched { hashes_max: small()? },
            _ => {
                return Err(format!(
                    "ERR POLICY supports PARTITIONS, PULL-BYTES, AHEAD, SHARE, LATENCY-P99 and \
                     PRIORITY, not '{}'",
                    printable(name, 32)
                ));
            }
        }
    }
    if policy.latency_target().is_some() && !has_share {
        // The target alone limits the move.
        policy.background_share = 100;
    }
    Ok(policy)
}

/// Checks a latency target in microseconds. 0 means none.
fn latency_target(micros: u32) -> Result<u32, String> {
    match micros {
        0..=LATENCY_TARGET_MICROS_MAX => Ok(micros),
        _ => Err(format!(
            "ERR POLICY LATENCY-P99: must be at most {LATENCY_TARGET_MICROS_MAX} microseconds"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Slot;

    fn parse(line: &str) -> Result<Vec<SlotMove>, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        parse_migrate(&words)
    }

    #[test]
    fn slot_ranges_a_node_and_a_policy_are_read() {
        let groups = parse("slotsrange 0 9 20 20 NODE abc POLICY share 100 priority off").unwrap();
        let [wanted] = &groups[..] else { panic!("{groups:?}") };
        let range = |first, last| HashRange::of_slots(Slot(first), Slot(last));
        assert_eq!(wanted.ranges, [range(0, 9), range(20, 20)]);
        assert_eq!(wanted.node, b"abc");
        assert_eq!(wanted.policy.background_share, 100);
        assert_eq!(wanted.policy.priority, PriorityPullMode::Off);
    }

    #[test]
    fn groups_of_slots_go_to_several_nodes() {
        let line =
            "SLOTSRANGE 0 0 NODE a SLOTSRANGE 1 2 5 5 NODE b POLICY share 9 SLOTSRANGE 7 7 NODE a";
        let groups = parse(line).unwrap();
        let nodes: Vec<&[u8]> = groups.iter().map(|group| &group.node[..]).collect();
        assert_eq!(nodes, [b"a", b"b", b"a"]);
        assert_eq!(groups[1].ranges.len(), 2);
        let shares = groups.iter().map(|group| group.policy.background_share);
        let usual = MigrationPolicy::default().background_share;
        assert_eq!(shares.collect::<Vec<_>>(), [usual, 9, usual]);
        for (line, refusal) in [
            ("SLOTSRANGE 0 5 3 4 NODE a", "ERR Slot range 3-4 overlaps with previous range 0-5."),
            (
                "SLOTSRANGE 0 0 NODE a SLOTSRANGE 0 1 NODE b",
                "ERR Slot ranges in migrations overlap",
            ),
            ("SLOTSRANGE 0 0 NODE a x", "ERR syntax error"),
            ("SLOTSRANGE 0 0 NODE a SLOTSRANGE", "ERR syntax error"),
            ("SLOTSRANGE 0 0 SLOTSRANGE 1 1 NODE a", "ERR syntax error"),
        ] {
            assert_eq!(parse(line).unwrap_err(), refusal, "{line}");
        }
    }

    #[test]
    fn a_latency_target_alone_limits_a_move_unless_there_is_a_share() {
        let policy = |words: &str| {
            let groups = parse(&format!("SLOTSRANGE 0 9 NODE abc POLICY {words}"))?;
            let policy = groups[0].policy;
            Ok::<_, String>((policy.latency_p99_micros, policy.background_share))
        };
        assert_eq!(policy("latency-p99 2000"), Ok((2_000, 100)));
        assert_eq!(policy("SHARE 25 LATENCY-P99 10000000"), Ok((10_000_000, 25)));
        assert_eq!(policy("LATENCY-P99 1 SHARE 10"), Ok((1, 10)));
        assert_eq!(policy("LATENCY-P99 0"), Ok((0, 10)), "none");
        for (words, refusal) in [
            ("10000001", "ERR POLICY LATENCY-P99: must be at most 10000000 microseconds"),
            ("2ms", "ERR POLICY LATENCY-P99: not a number"),
            ("-1", "ERR POLICY LATENCY-P99: not a number"),
        ] {
            assert_eq!(policy(&format!("LATENCY-P99 {words}")), Err(refusal.to_string()));
        }
    }

    #[test]
    fn trailing_nuls_are_taken_off() {
        let words: [&[u8]; 5] = [b"SLOTSRANGE\0", b"1\0", b"2", b"NODE\0", b"abc\0"];
        assert_eq!(parse_migrate(&words).unwrap()[0].node, b"abc");
    }

    #[test]
    fn senseless_arguments_are_refused() {
        for line in [
            "SLOTSRANGE",
            "SLOTSRANGE 1 NODE a",
            "SLOTSRANGE NODE a",
            "SLOTSRANGE 1 2",
            "SLOTSRANGE 1 2 NODE",
            "SLOTSRANGE 2 1 NODE a",
            "SLOTSRANGE 0 16384 NODE a",
            "SLOTSRANGE -1 2 NODE a",
            "SLOTSRANGE 0 1 NODE a POLICY",
            "SLOTSRANGE 0 1 NODE a POLICY share",
            "SLOTSRANGE 0 1 NODE a POLICY share x",
            "SLOTSRANGE 0 1 NODE a POLICY what 1",
            "what",
        ] {
            assert!(parse(line).is_err(), "{line} was taken");
        }
    }
}
