//! The configuration file: one `name = value` per line, in TOML.

use crate::table::{SETTINGS, Setting};
use crate::text::SettingKind;
use crate::{Bytes, ServerConfiguration, Wrong};
use toml_edit::{Document, DocumentMut, Item, Value};

/// The reason why a configuration file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file is not valid TOML.
    #[error("{0}")]
    NotToml(String),
    /// A line has an unknown name or an invalid value.
    #[error("line {line}: {wrong}")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// Description of the error.
        wrong: Wrong,
    },
}

/// Applies the settings in the file. Other settings stay unchanged.
pub fn read_file(text: &str, configuration: &mut ServerConfiguration) -> Result<(), FileError> {
    let document = Document::parse(text).map_err(|error| FileError::NotToml(error.to_string()))?;
    for (name, item) in document.as_table().iter() {
        let span = document.as_table().key(name).and_then(|key| key.span()).or(item.span());
        let at = span.map_or(0, |span| span.start);
        let line = 1 + text[..at].matches('\n').count();
        set(configuration, name, item).map_err(|wrong| FileError::Line { line, wrong })?;
    }
    Ok(())
}

fn set(configuration: &mut ServerConfiguration, name: &str, item: &Item) -> Result<(), Wrong> {
    let setting = Setting::find(name)
        .ok_or_else(|| format!("unknown setting '{name}' (see ballast.toml for all settings)"))?;
    let value = match item {
        Item::Value(Value::String(text)) => text.value().clone(),
        Item::Value(Value::Integer(number)) => number.value().to_string(),
        Item::Value(Value::Boolean(yes)) => if *yes.value() { "yes" } else { "no" }.into(),
        _ => return Err(format!("{name} must be a string, a number, true or false")),
    };
    setting.set(configuration, &value).map_err(|wrong| format!("{name}: {wrong}"))
}

/// Returns the file with these settings: changed settings are updated, missing ones are added
/// unless they have their default, and everything else, comments included, stays.
pub fn rewrite(text: &str, configuration: &ServerConfiguration) -> Result<String, FileError> {
    let mut before = ServerConfiguration::default();
    read_file(text, &mut before)?;
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| FileError::NotToml(error.to_string()))?;
    for setting in SETTINGS {
        if setting.show(&before) != setting.show(configuration) {
            let mut value = in_file(setting, configuration);
            if let Some(Item::Value(old)) = document.get(setting.name) {
                *value.decor_mut() = old.decor().clone();
            }
            document[setting.name] = Item::Value(value);
        }
    }
    Ok(document.to_string())
}

fn in_file(setting: &Setting, configuration: &ServerConfiguration) -> Value {
    let shown = setting.show(configuration);
    match (setting.kind, shown.parse::<i64>()) {
        (SettingKind::YesNo, _) => Value::from(shown == "yes"),
        (SettingKind::Number, Ok(number)) => Value::from(number),
        (SettingKind::Text, Ok(number)) if number > 0 => {
            Value::from(Bytes(usize::try_from(number).unwrap_or(0)).short())
        }
        (SettingKind::Number | SettingKind::Text, _) => Value::from(shown),
    }
}

/// Returns an example file that lists and explains all settings with their defaults.
pub fn example() -> String {
    let configuration = ServerConfiguration::default();
    let mut text = String::from(
        "# Settings of a Ballast server with their defaults: 'ballast serve --config ballast.toml'.\n\
         # Options on the command line (--maxclients 100) override this file. Settings marked with a\n\
         # star can be changed at run time: CONFIG SET, then CONFIG REWRITE.\n",
    );
    for setting in SETTINGS {
        let star = if setting.when == crate::When::Always { "* " } else { "" };
        text.push('\n');
        for line in wrapped(&format!("{star}{}", setting.summary), 98) {
            text.push_str(&format!("# {line}\n"));
        }
        let value = in_file(setting, &configuration);
        text.push_str(&format!("{} = {}\n", setting.name, value.to_string().trim()));
    }
    text
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ServerConfiguration, FileError> {
        let mut configuration = ServerConfiguration::default();
        read_file(text, &mut configuration).map(|()| configuration)
    }

    #[test]
    fn the_example_says_what_the_defaults_are() {
        assert_eq!(read(&example()), Ok(ServerConfiguration::default()));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ballast.toml");
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            std::fs::write(path, example()).unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text == example(), "ballast.toml is out of date: UPDATE_GOLDENFILES=1 writes it");
    }

    #[test]
    fn a_file_sets_what_it_names() {
        let text =
            "maxclients = 7\nrequirepass = \"x y\"\nprotected-mode = false\nmaxmemory='64mb'";
        let configuration = read(text).unwrap();
        assert_eq!(configuration.clients.count_max, 7);
        assert_eq!(configuration.access.requirepass, "x y");
        assert!(!configuration.access.protected_mode);
        assert_eq!(configuration.memory.limit, Bytes(64 << 20));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
        for (text, said) in [
            ("port = 1\n\n# x\nnosuch = 1", "line 4: unknown setting 'nosuch'"),
            ("port = 1\nmaxclients = 'many'", "line 2: maxclients: argument couldn't be parsed"),
            ("port = 70000", "line 1: port: argument must be between 0 and 65535"),
            ("port = [1]", "line 1: port must be a string, a number, true or false"),
            ("[server]\nport = 1", "line 1: unknown setting 'server'"),
            ("maxmemory = 0", "line 1: maxmemory: a memory limit is required"),
            ("port = ", "TOML parse error at line 1"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn rewriting_keeps_comments_and_order_and_adds_what_is_missing() {
        let text = "# mine\nmaxclients = 7 # few\ntimeout = 1\n";
        let mut configuration = read(text).unwrap();
        configuration.clients.count_max = 8;
        configuration.access.requirepass = "p\"q".into();
        let rewritten = rewrite(text, &configuration).unwrap();
        assert!(
            rewritten.starts_with("# mine\nmaxclients = 8 # few\ntimeout = 1\n"),
            "{rewritten}"
        );
        assert_eq!(read(&rewritten), Ok(configuration));
    }
}
