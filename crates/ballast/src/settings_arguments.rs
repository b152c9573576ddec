//! The settings of a server as command-line arguments, derived from the table of settings.

use anyhow::{Context, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use settings::ServerConfiguration;
use settings::{SETTINGS, Setting, read_file};
use std::path::PathBuf;

/// The settings on the command line. They override the file, which overrides the defaults.
#[derive(Clone)]
pub(crate) struct SettingArguments {
    /// Path of the configuration file.
    pub(crate) file: Option<PathBuf>,
    given: Vec<(&'static Setting, String)>,
}

impl SettingArguments {
    /// Returns all settings.
    pub(crate) fn read(&self) -> anyhow::Result<ServerConfiguration> {
        let mut configuration = ServerConfiguration::default();
        if let Some(file) = &self.file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the file {}", file.display()))?;
            read_file(&text, &mut configuration)
                .with_context(|| format!("invalid settings in {}", file.display()))?;
        }
        for (setting, value) in &self.given {
            setting
                .set(&mut configuration, value)
                .map_err(|wrong| anyhow!("--{} '{value}': {wrong}", setting.name))?;
        }
        Ok(configuration)
    }
}

impl Args for SettingArguments {
    fn augment_args(command: Command) -> Command {
        let defaults = ServerConfiguration::default();
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("File of settings (see ballast.toml). The command line overrides it.");
        SETTINGS.iter().fold(command.arg(file), |command, setting| {
            let default = match &setting.show(&defaults)[..] {
                "" => String::new(),
                value => format!(" [default: {value}]"),
            };
            let mut arg = Arg::new(setting.name)
                .long(setting.name)
                .value_name("VALUE")
                .action(ArgAction::Set)
                .help(format!("{}{default}", setting.summary));
            if !setting.alias.is_empty() {
                arg = arg.visible_alias(setting.alias);
            }
            if setting.is_switch() {
                arg = arg.num_args(0..=1).default_missing_value("yes");
            }
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingArguments::augment_args(command)
    }
}

impl FromArgMatches for SettingArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingArguments, clap::Error> {
        let given = SETTINGS.iter().filter_map(|setting| {
            let value: &String = matches.get_one(setting.name)?;
            Some((setting, value.clone()))
        });
        Ok(SettingArguments { file: matches.get_one("config").cloned(), given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SettingArguments::from_arg_matches(matches)?;
        Ok(())
    }
}
