//! Patterns that say which modules may be checkpointed.

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::Model;
use rematic_plan::{Limits, Problem};

/// The same patterns mean the same modules to every planner.
#[test]
fn patterns_choose_modules() {
    let trace = Model::builtin("seed-transformer").unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("a100-80").unwrap(), CostRule::Torch).unwrap();
    let of = |only: &[&str], never: &[&str]| {
        let patterns = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let limits = Limits { only: patterns(only), never: patterns(never), ..Limits::default() };
        Problem::new(trace.clone(), costs.clone(), limits).map(|problem| problem.checkpointable())
    };
    assert_eq!(of(&[], &[]).unwrap().len(), 13);
    assert_eq!(of(&["layers.?"], &["*.0", "*.3"]).unwrap(), ["Transformer.layers.1", "Transformer.layers.2"]);
    assert_eq!(of(&["Transformer"], &[]).unwrap(), ["Transformer"]);
    assert_eq!(of(&[], &["*"]).unwrap(), [""; 0]);
    let error = of(&["layers.*", "layer.*"], &[]).unwrap_err().to_string();
    assert!(error.starts_with("--only layer.* matches no module that can be checkpointed; these can be:\n"), "{error}");
    // Behind them, what can be in a run.
    let known =
        "\n  layers.*  4×\n  layers.*.attention  4×\n  layers.*.feed_forward  4×\n  layers.*.feed_forward.w1  4×\n";
    assert!(error.contains(known), "{error}");
    let error = of(&[], &["LAYERS.*"]).unwrap_err().to_string();
    assert!(error.starts_with("--never LAYERS.* matches"), "{error}");
}
