//! Descriptions of the commands, for `COMMAND DOCS` and the `HELP` subcommands.
//!
//! They are data: `documentation.txt` has one line per command and subcommand, with its name, the
//! first version of Redis or Valkey that has it (of Ballast for its own commands), its time
//! complexity and a summary.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The description of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Documentation {
    /// First version with the command.
    pub(super) since: &'static str,
    pub(super) complexity: &'static str,
    /// One sentence.
    pub(super) summary: &'static str,
}

static DOCUMENTATION: LazyLock<HashMap<&'static str, Documentation>> =
    LazyLock::new(|| include_str!("documentation.txt").lines().filter_map(parse).collect());

fn parse(line: &'static str) -> Option<(&'static str, Documentation)> {
    let mut fields = line.split(" | ");
    let (name, since) = (fields.next()?, fields.next()?);
    let (complexity, summary) = (fields.next()?, fields.next()?);
    Some((name, Documentation { since, complexity, summary }))
}

/// Returns the description of the command or subcommand of this name.
pub(super) fn documentation(command: &str) -> Documentation {
    DOCUMENTATION.get(command).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::table::commands_and_subcommands;

    #[test]
    fn every_command_is_described_and_no_other() {
        let mut described: Vec<&str> = DOCUMENTATION.keys().copied().collect();
        let mut all: Vec<&str> =
            commands_and_subcommands().map(|(_, command)| command.name).collect();
        described.sort_unstable();
        all.sort_unstable();
        assert_eq!(described, all);
        assert_eq!(include_str!("documentation.txt").lines().count(), all.len());
        for (name, Documentation { summary, .. }) in &*DOCUMENTATION {
            assert!(summary.ends_with('.'), "{name}: {summary:?}");
        }
    }
}
