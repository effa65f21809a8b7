//! From the controls of the page to the command that asks the same: it is parsed as if somebody had typed it, so that what is
//! shown, what is copied and what is answered are one.

use std::path::Path;

use clap::{CommandFactory, Parser};
use serde_json::Value;

use crate::cli::arguments::{Arguments, PlanArguments, Verb};
use crate::cli::typed::quoted;
use crate::{BUILTIN, Bytes, Devices, Error, ExploreChoice, ExplorePage, Options, Source, options};

/// Options whose values are words: the page offers what the command takes.
const NAMED: [&str; 3] = ["precision", "optimizer", "reshard"];
/// Options that are passed on as they are.
const PASSED: [&str; 6] = ["batch", "seq", "precision", "optimizer", "device", "budget"];
/// Where the best choice depends on the budget, so that there is no one step for all of them.
const CHOSEN: &str = "auto";

/// What can be asked for.
pub(super) struct Catalog {
    models: Vec<ExploreChoice>,
    devices: Vec<ExploreChoice>,
}

impl Catalog {
    /// The built-in models, the source before them, and the devices.
    ///
    /// # Errors
    /// If the source is a trace that cannot be read.
    pub(super) fn new(name: &str, source: &Source, devices: &Devices) -> Result<Self, Error> {
        let without = match source {
            Source::Trace(_) => fixed_by(source.clone())?,
            Source::Foreign(_) => vec![("tp", "The model is captured as it is, on one GPU.".to_owned())],
            Source::Model(_) => Vec::new(),
        };
        let known = |name: &str| BUILTIN.iter().find(|model| model.name == name);
        let help = known(name).map_or("the source that was given", |model| model.description).to_owned();
        let first = ExploreChoice { name: name.to_owned(), help, without };
        let others =
            BUILTIN.iter().filter(|model| model.name != name).map(|model| choice(model.name, model.description));
        let device = |device: &crate::Device| choice(&device.name, &device.product);
        Ok(Catalog {
            models: std::iter::once(first).chain(others).collect(),
            devices: devices.all().iter().map(device).collect(),
        })
    }

    /// What the page offers.
    pub(super) fn page(&self) -> ExplorePage {
        let command = Arguments::command();
        let plan = command.find_subcommand("plan");
        let values = |name: &str| {
            let option = plan?.get_arguments().find(|option| option.get_id() == name)?;
            let value = |value: &clap::builder::PossibleValue| {
                choice(value.get_name(), &value.get_help().map(ToString::to_string).unwrap_or_default())
            };
            Some(option.get_possible_values().iter().map(value).collect())
        };
        ExplorePage {
            models: self.models.clone(),
            devices: self.devices.clone(),
            device: options::DEVICE,
            named: NAMED.map(|name| (name, values(name).unwrap_or_default())).to_vec(),
        }
    }

    fn offers_model(&self, name: &str) -> bool {
        self.models.iter().any(|model| model.name == name)
    }
}

fn choice(name: &str, help: &str) -> ExploreChoice {
    ExploreChoice { name: name.to_owned(), help: help.to_owned(), without: Vec::new() }
}

/// The controls that a captured step leaves nothing to choose of.
fn fixed_by(source: Source) -> Result<Vec<(&'static str, String)>, Error> {
    let trace = source.trace(&Options::default())?;
    let captured = ["batch", "seq", "precision", "optimizer", "tp"];
    let mut fixed: Vec<(&'static str, String)> =
        captured.map(|name| (name, "The captured step has its own.".to_owned())).to_vec();
    if let Some(ranks) = trace.place.ranks().filter(|ranks| *ranks > 1) {
        for name in ["gpus", "replicate", "reshard"] {
            fixed.push((name, format!("The captured step is that of one of {ranks} GPUs.")));
        }
    }
    Ok(fixed)
}

/// A question, as the command line has it.
pub(super) struct Question {
    /// Which part of the answer is wanted.
    pub(super) stage: Stage,
    /// Who asks: each page that is open has questions of its own.
    pub(super) tab: String,
    /// Which of its questions it is.
    pub(super) number: u64,
    /// The command, to be copied.
    pub(super) command: String,
    /// Its name without the budget: the same step.
    pub(super) step: String,
    /// What is asked.
    pub(super) arguments: PlanArguments,
    /// The same for the step as it is, before it is chosen which weights stay.
    pub(super) plain: PlanArguments,
}

/// Parts of an answer, the quickest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The step as it is.
    Step,
    /// With a plan that is found quickly.
    Draft,
    /// With the best plan.
    Plan,
    /// With plans for other budgets.
    Curve,
}

