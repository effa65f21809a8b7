use std::collections::HashMap;

use rematic_trace::{Bytes, Millis, ModuleId, StepTrace};
use serde::{Deserialize, Serialize};

use crate::{StepStats, TorchError, Tradeoffs};

/// The modules of a step as torch's planner sees them: the nodes of its `Graph`, with the tree spelled out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleGraph {
    /// Bytes of all parameters.
    pub parameters: Bytes,
    /// The modules that run, each after the module that holds it.
    pub modules: Vec<GraphModule>,
}

/// A node of a [`ModuleGraph`]; fields that torch has too have its names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphModule {
    /// Full name.
    pub fqn: String,
    /// The innermost module around it that runs.
    pub parent: Option<usize>,
    /// The position of its first return among the returns of all forwards.
    pub pos_fw_post_order: usize,
    /// Gradients of parameters that exist when its backward begins.
    pub grad_total: Bytes,
    /// Activations that its forward leaves behind, without its output.
    pub act_fw_per_module: Bytes,
    /// Growth of temporaries from the beginning to the highest point of its backward.
    pub act_grad_per_module: i64,
    /// All activations when its forward returns.
    pub act_total: Bytes,
    /// What it may drop; `None` for a leaf, or if it has nothing to drop.
    pub tradeoff: Option<GraphTradeoff>,
}

/// What a module may drop and recompute, as fitted lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphTradeoff {
    /// Bytes of all of its operators' outputs.
    pub sac_memory: Bytes,
    /// Time of all of its operators.
    pub sac_runtime: Millis,
    /// Slopes of the lines: share of the time over share of the memory.
    pub slopes: Vec<f64>,
    /// Their values at zero.
    pub intercepts: Vec<f64>,
}

impl ModuleGraph {
    /// The graph of a step.
    #[must_use]
    pub fn new(trace: &StepTrace, stats: &StepStats, tradeoffs: &Tradeoffs) -> Self {
        let index: HashMap<ModuleId, usize> =
            stats.modules.iter().enumerate().map(|(index, module)| (module.module, index)).collect();
        let mut first_return: HashMap<ModuleId, usize> = HashMap::new();
        for (position, &module) in stats.orders.fw_post.iter().enumerate() {
            first_return.entry(module).or_insert(position);
        }
        let running_parent = |module: ModuleId| {
            let mut at = trace.module(module).parent;
            while let Some(parent) = at {
                if let Some(&found) = index.get(&parent) {
                    return Some(found);
                }
                at = trace.module(parent).parent;
            }
            None
        };
        let modules = stats.modules.iter().map(|module| GraphModule {
            fqn: module.fqn.clone(),
            parent: running_parent(module.module),
            pos_fw_post_order: first_return.get(&module.module).copied().unwrap_or(stats.orders.fw_post.len()),
            grad_total: module.grad_total,
            act_fw_per_module: module.act_fw_per_module,
            act_grad_per_module: module.act_grad_per_module,
            act_total: module.act_total,
            tradeoff: tradeoffs.of_module(module.module).and_then(|tradeoff| {
                let fit = tradeoff.fit.as_ref()?;
                Some(GraphTradeoff {
                    sac_memory: tradeoff.sac_memory,
                    sac_runtime: tradeoff.sac_runtime,
                    slopes: fit.slopes.clone(),
                    intercepts: fit.intercepts.clone(),
                })
            }),
        });
        ModuleGraph {
            parameters: stats.modules.first().map_or(Bytes(0), |root| root.param_per_module),
            modules: modules.collect(),
        }
    }

    /// Checks what the types do not. A graph that comes from a step always passes.
    ///
    /// # Errors
    /// The first rule that a module breaks.
    pub fn check(&self) -> Result<(), TorchError> {
        for (index, module) in self.modules.iter().enumerate() {
            let broken = |rule| Err(TorchError::Graph { index, fqn: module.fqn.clone(), rule });
            if module.parent.is_some_and(|parent| parent >= index) {
                return broken("its parent must stand before it");
            }
            let Some(tradeoff) = &module.tradeoff else { continue };
            if tradeoff.slopes.len() != tradeoff.intercepts.len() {
                return broken("it must have as many slopes as intercepts");
            }
            let numbers = tradeoff.slopes.iter().chain(&tradeoff.intercepts).chain([&tradeoff.sac_runtime.0]);
            if !numbers.into_iter().all(|number| number.is_finite()) || tradeoff.sac_runtime.0 < 0.0 {
                return broken("its slopes, intercepts and sac_runtime must be finite, and the time not negative");
            }
        }
        Ok(())
    }

    /// Whether `inner` lies somewhere inside `outer`.
    #[must_use]
    pub fn is_inside(&self, inner: usize, outer: usize) -> bool {
        let mut at = self.modules[inner].parent;
        while let Some(module) = at {
            if module == outer {
                return true;
            }
            at = self.modules[module].parent;
        }
        false
    }

    /// Bytes at the highest point of a module's backward in torch's model, if nothing is dropped. Only parameters,
    /// gradients, activations and their gradients count, and the first two are split among `world_size` ranks.
    pub(crate) fn memory_at(&self, module: usize, world_size: u32) -> f64 {
        let at = &self.modules[module];
        at.act_total.0 as f64
            + at.act_grad_per_module as f64
            + (self.parameters.0 as f64 + at.grad_total.0 as f64) / f64::from(world_size)
    }
}
