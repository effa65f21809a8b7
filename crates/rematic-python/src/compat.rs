//! Torch's planners, asked with torch's own data.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pyo3::prelude::*;
use rematic::{Bytes, Cancel, Millis, MilpOptions, MilpOutcome, ModuleGraph, milp};
use rematic_torch::{GraphModule, GraphTradeoff, Msps, SacStats, TorchError, TorchOrder, TorchTradeoff};
use rematic_trace::Decision;

use crate::error::{PlanError as PlanException, exception};
use crate::work::interruptible;

const GIB: f64 = (1_u64 << 30) as f64;

/// A node of torch's `Graph`: a mapping with torch's names.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Node {
    fqn: String,
    param_per_module: u64,
    grad_total: u64,
    act_fw_per_module: u64,
    act_grad_per_module: i64,
    act_total: u64,
    is_leaf: bool,
    sac_runtime: f64,
    sac_memory: u64,
    n_segments: usize,
    slopes: Vec<f64>,
    intercepts: Vec<f64>,
    pos_fw_post_order: usize,
}

/// What `sac_milp` returns: decisions, time, peak.
type MilpAnswer = (Vec<(String, f64)>, f64, u64);

/// Torch's `sac_milp`; `None` if the budget cannot be met. `inside[i]` are the modules inside module `i`, itself among
/// them or not.
#[pyfunction]
pub(crate) fn sac_milp(
    py: Python<'_>,
    nodes: Vec<Node>,
    inside: Vec<Vec<usize>>,
    memory_budget: f64,
    world_size: u32,
    ac_units: Vec<String>,
    fsdp_units: Vec<String>,
) -> PyResult<Option<MilpAnswer>> {
    if !memory_budget.is_finite() || memory_budget < 0.0 {
        let wrong = format!("memory_budget is {memory_budget}; give a number of GiB that is not negative");
        return Err(PlanException::new_err(wrong));
    }
    let parents = parents(&nodes, &inside)?;
    let mut graph = ModuleGraph {
        parameters: Bytes(nodes.first().map_or(0, |root| root.param_per_module)),
        modules: nodes
            .into_iter()
            .zip(parents)
            .map(|(node, parent)| {
                let around_fsdp_unit = fsdp_units.iter().any(|unit| is_inside(unit, &node.fqn));
                let may = (ac_units.is_empty() || ac_units.contains(&node.fqn)) && !around_fsdp_unit;
                module(node, parent, may)
            })
            .collect(),
    };
    share_fits(&mut graph.modules);
    // As many whole bytes as the budget holds; past 2^64 it does not matter how many.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and it saturates")]
    let mut options = MilpOptions::new(Bytes((memory_budget * GIB).floor() as u64));
    options.world_size = world_size;
    let cancel = Cancel::default();
    options.cancelled = cancel.flag();
    let outcome = interruptible(py, &cancel, move || milp(&graph, &options))?.map_err(exception)?;
    Ok(match outcome {
        MilpOutcome::Fits { peak } => Some((Vec::new(), 0.0, peak.0)),
        MilpOutcome::Planned(plan) => {
            let decisions = plan.choices.into_iter().map(|choice| (choice.fqn, choice.discard)).collect();
            Some((decisions, plan.recompute.0, plan.peak.0))
        }
        MilpOutcome::Infeasible { .. } => None,
    })
}

/// Torch's own test, which looks for the name anywhere.
fn is_inside(inner: &str, outer: &str) -> bool {
    inner.contains(&format!("{outer}."))
}

fn module(node: Node, parent: Option<usize>, may_be_checkpointed: bool) -> GraphModule {
    let mut tradeoff = GraphTradeoff {
        sac_memory: Bytes(node.sac_memory),
        sac_runtime: Millis(node.sac_runtime),
        slopes: node.slopes,
        intercepts: node.intercepts,
    };
    tradeoff.slopes.truncate(node.n_segments);
    tradeoff.intercepts.truncate(node.n_segments);
    GraphModule {
        fqn: node.fqn,
        parent,
        pos_fw_post_order: node.pos_fw_post_order,
        grad_total: Bytes(node.grad_total),
        act_fw_per_module: Bytes(node.act_fw_per_module),
        act_grad_per_module: node.act_grad_per_module,
        act_total: Bytes(node.act_total),
        tradeoff: (!node.is_leaf && may_be_checkpointed).then_some(tradeoff),
    }
}

/// Fits that differ by less, in shares of the memory or the time, are one fit: torch's are random in the seventh digit.
const SAME_FIT: f64 = 1e-4;

