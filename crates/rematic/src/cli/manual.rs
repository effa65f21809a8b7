//! The verbs `completions` and `man`.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Failure;
use super::arguments::{Arguments, ManArguments};
use crate::{BUILTIN, Devices, Error};

/// The command's name on the command line.
const NAME: &str = "rematic";

/// What a shell reads to complete the command's arguments.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_names(Arguments::command()), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The command with the names of models and devices as values; beside them there are files.
fn with_names(command: Command) -> Command {
    // clap wants names that last; the process ends when they are printed.
    let devices: Vec<&'static str> =
        Devices::builtin().all().iter().map(|device| &*device.name.clone().leak()).collect();
    let models: Vec<&str> = BUILTIN.iter().map(|model| model.name).collect();
    let verbs: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs.iter().fold(command, |command, verb| {
        command.mut_subcommand(verb, |verb| {
            verb.mut_args(|argument| match argument.get_id().as_str() {
                "device" => argument.value_parser(PossibleValuesParser::new(devices.clone())),
                "source" | "against" => argument.value_parser(PossibleValuesParser::new(models.clone())),
                _ => argument,
            })
        })
    })
}

/// One manual page, or the names of all that were written.
pub(crate) fn man(arguments: &ManArguments) -> Result<String, Failure> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    if let Some(directory) = &arguments.output {
        let failed = |source| Error::Manual { path: directory.clone(), source };
        let mut written = String::new();
        for command in std::iter::once(&command).chain(command.get_subcommands()) {
            let (name, text) = page(command).map_err(failed)?;
            std::fs::write(directory.join(&name), text).map_err(failed)?;
            written += &format!("{}\n", directory.join(name).display());
        }
        return Ok(written);
    }
    let asked = match &arguments.verb {
        None => &command,
        Some(verb) => command.find_subcommand(verb).ok_or_else(|| Error::NoVerb {
            found: verb.clone(),
            known: command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect(),
        })?,
    };
    let (_, text) = page(asked).map_err(Failure::Output)?;
    Ok(text)
}

/// A file's name, and a page in roff.
fn page(command: &Command) -> std::io::Result<(String, String)> {
    let man = Man::new(command.clone()).source(concat!("rematic ", env!("CARGO_PKG_VERSION"))).manual("Rematic");
    let mut text = Vec::new();
    man.render(&mut text)?;
    Ok((man.get_filename(), String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbs() -> Vec<Command> {
        Arguments::command().get_subcommands().cloned().collect()
    }

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_example_that_is_understood() {
        for verb in verbs() {
            let name = verb.get_name().to_owned();
            let help = verb.clone().render_long_help().to_string();
            let example = help.lines().find_map(|line| line.strip_prefix("Example: "));
            let example = example.unwrap_or_else(|| panic!("{name} has no Example:\n{help}"));
            let words: Vec<&str> = example.split_whitespace().take_while(|word| ![">", "|"].contains(word)).collect();
            assert_eq!(words[..2], [NAME, &name], "{example}");
            if let Err(error) = Arguments::command().try_get_matches_from(&words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn completions_know_every_verb() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let script = completions(shell);
            for verb in verbs() {
                assert!(script.contains(verb.get_name()), "{shell}: {}", verb.get_name());
            }
        }
        let bash = completions(Shell::Bash);
        for verb in verbs() {
            assert!(bash.contains(&format!("{NAME},{})", verb.get_name())), "{}", verb.get_name());
        }
    }

    #[test]
    fn every_verb_has_a_page() {
        for verb in verbs() {
            let name = verb.get_name().to_owned();
            let text = man(&ManArguments { verb: Some(name.clone()), output: None }).unwrap();
            assert!(text.contains(".SH SYNOPSIS") && text.contains("Example: "), "{name}:\n{text}");
            assert!(text.contains(&format!("rematic\\-{name}")) || text.contains(&format!("rematic-{name}")), "{text}");
        }
        let error = man(&ManArguments { verb: Some("fly".to_owned()), output: None }).unwrap_err().to_string();
        assert!(error.contains("there is no verb `fly`") && error.contains("stats, explain, plan"), "{error}");
    }
}
