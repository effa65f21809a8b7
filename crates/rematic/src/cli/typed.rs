//! Commands as somebody types them.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};

use super::arguments::Arguments;

/// What a plan's command does not take from another verb: the budget is said anew, and where the answer goes is the other's.
const OWN: [&str; 3] = ["budget", "output", "json"];

/// A word of a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-/+:=,@%".contains(character);
    let is_one = !word.is_empty() && word.chars().all(is_plain);
    if is_one { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The command that plans what another verb was asked for, but for the budget.
pub(crate) fn plan_command(matches: &ArgMatches) -> Option<String> {
    let (name, given) = matches.subcommand()?;
    let command = Arguments::command();
    let plan = command.find_subcommand("plan")?;
    let is_known = |option: &&Arg| plan.get_arguments().any(|known| known.get_id() == option.get_id());
    let is_given = |option: &&Arg| {
        let id = option.get_id().as_str();
        !OWN.contains(&id) && given.value_source(id) == Some(ValueSource::CommandLine)
    };
    let mut words = "rematic plan".to_owned();
    for option in command.find_subcommand(name)?.get_arguments().filter(is_known).filter(is_given) {
        let values = given.get_raw(option.get_id().as_str()).into_iter().flatten();
        for value in values.map(|value| quoted(&value.to_string_lossy())) {
            match option.get_long() {
                None => words += &format!(" {value}"),
                Some(long) if option.get_action().takes_values() => words += &format!(" --{long} {value}"),
                Some(long) => words += &format!(" --{long}"),
            }
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(words: &str) -> String {
        plan_command(&Arguments::command().try_get_matches_from(words.split(' ')).unwrap()).unwrap()
    }

    #[test]
    fn what_was_asked_for_is_planned() {
        let report =
            "rematic report gpt2 --batch 2 --budget 1GiB -o x.html --csv y --whole --only *.mlp --only h --json -q";
        assert_eq!(planned(report), "rematic plan gpt2 --batch 2 --only '*.mlp' --only h --whole");
        assert_eq!(planned("rematic report --device h100 gpt2"), "rematic plan gpt2 --device h100");
    }

    #[test]
    fn words_of_a_shell_are_quoted_where_they_must_be() {
        assert_eq!(["llama-3-8b", "a b", "it's", ""].map(quoted), ["llama-3-8b", "'a b'", r"'it'\''s'", "''"]);
    }
}
