//! Measurements of `tests/allocator/scratch.py`, which says what their lines mean.

use rematic_trace::Layout;

/// What happens inside of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The largest of its outputs is made.
    Outputs,
    Take(u64),
    /// The block of the take of that number goes.
    Give(usize),
}

impl Step {
    pub(crate) fn listed(steps: &[Step]) -> String {
        let word = |step: &Step| match step {
            Step::Outputs => "o".to_owned(),
            Step::Take(bytes) => bytes.to_string(),
            Step::Give(number) => format!("-{number}"),
        };
        steps.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

/// One call.
pub(crate) struct Measured {
    pub(crate) capability: u32,
    pub(crate) processors: u32,
    pub(crate) operator: String,
    pub(crate) random: bool,
    pub(crate) backward: bool,
    pub(crate) inputs: Vec<Layout>,
    pub(crate) outputs: Vec<Layout>,
    pub(crate) steps: Vec<Step>,
    pub(crate) line: String,
}

impl Measured {
    /// What an operator does that takes nothing for itself.
    pub(crate) fn outputs_only(&self) -> Vec<Step> {
        if self.steps.contains(&Step::Outputs) { vec![Step::Outputs] } else { Vec::new() }
    }
}

pub(crate) fn read() -> Vec<Measured> {
    let path = std::env::var("REMATIC_SCRATCH")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scratch/measured.tsv.zst").to_owned());
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let bytes = if path.ends_with(".zst") { zstd::decode_all(&bytes[..]).expect("a zst file") } else { bytes };
    String::from_utf8(bytes).expect("text").lines().map(call).collect()
}

fn call(line: &str) -> Measured {
    let fields: Vec<&str> = line.split('\t').collect();
    let [card, operator, inputs, outputs, inside] = fields[..] else { panic!("{line}: five columns") };
    let (capability, processors) = card.split_once(' ').expect("capability and multiprocessors");
    let (operator, flag) = operator.split_once(' ').unwrap_or((operator, ""));
    let layouts = |text: &str| text.split_whitespace().map(layout).collect::<Vec<_>>();
    let outputs = layouts(outputs);
    let sizes: Vec<u64> = outputs.iter().map(|layout| layout.elements() * layout.dtype.size()).collect();
    Measured {
        capability: capability.parse().expect("a capability"),
        processors: processors.parse().expect("multiprocessors"),
        operator: operator.to_owned(),
        random: flag == "random",
        backward: flag == "backward",
        inputs: layouts(inputs),
        steps: steps(inside, &sizes),
        outputs,
        line: line.to_owned(),
    }
}

/// Outputs are one step, where the largest is made: the others are small.
fn steps(inside: &str, sizes: &[u64]) -> Vec<Step> {
    let largest = sizes.iter().enumerate().max_by_key(|(at, size)| (**size, std::cmp::Reverse(*at)));
    let largest = largest.map_or(0, |(at, _)| at);
    let mut steps = Vec::new();
    for word in inside.split_whitespace() {
        if let Some(number) = word.strip_prefix('o') {
            if number.parse() == Ok(largest) {
                steps.push(Step::Outputs);
            }
        } else if let Some(number) = word.strip_prefix('-') {
            steps.push(Step::Give(number.parse().expect("the number of a take")));
        } else {
            steps.push(Step::Take(word.parse().expect("bytes")));
        }
    }
    steps
}

/// `f32[2,3]`, or `f32[2,3]:[1,2]` with strides.
fn layout(text: &str) -> Layout {
    let (named, strides) = text.split_once(':').map_or((text, None), |(named, strides)| (named, Some(strides)));
    let (dtype, shape) = named.split_once('[').expect("a shape");
    let numbers = |list: &str| -> Vec<u64> {
        list.trim_matches(['[', ']'])
            .split(',')
            .filter(|each| !each.is_empty())
            .map(|each| each.parse().expect("a number"))
            .collect()
    };
    let mut layout = Layout::contiguous(dtype.parse().expect("a type"), &numbers(shape));
    if let Some(strides) = strides {
        layout.strides = numbers(strides);
    }
    layout
}
