//! Records with their versions: `BALLAST.GET`, `BALLAST.SET` and `BALLAST.DEL`.
//!
//! A version is that of the store: it identifies one write of the key, and no later write of the
//! key has it again (`docs/design/client.md`, "Versions"). 0 stands for the absence of a record.
//!
//! A write replies with two integers: 1 if it was executed, else 0, and the version of the key after
//! the command. Within a transaction, versions of records that it has written are drawn when it takes
//! effect. All its replies then show the version that the record has after the transaction.

use super::command::flag::{DENYOOM, FAST, NO_ACCESS, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::pieces::string;
use super::{Call, Done, Refusal, parse_integer, uppercase_is};
use crate::core::data::{Need, Record, RecordVersion};
use planted::Bug;
use types::Version;

pub(super) static FAMILY: Family = Family {
    group: "ballast",
    category: Some("@string"),
    commands: &[
        command("ballast.del", -2, WRITE | FAST | NO_ACCESS, ONE, del),
        command("ballast.get", 2, READONLY | FAST, ONE, get),
        command("ballast.set", -3, WRITE | DENYOOM, ONE, set),
    ],
};

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionCondition {
    /// The write is blind.
    Always,
    /// The record has this version; 0: there is no record.
    Is(Version),
}

impl VersionCondition {
    /// Parses `[IFVERSION version]`.
    fn parse(words: &[&[u8]]) -> Result<VersionCondition, Refusal> {
        match words {
            [] => Ok(VersionCondition::Always),
            [word, number] if uppercase_is(word, b"IFVERSION") => {
                let number = parse_integer(number).and_then(|number| u64::try_from(number).ok());
                number.map(Version).map(VersionCondition::Is).ok_or(Refusal::NotAnInteger)
            }
            _ => Err(Refusal::Syntax),
        }
    }

    /// Returns whether a write may follow the record whose version is this.
    fn allows(self, version: RecordVersion) -> bool {
        match (self, version) {
            (VersionCondition::Always, _) => true,
            (VersionCondition::Is(_), _) if planted::is(Bug::VersionNotChecked) => true,
            (VersionCondition::Is(wanted), RecordVersion::Known(version)) => wanted == version,
            // No client knows a version that has not been drawn.
            (VersionCondition::Is(_), RecordVersion::Pending { .. }) => false,
        }
    }
}

/// `BALLAST.GET key`: the value, or null, and the version.
fn get(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    let before = call.backend.read_one(table, key, |record| {
        let value = record.map(string).transpose()?;
        reply.array(2);
        reply.bulk_or_null(value);
        Ok::<_, Refusal>(record.map(|record| record.version))
    })??;
    let version = call.backend.version_read(table, key, before)?;
    call.version(version);
    Ok(())
}

/// `BALLAST.SET key value [IFVERSION version]`: removes a time to live, like `SET`.
fn set(call: &mut Call<'_>) -> Done {
    let value = call.args[2];
    let condition = VersionCondition::parse(&call.args[3..])?;
    write_if(call, condition, Some(value))
}

/// `BALLAST.DEL key [IFVERSION version]`.
fn del(call: &mut Call<'_>) -> Done {
    let condition = VersionCondition::parse(&call.args[2..])?;
    write_if(call, condition, None)
}

/// Sets the key's value, or removes the key, if the condition allows it.
fn write_if(call: &mut Call<'_>, condition: VersionCondition, value: Option<&[u8]>) -> Done {
    let (key, table) = (call.key(1), call.session.status.table);
    let need = match condition {
        VersionCondition::Always => Need::Nothing,
        VersionCondition::Is(_) => Need::Records,
    };
    let staged_version = call.backend.staged_version(table, key)?;
    let current = |record: Option<Record<'_>>| {
        let known = record.map_or(Version(0), |record| record.version);
        staged_version.filter(|_| record.is_some()).unwrap_or(RecordVersion::Known(known))
    };
    let (is_written, before) = call.update_keys(&[key], need, |records, changes| {
        let before = current(records[0]);
        let is_allowed = condition.allows(before);
        match value {
            Some(value) if is_allowed => changes.put(0, value, None),
            None if is_allowed => changes.delete(0),
            Some(_) | None => {}
        }
        (is_allowed, before)
    })?;
    let after = match (is_written, value) {
        (false, _) => before,
        (true, None) => RecordVersion::Known(Version(0)),
        (true, Some(_)) => call.backend.version_written(table, key)?,
    };
    call.reply.array(2);
    call.reply.integer(i64::from(is_written));
    call.version(after);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<VersionCondition, Refusal> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        VersionCondition::parse(&words)
    }

    #[test]
    fn conditions_are_parsed() {
        let is = |version| Ok(VersionCondition::Is(Version(version)));
        for (words, parsed) in [
            (&[][..], Ok(VersionCondition::Always)),
            (&["IFVERSION", "0"], is(0)),
            (&["ifversion", "9223372036854775807"], is(i64::MAX as u64)),
            (&["IFVERSION", "-1"], Err(Refusal::NotAnInteger)),
            (&["IFVERSION", "x"], Err(Refusal::NotAnInteger)),
            (&["IFVERSION"], Err(Refusal::Syntax)),
            (&["IFVERSION", "1", "IFVERSION"], Err(Refusal::Syntax)),
            (&["NX"], Err(Refusal::Syntax)),
        ] {
            assert_eq!(parse(words), parsed, "{words:?}");
        }
    }
}