impl Stage {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "step" => Stage::Step,
            "draft" => Stage::Draft,
            "plan" => Stage::Plan,
            "curve" => Stage::Curve,
            _ => return None,
        })
    }
}

impl Question {
    /// Reads what the page sends.
    ///
    /// # Errors
    /// In words, if the controls ask for what there is not.
    pub(super) fn read(body: &str, catalog: &Catalog, device_file: Option<&Path>) -> Result<Self, String> {
        let unknown = || "this is not a question of this page; load it again".to_owned();
        let sent: Value = serde_json::from_str(body).map_err(|_| unknown())?;
        let text = |name: &str| sent[name].as_str();
        let stage = text("stage").and_then(Stage::named).ok_or_else(unknown)?;
        let (tab, number) = text("tab").zip(sent["number"].as_u64()).ok_or_else(unknown)?;
        let control = |name: &str| sent["controls"][name].as_str().filter(|value| !value.is_empty());
        let model = control("model").filter(|model| catalog.offers_model(model)).ok_or_else(unknown)?;
        let mut given: Vec<(&str, String)> = PASSED
            .iter()
            .filter_map(|name| control(name).map(|value| (*name, value.to_owned())))
            .filter(|(name, value)| *name != "device" || value != options::DEVICE)
            .collect();
        let layout = Layout::read(control)?;
        given.extend(layout.options());
        if let Some(file) = device_file {
            given.push(("device-file", file.display().to_string()));
        }
        let is_chosen = given.iter().any(|(name, value)| *name == "reshard" && value == CHOSEN);
        let plain: Vec<(&str, String)> =
            given.iter().filter(|(name, _)| !is_chosen || *name != "reshard").cloned().collect();
        let without_budget: Vec<_> = given.iter().filter(|(name, _)| *name != "budget").cloned().collect();
        let arguments = parsed(model, &given)?;
        if arguments.budget == Some(Bytes(0)) {
            return Err(Error::NoBudget { found: Bytes(0) }.to_string());
        }
        Ok(Question {
            stage,
            tab: tab.to_owned(),
            number,
            command: command(model, &given),
            step: command(model, &without_budget),
            arguments,
            plain: parsed(model, &plain)?,
        })
    }
}

/// How the GPUs share the work: so many in all, of which so many share each layer, and so many copies of the model.
struct Layout<'a> {
    shards: u32,
    tp: u32,
    copies: u32,
    reshard: Option<&'a str>,
}

