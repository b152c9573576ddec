//! The `HELP` subcommands.

use super::call::Call;
use super::command::{Command, Keys, command, flag};
use super::documentation::documentation;
use super::not_executed::{Done, Refusal};

/// Returns the `HELP` subcommand, which lists the other subcommands.
pub(super) const fn help(name: &'static str) -> Command {
    command(name, 2, flag::ANYTIME, Keys::None, list_subcommands)
}

/// Handles the `HELP` subcommands made by [`help`]: one name and one summary per subcommand.
fn list_subcommands(call: &mut Call<'_>) -> Done {
    let Some(command) = Command::find(call.args[0]) else { return Err(Refusal::Syntax.into()) };
    let name = command.name.to_uppercase();
    call.reply.array(1 + 2 * command.subcommands.len());
    call.reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for subcommand in command.subcommands {
        call.reply.simple(&subcommand.last_name().to_uppercase());
        call.reply.simple(&format!("    {}", documentation(subcommand.name).summary));
    }
    Ok(())
}