/// Gives equal modules the fit of the first, so that the same model always gets the same plan: with torch's random last
/// digits, chance would say which of the equal layers discards most.
fn share_fits(modules: &mut [GraphModule]) {
    /// Slopes and intercepts.
    type Fit = (Vec<f64>, Vec<f64>);
    let mut known: HashMap<(Bytes, Bytes, u64), Vec<Fit>> = HashMap::new();
    let near = |ours: &[f64], theirs: &[f64]| {
        ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() <= SAME_FIT)
    };
    for module in modules {
        let act_fw = module.act_fw_per_module;
        let Some(tradeoff) = &mut module.tradeoff else { continue };
        let fits = known.entry((tradeoff.sac_memory, act_fw, tradeoff.sac_runtime.0.to_bits())).or_default();
        let first = fits
            .iter()
            .find(|(slopes, intercepts)| near(slopes, &tradeoff.slopes) && near(intercepts, &tradeoff.intercepts));
        match first {
            Some((slopes, intercepts)) => {
                tradeoff.slopes.clone_from(slopes);
                tradeoff.intercepts.clone_from(intercepts);
            }
            None => fits.push((tradeoff.slopes.clone(), tradeoff.intercepts.clone())),
        }
    }
}

/// The innermost module around each. What lies inside what must be a tree, with the outer module first.
fn parents(nodes: &[Node], inside: &[Vec<usize>]) -> PyResult<Vec<Option<usize>>> {
    let mut around: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (outer, inner) in inside.iter().enumerate() {
        for &inner in inner.iter().filter(|inner| **inner > outer) {
            if let Some(around) = around.get_mut(inner) {
                around.push(outer);
            }
        }
    }
    for (inner, list) in around.iter().enumerate() {
        if let [rest @ .., parent] = list.as_slice()
            && around[*parent] != rest
        {
            let (inner, parent) = (&nodes[inner].fqn, &nodes[*parent].fqn);
            return Err(PlanException::new_err(format!(
                "ad_matrix is not a tree: `{inner}` lies inside `{parent}`, but not inside the same modules as it; build \
                 the graph with parse_module_info"
            )));
        }
    }
    Ok(around.iter().map(|around| around.last().copied()).collect())
}

/// An object with the fields of torch's `SACStats`.
#[derive(FromPyObject)]
pub(crate) struct Stats {
    func_names: Vec<String>,
    runtimes: Vec<f64>,
    memory: Vec<u64>,
    view_like_ops: Vec<usize>,
    rand_ops: Vec<usize>,
    saved_autograd_ops: Vec<usize>,
    inplace_ops: Vec<(usize, usize)>,
    force_store_random: bool,
}

impl From<Stats> for SacStats {
    fn from(stats: Stats) -> Self {
        SacStats {
            func_names: stats.func_names,
            runtimes: stats.runtimes.into_iter().map(Millis).collect(),
            memory: stats.memory.into_iter().map(Bytes).collect(),
            view_like_ops: stats.view_like_ops,
            rand_ops: stats.rand_ops,
            saved_autograd_ops: stats.saved_autograd_ops,
            inplace_ops: stats.inplace_ops,
            force_store_random: stats.force_store_random,
        }
    }
}

/// Torch's `get_optimal_checkpointing_policy_per_module`; `None` if what must be saved does not fit.
#[pyfunction]
pub(crate) fn optimal_policy(py: Python<'_>, stats: Stats, memory_budget: f64) -> PyResult<Option<Vec<u32>>> {
    let stats = SacStats::from(stats);
    match interruptible(py, &Cancel::default(), move || rematic::optimal_policy(&stats, memory_budget))? {
        Ok(policy) => Ok(Some(policy.into_iter().map(|decision| u32::from(decision == Decision::Save)).collect())),
        Err(TorchError::PolicyTooSmall { .. }) => Ok(None),
        Err(error) => Err(exception(error)),
    }
}

/// A group's first operator, and all of them.
type Groups = BTreeMap<usize, BTreeSet<usize>>;
/// First operator, all operators, bytes, milliseconds, bytes per millisecond.
type Candidate = (usize, Vec<usize>, u64, f64, f64);
/// Always recomputed, always stored, groups in place, random group, what may be recomputed.
type Order = (BTreeSet<usize>, BTreeSet<usize>, Groups, Groups, Vec<Candidate>);

/// Torch's greedy order of a region's operators.
#[pyfunction]
pub(crate) fn greedy_order(stats: Stats) -> PyResult<Order> {
    let order = TorchOrder::new(&SacStats::from(stats)).map_err(exception)?;
    let candidate = |group: Msps| (group.op_idx, group.ops, group.memory.0, group.runtime.0, group.msps);
    let candidates = order.msps_meta.into_iter().map(candidate).collect();
    Ok((order.recomputed_ops, order.stored_ops, order.inplace_op_groups, order.random_ops_group, candidates))
}

/// Points of the curve; slopes, intercepts and ends of the lines.
type Curve = (Vec<(f64, f64)>, Vec<f64>, Vec<f64>, Vec<f64>);

/// The curve of discarding these amounts (bytes, milliseconds) one after the other, and the lines fitted to it.
#[pyfunction]
pub(crate) fn tradeoff_curve(steps: Vec<(u64, f64)>, memory: u64, runtime: f64, segments: usize) -> Curve {
    let TorchTradeoff { curve, fit } = TorchTradeoff::new(&steps, memory, runtime, segments);
    (curve, fit.slopes, fit.intercepts, fit.fit_breaks)
}
