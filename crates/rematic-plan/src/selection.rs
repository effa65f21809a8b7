//! Which regions a user's patterns leave: the same for every planner.

use rematic_replay::{RegionId, Regions};
use rematic_trace::{Opt, StepTrace, Table, any_layer};
use wildmatch::WildMatch;

use crate::{Limits, PlanError};

/// The most names that an error lists.
const NAMES: usize = 18;

/// For each region, whether it may be checkpointed.
///
/// # Errors
/// If nothing matches a pattern.
pub(crate) fn allowed(
    trace: &StepTrace,
    regions: &Regions,
    limits: &Limits,
) -> Result<Table<RegionId, bool>, PlanError> {
    let paths: Vec<String> = regions.all().iter().map(|region| trace.path(region.module)).collect();
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
    Ok((0..paths.len()).map(|region| (limits.only.is_empty() || only[region]) && !never[region]).collect())
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
