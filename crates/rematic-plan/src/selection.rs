//! Which regions a user's patterns leave: the same for every planner.

use rematic_replay::{Region, RegionId, Regions, long_chains};
use rematic_trace::{ModuleId, Opt, StepTrace, Table, any_layer};
use wildmatch::WildMatch;

use crate::{Limits, PlanError};

/// The most names that an error lists.
const NAMES: usize = 18;

/// For each region, whether it may be checkpointed: a run if each of its modules may.
///
/// # Errors
/// If nothing matches a pattern.
pub(crate) fn allowed(
    trace: &StepTrace,
    regions: &Regions,
    limits: &Limits,
) -> Result<Table<RegionId, bool>, PlanError> {
    if limits.only.is_empty() && limits.never.is_empty() {
        return Ok(regions.all().filled(true));
    }
    let modules = modules(trace, regions, limits);
    let paths: Vec<String> = modules.iter().map(|module| trace.path(*module)).collect();
    let matching = |setting: Opt, patterns: &[String]| {
        let mut matching = vec![false; paths.len()];
        for pattern in patterns {
            let glob = WildMatch::new(pattern);
            let mut found = false;
            for (matching, path) in matching.iter_mut().zip(&paths) {
                if matches(&glob, path) {
                    (*matching, found) = (true, true);
                }
            }
            if !found {
                return Err(PlanError::NoMatch { setting, pattern: pattern.clone(), known: known(&paths) });
            }
        }
        Ok(matching)
    };
    let only = matching(Opt("only"), &limits.only)?;
    let never = matching(Opt("never"), &limits.never)?;
    let mut is_allowed = trace.modules().filled(false);
    for (at, module) in modules.into_iter().enumerate() {
        is_allowed[module] = (limits.only.is_empty() || only[at]) && !never[at];
    }
    let all = |region: &Region| region.calls().all(|call| is_allowed[trace.call(call).module]);
    Ok(regions.all().iter().map(all).collect())
}

/// The modules that can be checkpointed by themselves, and behind them those that can in a run.
fn modules(trace: &StepTrace, regions: &Regions, limits: &Limits) -> Vec<ModuleId> {
    let mut seen = trace.modules().filled(false);
    let mut modules = Vec::new();
    let singles = regions.all().iter().filter(|region| region.then.is_empty()).map(|region| region.module);
    let chains = if limits.runs { long_chains(trace) } else { Vec::new() };
    let in_runs = chains.iter().flatten().map(|call| trace.call(*call).module);
    let in_tiles = regions.all().iter().flat_map(Region::calls).map(|call| trace.call(call).module);
    for module in singles.chain(in_runs).chain(in_tiles) {
        if !std::mem::replace(&mut seen[module], true) {
            modules.push(module);
        }
    }
    modules
}

/// Whether a pattern means a module: by its full name, or by the name without the root's that reports show.
fn matches(glob: &WildMatch, path: &str) -> bool {
    glob.matches(path) || path.split_once('.').is_some_and(|(_, inner)| glob.matches(inner))
}

/// A list of what there is, in the order of the model, equal layers once.
fn known(paths: &[String]) -> String {
    let mut names: Vec<(String, usize)> = Vec::new();
    for path in paths {
        let name = any_layer(path);
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => names.push((name, 1)),
        }
    }
    if names.is_empty() {
        return "no module of this step can be".to_owned();
    }
    let mut lines = vec!["these can be:".to_owned()];
    for (name, count) in names.iter().take(NAMES) {
        lines.push(if *count > 1 { format!("  {name}  {count}×") } else { format!("  {name}") });
    }
    if names.len() > NAMES {
        lines.push(format!("  and {} more", names.len() - NAMES));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_full_names_and_those_that_reports_show() {
        let matches = |pattern: &str, path: &str| matches(&WildMatch::new(pattern), path);
        assert!(matches("Model.layers.*", "Model.layers.0.mlp"));
        assert!(matches("layers.?", "Model.layers.0"));
        assert!(matches("*.mlp", "Model.layers.0.mlp"));
        assert!(matches("Model", "Model"));
        assert!(!matches("layers", "Model.layers.0"));
        assert!(!matches("", "Model"));
        assert!(!matches("0", "Model.layers.0"));
    }

    #[test]
    fn a_long_list_is_cut() {
        let paths: Vec<String> = (0..25).map(|index| format!("Model.part{index}")).collect();
        let list = known(&paths);
        assert_eq!(list.lines().count(), NAMES + 2, "{list}");
        assert!(list.ends_with("\n  part17\n  and 7 more"), "{list}");
        assert_eq!(known(&["M.layers.0", "M.layers.1"].map(String::from)), "these can be:\n  layers.*  2×");
        assert_eq!(known(&[]), "no module of this step can be");
    }
}
