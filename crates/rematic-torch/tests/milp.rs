//! The planner `milp` against what torch 2.15's `sac_milp` says, and by hand.

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::models::{Model, Options};
use rematic_replay::{Allocator, Timeline};
use rematic_torch::{
    GraphModule, GraphTradeoff, MilpMethod, MilpOptions, MilpOutcome, MilpPlan, ModuleGraph, StepStats, TorchError,
    Tradeoffs, milp,
};
use rematic_trace::{Bytes, Millis};

/// As the oracle sees it: memory in CUDA's blocks, but operators' outputs unrounded, because they are on meta.
fn graph(options: &Options) -> ModuleGraph {
    let trace = Model::builtin("seed-transformer").unwrap().with(options).unwrap().trace().unwrap();
    let costs = Costs::new(&trace, &Device::find("a100-80").unwrap(), CostRule::Torch).unwrap();
    let stats = StepStats::new(&trace, &Timeline::replay(&trace, Allocator::Cuda), &costs);
    ModuleGraph::new(&trace, &stats, &Tradeoffs::new(&trace, &costs, Allocator::Cpu).unwrap())
}

fn seed(budget: &str) -> MilpOutcome {
    let options = MilpOptions { world_size: 4, ..MilpOptions::new(budget.parse().unwrap()) };
    milp(&graph(&Options::default()), &options).unwrap()
}

