use rematic_cost::{Costs, ModuleOrders, ModuleTimes};
use rematic_replay::{ModuleMemory, Timeline};
use rematic_trace::{Bytes, Category, Millis, ModuleId, StepTrace};
use serde::Serialize;

/// Memory and time of one module, under the names of torch's `ModStats`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleStats {
    /// Full name.
    pub fqn: String,
    /// Parameters of the module and everything in it.
    pub param_per_module: Bytes,
    /// Their gradients. Torch takes the parameters' size; so do we, because nothing is frozen in a native model.
    pub grad_per_module: Bytes,
    /// Gradients of parameters that exist when its backward begins.
    pub grad_total: Bytes,
    /// Activations that its forward leaves behind, without its output.
    pub act_fw_per_module: Bytes,
    /// All activations at the highest point of its backward.
    pub act_bw_per_module: Bytes,
    /// Growth of temporaries from the beginning to the highest point of its backward. Negative if the highest point
    /// comes after temporaries of its caller went.
    pub act_grad_per_module: i64,
    /// All activations when its forward returns.
    pub act_total: Bytes,
    /// Its positional inputs.
    pub input_per_module: Bytes,
    /// Its outputs.
    pub output_per_module: Bytes,
    /// Time of its forward.
    pub fw_runtime_per_module: Millis,
    /// Time of its backward.
    pub bw_runtime_per_module: Millis,
    /// Whether it has no children.
    pub is_leaf: bool,
    /// The module.
    #[serde(skip)]
    pub module: ModuleId,
}

/// The step as torch's planner sees it before it plans: its `get_peak_memory_runtime_baseline`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Baseline {
    /// Parameters, and the largest sum over the modules of gradients, activations and their gradients. Optimizer state
    /// is not in it.
    pub peak_bytes: Bytes,
    /// Forward and backward of the root module.
    pub compute_ms: Millis,
}

/// All modules that ran, in the order in which their forward first began.
#[derive(Clone, Debug, PartialEq)]
pub struct StepStats {
    /// The modules.
    pub modules: Vec<ModuleStats>,
    /// The baseline.
    pub baseline: Baseline,
    /// The order in which forwards and backwards begin and end; a module that runs twice is listed twice.
    pub orders: ModuleOrders,
}

impl StepStats {
    /// Joins the memory and the time of a step's modules.
    #[must_use]
    pub fn new(trace: &StepTrace, timeline: &Timeline, costs: &Costs) -> Self {
        let orders = ModuleOrders::new(trace);
        let times = ModuleTimes::new(trace, costs);
        let mut has_children = trace.modules().filled(false);
        for module in trace.modules() {
            if let Some(parent) = module.parent {
                has_children[parent] = true;
            }
        }
        let mut seen = trace.modules().filled(false);
        let mut modules = Vec::new();
        for &module in &orders.fw_pre {
            if std::mem::replace(&mut seen[module], true) {
                continue;
            }
            let Some(memory) = timeline.module(module) else { continue };
            modules.push(ModuleStats {
                fqn: trace.path(module),
                fw_runtime_per_module: times.forward()[module],
                bw_runtime_per_module: times.backward()[module],
                is_leaf: !has_children[module],
                module,
                ..memory_stats(memory, module)
            });
        }
        StepStats { baseline: baseline(&modules), modules, orders }
    }
}

fn memory_stats(memory: &ModuleMemory, module: ModuleId) -> ModuleStats {
    let (forward, backward) = (&memory.forward, &memory.backward);
    let of = |snapshot: &Option<rematic_replay::Snapshot>, category: Category| {
        snapshot.as_ref().map_or(Bytes(0), |snapshot| snapshot[category])
    };
    let left_behind = of(&forward.post, Category::Activation)
        .saturating_sub(of(&forward.pre, Category::Activation))
        .saturating_sub(memory.output_bytes);
    ModuleStats {
        fqn: String::new(),
        param_per_module: memory.parameter_bytes,
        grad_per_module: memory.parameter_bytes,
        grad_total: of(&backward.pre, Category::Gradient),
        act_fw_per_module: left_behind,
        act_bw_per_module: of(&backward.peak, Category::Activation),
        act_grad_per_module: of(&backward.peak, Category::Temp).0.cast_signed()
            - of(&backward.pre, Category::Temp).0.cast_signed(),
        act_total: of(&forward.post, Category::Activation),
        input_per_module: memory.input_bytes,
        output_per_module: memory.output_bytes,
        fw_runtime_per_module: Millis(0.0),
        bw_runtime_per_module: Millis(0.0),
        is_leaf: true,
        module,
    }
}

fn baseline(modules: &[ModuleStats]) -> Baseline {
    let Some(root) = modules.first() else {
        return Baseline { peak_bytes: Bytes(0), compute_ms: Millis(0.0) };
    };
    let highest = modules
        .iter()
        .map(|module| (module.grad_total + module.act_total).0.saturating_add_signed(module.act_grad_per_module))
        .max()
        .unwrap_or(0);
    Baseline {
        peak_bytes: root.param_per_module + Bytes(highest),
        compute_ms: root.fw_runtime_per_module + root.bw_runtime_per_module,
    }
}
