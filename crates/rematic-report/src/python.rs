//! A plan as a Python file that applies it with torch alone.
//!
//! Names come from files of others. In the Python file they are printable ASCII with the escapes of string literals, in
//! comments too, so none of them can end a line or a string.

use std::collections::HashMap;
use std::fmt::Write;

use rematic_plan::{PlanDocument, PlannedRegion};
use rematic_trace::{Decision, Millis};

const HEAD: &str = include_str!("python/head.py");
const POLICIES: &str = include_str!("python/policies.py");
const FOLLOW: &str = include_str!("python/follow.py");
/// What puts back what a module finds around it, and sees what has changed: the package's own files, which need nothing but torch.
const SURROUNDINGS: [&str; 9] = [
    include_str!("../../../python/rematic/_apply/encoded.py"),
    include_str!("../../../python/rematic/_apply/places.py"),
    include_str!("../../../python/rematic/_model/settings.py"),
    include_str!("../../../python/rematic/_apply/spaces.py"),
    include_str!("../../../python/rematic/_apply/snapshot.py"),
    include_str!("../../../python/rematic/_apply/call.py"),
    include_str!("../../../python/rematic/_apply/runs.py"),
    include_str!("../../../python/rematic/_apply/weights.py"),
    include_str!("../../../python/rematic/_apply/hollow.py"),
];
const MISMATCH: &str = include_str!("python/mismatch.py");
/// The most characters of a line.
const WIDTH: usize = 120;
const INDENT: &str = "    ";

/// A Python file with a function `apply_plan(model)`, which needs nothing but torch.
#[must_use]
pub fn plan_python(plan: &PlanDocument) -> String {
    let [start, middle, end] = frame();
    let (about, decisions) = parts(plan);
    [start, about, middle, decisions, end].concat()
}

/// What the files of all plans have: before what is said about a plan, between that and its decisions, and behind them.
pub(crate) fn frame() -> [String; 3] {
    let end = "]\n".to_owned() + MISMATCH + &SURROUNDINGS.map(without_imports).concat() + FOLLOW;
    [HEAD.to_owned() + "\n", POLICIES.to_owned(), end]
}

/// What a plan's own file has: what is said about it, and its decisions.
pub(crate) fn parts(plan: &PlanDocument) -> (String, String) {
    let mut text = String::new();
    let mut policies: HashMap<Vec<(&str, Decision)>, usize> = HashMap::new();
    let mut places: HashMap<(usize, usize), usize> = HashMap::new();
    // Regions with one policy, in the order in which the policies come.
    let mut rows: Vec<(usize, usize, Vec<String>)> = Vec::new();
    // Runs with their policies.
    let mut runs: Vec<(usize, Vec<String>)> = Vec::new();
    for region in &plan.regions {
        let decisions = region.policy.iter().map(|op| (op.op.as_str(), op.decision)).collect();
        let next = policies.len();
        let policy = *policies.entry(decisions).or_insert(next);
        if policy == next {
            text += &policy_list(policy, region);
        }
        // The first part of a name is the model's class, which sharding changes.
        let path = |module: &str| literal(module.split_once('.').map_or("", |(_, path)| path));
        if !region.then.is_empty() {
            runs.push((policy, region.calls().map(|(module, call)| format!("({}, {call})", path(module))).collect()));
            continue;
        }
        let row = *places.entry((policy, region.call)).or_insert(rows.len());
        if row == rows.len() {
            rows.push((policy, region.call, Vec::new()));
        }
        rows[row].2.push(path(&region.module));
    }
    text += "\n# A policy, which call in one forward of the model, from 0, and of which modules.\nPLAN = [\n";
    for (policy, call, paths) in rows {
        let line = format!("{INDENT}(POLICY_{policy}, {call}, [{}]),\n", paths.join(", "));
        if line.len() <= WIDTH {
            text += &line;
        } else {
            let _ = writeln!(text, "{INDENT}(POLICY_{policy}, {call}, [\n{}{INDENT}]),", wrapped(&paths, 2));
        }
    }
    text += "]\n\n# A policy, and the calls that follow one another and are checkpointed as one: modules, and which call of each.\nRUNS = [\n";
    for (policy, calls) in runs {
        let _ = writeln!(text, "{INDENT}(POLICY_{policy}, [\n{}{INDENT}]),", wrapped(&calls, 2));
    }
    (about(plan), text)
}