fn planned(outcome: MilpOutcome) -> MilpPlan {
    match outcome {
        MilpOutcome::Planned(plan) => plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn at_1_6_gib_the_seed_transformer_checkpoints_what_torch_does() {
    let plan = planned(seed("1.6GiB"));
    let names: Vec<&str> = plan.choices.iter().map(|choice| choice.fqn.as_str()).collect();
    assert_eq!(names, [0, 1, 2, 3].map(|layer| format!("Transformer.layers.{layer}")));
    let mut discards: Vec<f64> = plan.choices.iter().map(|choice| choice.discard).collect();
    discards.sort_by(f64::total_cmp);
    for (discard, torchs) in discards.iter().zip([0.5225, 0.5225, 0.5225, 0.7983]) {
        assert!((discard - torchs).abs() <= 0.01, "{discards:?}");
    }
    assert!((plan.recompute.0 / 6.92 - 1.0).abs() <= 0.01, "{}", plan.recompute);
    assert_eq!(plan.lower_bound, plan.recompute);
    assert!(plan.peak <= Bytes(1_717_986_918), "{}", plan.peak);
}

#[test]
fn at_2_4_gib_it_fits() {
    let outcome = seed("2.4GiB");
    assert!(matches!(outcome, MilpOutcome::Fits { peak } if peak < Bytes(2_576_980_378)), "{outcome:?}");
}

#[test]
fn at_0_8_gib_nothing_helps() {
    let MilpOutcome::Infeasible { least_budget, module } = seed("0.8GiB") else { panic!() };
    assert_eq!(graph(&Options::default()).modules[module].fqn, "Transformer");
    // That budget can be met, and one byte less cannot.
    let at =
        |budget| milp(&graph(&Options::default()), &MilpOptions { world_size: 4, ..MilpOptions::new(budget) }).unwrap();
    assert_eq!(planned(at(least_budget)).peak, least_budget);
    assert_eq!(at(Bytes(least_budget.0 - 1)), MilpOutcome::Infeasible { least_budget, module });
}

/// Two layers in a root. Either layer can save 100 of its 120 bytes; the root as much as both.
fn two_layers() -> ModuleGraph {
    let module = |fqn: &str, parent, pos_fw_post_order, act_total, savable, time| GraphModule {
        fqn: fqn.to_owned(),
        parent,
        pos_fw_post_order,
        grad_total: Bytes(0),
        act_fw_per_module: Bytes(savable),
        act_grad_per_module: 0,
        act_total: Bytes(act_total),
        tradeoff: Some(GraphTradeoff {
            sac_memory: Bytes(savable * 6 / 5),
            sac_runtime: Millis(time),
            slopes: vec![0.5, 2.0],
            intercepts: vec![0.0, -1.0],
        }),
    };
    ModuleGraph {
        parameters: Bytes(40),
        modules: vec![
            module("root", None, 2, 250, 200, 25.0),
            module("root.0", Some(0), 0, 100, 100, 10.0),
            module("root.1", Some(0), 1, 250, 100, 12.0),
        ],
    }
}

#[test]
fn by_hand() {
    let run = |budget| milp(&two_layers(), &MilpOptions::new(Bytes(budget))).unwrap();
    assert_eq!(run(290), MilpOutcome::Fits { peak: Bytes(290) });
    // Ten bytes too many at the top: only layer 0 has returned by then. r = (10 + 20)/120, so 10 ms · 0.5 · r.
    let plan = planned(run(280));
    assert_eq!((plan.choices.len(), plan.choices[0].module, plan.peak), (1, 1, Bytes(280)));
    assert!((plan.recompute.0 - 1.25).abs() < 1e-9, "{plan:?}");
    // All that layer 0 has: r = 1 on the second line.
    let plan = planned(run(190));
    assert!((plan.recompute.0 - 10.0).abs() < 1e-9, "{plan:?}");
    assert_eq!(run(189), MilpOutcome::Infeasible { least_budget: Bytes(190), module: 2 });
}

/// The chain and the general solver agree; the graphs of `tests/milp_check.py` go further.
#[test]
fn both_methods_agree() {
    for budget in 190..290 {
        let options = MilpOptions::new(Bytes(budget));
        let chain = planned(milp(&two_layers(), &options).unwrap());
        let options = MilpOptions { method: MilpMethod::General, ..options };
        let general = planned(milp(&two_layers(), &options).unwrap());
        assert!((chain.recompute.0 - general.recompute.0).abs() < 1e-6, "{budget}: {chain:?}, {general:?}");
    }
}

/// Layer 1 does not run in the first call of the module that holds it, and returns after it.
#[test]
fn modules_that_do_not_nest_are_planned_by_the_general_solver() {
    let mut graph = two_layers();
    graph.modules[0].pos_fw_post_order = 1;
    graph.modules[0].act_total = Bytes(100);
    graph.modules[2].pos_fw_post_order = 2;
    let plan = planned(milp(&graph, &MilpOptions::new(Bytes(280))).unwrap());
    // The root returns before layer 1 now, and could save too; but layer 0 is cheaper.
    assert_eq!(plan.choices[0].module, 1);
    assert!((plan.recompute.0 - 1.25).abs() < 1e-6, "{plan:?}");
}

/// Activations cannot become negative: at layer 1 only 3 bytes are left to save, however cheap layer 0 is.
#[test]
fn no_more_is_saved_than_is_there() {
    let mut graph = two_layers();
    graph.modules[2].act_total = Bytes(3);
    let options = |budget| MilpOptions::new(Bytes(budget));
    let plan = planned(milp(&graph, &options(287)).unwrap());
    assert_eq!(plan.choices[0].saved, Bytes(3));
    let plan = planned(milp(&graph, &options(280)).unwrap());
    // Three bytes of layer 0 and the rest of layer 1 would cost two fixed prices.
    assert_eq!((plan.choices.len(), plan.choices[0].module), (1, 2), "{plan:?}");
    assert_eq!((plan.choices[0].saved, plan.peak), (Bytes(10), Bytes(280)), "{plan:?}");
}

#[test]
fn units_are_respected() {
    let options = |ac: Option<&[&str]>, fsdp: &[&str]| MilpOptions {
        ac_units: ac.map(|units| units.iter().map(ToString::to_string).collect()),
        fsdp_units: fsdp.iter().map(ToString::to_string).collect(),
        ..MilpOptions::new(Bytes(280))
    };
    let outcome = milp(&two_layers(), &options(Some(&["root.1"]), &[])).unwrap();
    assert!(matches!(outcome, MilpOutcome::Infeasible { .. }), "{outcome:?}");
    // None may be checkpointed: the least budget is the peak as it is.
    let outcome = milp(&two_layers(), &options(Some(&[]), &[])).unwrap();
    assert!(matches!(outcome, MilpOutcome::Infeasible { least_budget: Bytes(290), .. }), "{outcome:?}");
    assert!(matches!(milp(&two_layers(), &options(Some(&["root.0"]), &["root.0"])), Ok(MilpOutcome::Planned(_))));
    let error = milp(&two_layers(), &options(None, &["root.9"])).unwrap_err().to_string();
    assert!(error.starts_with("fsdp_units names `root.9`, but no module of that name"), "{error}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let error = milp(&two_layers(), &MilpOptions { world_size: 0, ..MilpOptions::new(Bytes(1)) }).unwrap_err();
    assert_eq!(error.to_string(), "world_size is 0; give at least 1");
    let error = milp(&two_layers(), &MilpOptions { gap: f64::NAN, ..MilpOptions::new(Bytes(1)) }).unwrap_err();
    assert_eq!(error.to_string(), "gap is NaN; give a number from 0 to below 1");
    let mut graph = two_layers();
    graph.modules[1].parent = Some(2);
    let error = milp(&graph, &MilpOptions::new(Bytes(1))).unwrap_err();
    assert!(matches!(error, TorchError::Graph { index: 1, .. }), "{error}");
}

#[test]
fn more_budget_never_costs_more_time() {
    let graph = graph(&Options::default());
    let mut last = f64::INFINITY;
    for tenths in 11..=24 {
        let options = MilpOptions { world_size: 4, ..MilpOptions::new(Bytes((tenths << 30) / 10)) };
        let time = match milp(&graph, &options).unwrap() {
            MilpOutcome::Fits { .. } => 0.0,
            MilpOutcome::Planned(plan) => plan.recompute.0,
            MilpOutcome::Infeasible { .. } => f64::INFINITY,
        };
        assert!(time <= last * (1.0 + 1e-9), "{tenths}: {time} after {last}");
        last = time;
    }
    assert_eq!(last, 0.0);
}