impl<'a> Layout<'a> {
    fn read(control: impl Fn(&str) -> Option<&'a str>) -> Result<Self, String> {
        let number = |name: &str, label: &str| match control(name) {
            None => Ok(1),
            Some(text) => text.trim().parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(|| {
                format!("{label}: `{text}` is not a number of GPUs; give a whole number from 1 to {}", u32::MAX)
            }),
        };
        let (gpus, tp, copies) =
            (number("gpus", "GPUs")?, number("tp", "Tensor parallel")?, number("replicate", "Copies")?);
        if gpus == 1 {
            return Ok(Layout { shards: 1, tp: 1, copies: 1, reshard: None });
        }
        let shards = |tp: u32, copies: u32| {
            let parts = tp.checked_mul(copies)?;
            gpus.is_multiple_of(parts).then_some(gpus / parts)
        };
        let Some(shards) = shards(tp, copies) else {
            let parts = match (tp, copies) {
                (tp, 1) => format!("groups of {tp} for tensor parallelism"),
                (1, copies) => format!("{copies} copies of the model"),
                (tp, copies) => format!("{copies} copies of the model with groups of {tp} for tensor parallelism"),
            };
            return Err(format!(
                "{gpus} GPUs cannot be divided evenly into {parts}; choose numbers whose product divides {gpus}"
            ));
        };
        if shards == 1 && copies > 1 {
            return Err(format!(
                "{copies} copies on {gpus} GPUs leave no GPUs to share a copy, and only FSDP makes copies here; choose fewer copies"
            ));
        }
        Ok(Layout { shards, tp, copies, reshard: control("reshard") })
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let several = [("tp", self.tp), ("fsdp", self.shards), ("replicate", self.copies)];
        let mut options: Vec<(&'static str, String)> = several
            .iter()
            .filter(|(_, number)| *number > 1)
            .map(|(name, number)| (*name, number.to_string()))
            .collect();
        options.extend(self.reshard.filter(|_| self.shards > 1).map(|reshard| ("reshard", reshard.to_owned())));
        options
    }
}

/// What to type.
fn command(model: &str, given: &[(&str, String)]) -> String {
    let options = given.iter().map(|(name, value)| format!(" --{name} {}", quoted(value)));
    format!("rematic plan {}{}", quoted(model), options.collect::<String>())
}

/// The command's own words for what it does not take, without the hints for a terminal.
fn parsed(model: &str, given: &[(&str, String)]) -> Result<PlanArguments, String> {
    let start = ["rematic", "plan"].map(str::to_owned);
    let options = given.iter().map(|(name, value)| format!("--{name}={value}"));
    let words = start.into_iter().chain(options).chain(["--".to_owned(), model.to_owned()]);
    match Arguments::try_parse_from(words) {
        Ok(Arguments { verb: Verb::Plan(arguments), .. }) => Ok(arguments),
        Ok(_) => Err("this is not a question of this page; load it again".to_owned()),
        Err(usage) => {
            let text = usage.to_string();
            let said = text.split("\n\nUsage:").next().unwrap_or(&text).split("\n\nFor more information").next();
            Err(said.unwrap_or(&text).trim_start_matches("error: ").trim().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(controls: &[(&str, &'static str)]) -> Result<String, String> {
        let control = |name: &str| controls.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        Ok(command("m", &Layout::read(control)?.options()))
    }

    #[test]
    fn gpus_are_shared_out() {
        assert_eq!(layout(&[]).unwrap(), "rematic plan m");
        assert_eq!(layout(&[("gpus", "8")]).unwrap(), "rematic plan m --fsdp 8");
        assert_eq!(layout(&[("gpus", "8"), ("tp", "8"), ("reshard", "no")]).unwrap(), "rematic plan m --tp 8");
        let all = [("gpus", "16"), ("tp", "2"), ("replicate", "2"), ("reshard", "no")];
        assert_eq!(layout(&all).unwrap(), "rematic plan m --tp 2 --fsdp 4 --replicate 2 --reshard no");
        assert_eq!(layout(&[("gpus", "1"), ("tp", "4")]).unwrap(), "rematic plan m");
    }

    #[test]
    fn what_cannot_be_shared_out_is_said_in_words() {
        let said = |controls: &[(&str, &'static str)]| layout(controls).unwrap_err();
        let uneven = "8 GPUs cannot be divided evenly into groups of 3 for tensor parallelism; choose numbers whose product divides 8";
        assert_eq!(said(&[("gpus", "8"), ("tp", "3")]), uneven);
        assert!(said(&[("gpus", "8"), ("replicate", "3")]).contains("into 3 copies of the model;"));
        assert!(
            said(&[("gpus", "8"), ("replicate", "8")]).starts_with("8 copies on 8 GPUs leave no GPUs to share a copy")
        );
        assert!(said(&[("gpus", "8"), ("tp", "65536"), ("replicate", "65536")]).contains("cannot be divided"));
        for wrong in ["0", "-1", "1.5", "many", "99999999999"] {
            assert!(
                said(&[("gpus", wrong)]).starts_with(&format!("GPUs: `{wrong}` is not a number of GPUs")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_page_offers_what_the_command_takes() {
        let source = Source::open("gpt2").unwrap();
        let page = Catalog::new("gpt2", &source, &Devices::builtin()).unwrap().page();
        assert_eq!(page.models[0].name, "gpt2");
        assert_eq!(page.models.len(), BUILTIN.len());
        for (name, values) in &page.named {
            assert!(values.len() > 1, "{name}");
        }
    }

    #[test]
    fn errors_are_the_commands_without_its_hints() {
        let said = parsed("gpt2", &[("budget", "much".to_owned())]).err().unwrap();
        assert!(said.starts_with("invalid value 'much' for '--budget <SIZE>': "), "{said}");
        assert!(!said.contains("--help"), "{said}");
        assert!(parsed("gpt2", &[("batch", "--json".to_owned())]).is_err());
    }
}