/// A file of the package without its description and imports, which the emitted file has at its head.
fn without_imports(file: &str) -> String {
    let code = file.splitn(3, "\"\"\"").nth(2).unwrap_or_default();
    let mut is_open = false;
    let kept = code.lines().filter(|line| {
        let is_import = is_open || line.starts_with("import ") || line.starts_with("from ");
        is_open = is_import && (is_open || line.ends_with('(')) && !line.starts_with(')');
        !is_import
    });
    let text = kept.collect::<Vec<_>>().join("\n");
    format!("\n\n{}\n", text.trim())
}

/// What the plan is for, and what it promises.
fn about(plan: &PlanDocument) -> String {
    let ascii = |time: Millis| time.to_string().replace('µ', "u");
    let facts = plan.facts.iter().map(|(name, value)| format!(", {} {}", escaped(name), escaped(value)));
    format!(
        "# The step: {}{}\n# Peak: {} -> {} of {} ({} -> {} of {} bytes)\n\
         # Recomputing takes {} on top of {} on {}.\n",
        escaped(&plan.source),
        facts.collect::<String>(),
        plan.baseline_peak_bytes,
        plan.peak_bytes,
        plan.budget_bytes,
        plan.baseline_peak_bytes.0,
        plan.peak_bytes.0,
        plan.budget_bytes.0,
        ascii(plan.recompute_ms),
        ascii(plan.step_ms),
        escaped(&plan.device),
    )
}

fn policy_list(number: usize, region: &PlannedRegion) -> String {
    let mut text = format!("POLICY_{number} = [\n");
    for run in region.policy.chunk_by(|a, b| a.decision == b.decision) {
        let verb = run[0].decision.word();
        let names: Vec<String> = run.iter().map(|op| literal(&op.op)).collect();
        let line = format!("{INDENT}*{verb}({}),\n", names.join(", "));
        if line.len() <= WIDTH {
            text += &line;
        } else {
            let _ = writeln!(text, "{INDENT}*{verb}(\n{}{INDENT}),", wrapped(&names, 2));
        }
    }
    text + "]\n"
}

/// Items with commas, in lines of at most [`WIDTH`] where they fit one.
fn wrapped(items: &[String], depth: usize) -> String {
    let indent = INDENT.repeat(depth);
    let mut text = String::new();
    let mut width = WIDTH;
    for item in items {
        if width + item.len() + 2 > WIDTH {
            text += if text.is_empty() { "" } else { "\n" };
            text += &indent;
            width = indent.len();
        } else {
            text.push(' ');
            width += 1;
        }
        text += item;
        text.push(',');
        width += item.len() + 1;
    }
    text + "\n"
}

/// A Python string literal of printable ASCII.
fn literal(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// What stands between the quotes of a literal; in a comment, what cannot end it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        let code = u32::from(character);
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            ' '..='~' => escaped.push(character),
            '\0'..='\u{ff}' => escaped += &format!("\\x{code:02x}"),
            '\u{100}'..='\u{ffff}' => escaped += &format!("\\u{code:04x}"),
            _ => escaped += &format!("\\U{code:08x}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::{INDENT, WIDTH, literal, wrapped};

    #[test]
    fn literals_are_printable_ascii() {
        assert_eq!(literal("layers.0.mlp"), "\"layers.0.mlp\"");
        assert_eq!(literal("\"); import os #"), "\"\\\"); import os #\"");
        assert_eq!(literal("a\\"), "\"a\\\\\"");
        assert_eq!(literal("a\nb\r\u{c}\0"), "\"a\\x0ab\\x0d\\x0c\\x00\"");
        assert_eq!(literal("é\u{202e}\u{2028}🦀"), "\"\\xe9\\u202e\\u2028\\U0001f980\"");
    }

    #[test]
    fn lines_are_filled_up_to_the_width() {
        let names: Vec<String> = (0..100).map(|n| format!("\"layers.{n}\"")).collect();
        let text = wrapped(&names, 2);
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with(&INDENT.repeat(2))), "{text}");
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            names.iter().map(|n| format!("{n},")).collect::<Vec<_>>()
        );
        assert_eq!(text.lines().count(), 13);
        let long = "x".repeat(300);
        assert_eq!(wrapped(&[long.clone(), long.clone()], 1), format!("    {long},\n    {long},\n"));
    }
}
