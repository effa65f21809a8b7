//! Writes random module graphs with the planner's answers, one JSON object a line, for `tests/milp_check.py`:
//!
//!     cargo run --release -p rematic-torch --example milp_random -- [count] [seed] [most modules] > graphs.jsonl

use std::io::{self, BufWriter, Write};

use rematic_torch::{GraphModule, GraphTradeoff, MilpMethod, MilpOptions, MilpOutcome, ModuleGraph, milp};
use rematic_trace::{Bytes, Millis};
use serde::Serialize;

#[derive(Serialize)]
struct Case<'a> {
    graph: &'a ModuleGraph,
    budget: Bytes,
    world_size: u32,
    ac_units: &'a [String],
    fsdp_units: &'a [String],
    chain: MilpOutcome,
    general: Option<MilpOutcome>,
}

/// Graphs with more modules than this are too much for the general solver when layers are equal.
const GENERAL_MODULES: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let mut random = Random(arguments.next().map_or(Ok(1), |text| text.parse())?);
    let most: usize = arguments.next().map_or(Ok(60), |text| text.parse())?;
    let mut out = BufWriter::new(io::stdout().lock());
    for _ in 0..count {
        let graph = random.graph(most.max(6));
        let names: Vec<String> = graph.modules.iter().map(|module| module.fqn.clone()).collect();
        let world_size = [1, 2, 4, 8][random.below(4)];
        let highest = highest(&graph, world_size);
        let base = (graph.parameters.0 as f64) / f64::from(world_size);
        let mut units = |share: f64| -> Vec<String> {
            if random.unit() < 0.8 {
                return Vec::new();
            }
            names.iter().filter(|_| random.unit() < share).cloned().collect()
        };
        let (ac_units, fsdp_units) = (units(0.6), units(0.1));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let budget = Bytes((base + (highest - base) * (0.2 + 0.9 * random.unit())) as u64);
        let options = MilpOptions {
            world_size,
            ac_units: (!ac_units.is_empty()).then(|| ac_units.clone()),
            fsdp_units: fsdp_units.clone(),
            ..MilpOptions::new(budget)
        };
        let general = MilpOptions { method: MilpMethod::General, ..options.clone() };
        let case = Case {
            budget,
            world_size,
            ac_units: &ac_units,
            fsdp_units: &fsdp_units,
            chain: milp(&graph, &options)?,
            general: (graph.modules.len() <= GENERAL_MODULES).then(|| milp(&graph, &general)).transpose()?,
            graph: &graph,
        };
        serde_json::to_writer(&mut out, &case)?;
        writeln!(out)?;
    }
    Ok(())
}

fn highest(graph: &ModuleGraph, world_size: u32) -> f64 {
    let at = |module: &GraphModule| {
        module.act_total.0 as f64
            + module.act_grad_per_module as f64
            + (graph.parameters.0 + module.grad_total.0) as f64 / f64::from(world_size)
    };
    graph.modules.iter().map(at).fold(0.0, f64::max)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }

    fn unit(&mut self) -> f64 {
        self.below(1 << 24) as f64 / f64::from(1 << 24)
    }

    fn bytes(&mut self, most: usize) -> Bytes {
        Bytes(self.below(most) as u64)
    }

    /// A tree of 5 to `most` modules; half of the trees consist of equal layers.
    fn graph(&mut self, most: usize) -> ModuleGraph {
        let count = 5 + self.below(most - 4);
        let layer = if self.below(2) == 0 { count } else { 3 + self.below(6) };
        let mut parents = vec![None];
        let mut kinds: Vec<usize> = vec![0];
        for index in 1..count {
            let place = (index - 1) % layer;
            kinds.push(if layer == count { index } else { place + 1 });
            let parent = if place == 0 || layer == count {
                if layer == count { self.below(index) } else { 0 }
            } else if index > layer {
                // As in the layer before.
                parents[index - layer].map_or(0, |before: usize| if before == 0 { 0 } else { before + layer })
            } else {
                1 + self.below(place)
            };
            parents.push(Some(parent));
        }
        self.with_numbers(&preorder(&parents), &kinds)
    }

    fn with_numbers(&mut self, tree: &[(usize, Option<usize>)], kinds: &[usize]) -> ModuleGraph {
        const MIB: usize = 1 << 20;
        let count = tree.len();
        let shapes: Vec<Shape> = (0..=count).map(|_| self.shape()).collect();
        let inside = |module: usize| tree.iter().filter(move |(_, parent)| *parent == Some(module)).count();
        let mut left_behind = vec![0_u64; count];
        let mut position = vec![0; count];
        let mut totals = vec![0_u64; count];
        let (mut next, mut total) = (0, 0);
        // Backwards through a preorder every module comes after what is inside it, but the last child first; a stack
        // gives the order of returns.
        let mut open: Vec<usize> = Vec::new();
        let mut close = |module: usize, left_behind: &mut Vec<u64>| {
            let own = shapes[kinds[tree[module].0]].own.0;
            left_behind[module] += own;
            total += own;
            totals[module] = total;
            position[module] = next;
            next += 1;
            if let Some(parent) = tree[module].1 {
                left_behind[parent] += left_behind[module];
            }
        };
        for (module, (_, parent)) in tree.iter().enumerate() {
            while let Some(&last) = open.last().filter(|last| Some(**last) != *parent) {
                close(last, &mut left_behind);
                open.pop();
            }
            open.push(module);
        }
        while let Some(last) = open.pop() {
            close(last, &mut left_behind);
        }
        let parameters = self.bytes(800 * MIB);
        let modules = tree.iter().enumerate().map(|(index, (kind, parent))| {
            let shape = &shapes[kinds[*kind]];
            let savable = Bytes(left_behind[index]);
            // Gradients of what returned later exist when a module's backward begins.
            let later = (count - position[index]) as f64 / count as f64;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            GraphModule {
                fqn: format!("m{index}"),
                parent: *parent,
                pos_fw_post_order: position[index],
                grad_total: Bytes((parameters.0 as f64 * later * 0.9) as u64),
                act_fw_per_module: savable,
                act_grad_per_module: shape.gradients,
                act_total: Bytes(totals[index] + 64 * MIB as u64),
                tradeoff: (inside(index) > 0).then(|| GraphTradeoff {
                    sac_memory: Bytes((savable.0 as f64 * shape.overhead) as u64),
                    sac_runtime: Millis(savable.0 as f64 / MIB as f64 * shape.time_per_mib),
                    slopes: shape.slopes.clone(),
                    intercepts: shape.intercepts.clone(),
                }),
            }
        });
        ModuleGraph { parameters, modules: modules.collect() }
    }

    fn shape(&mut self) -> Shape {
        const MIB: usize = 1 << 20;
        let segments = 1 + self.below(3);
        // Lines through a point with rising slopes; sometimes the first falls, sometimes they are mixed up.
        let mut slope = if self.below(8) == 0 { -0.1 } else { 0.05 + 0.5 * self.unit() };
        let (mut slopes, mut intercepts) = (vec![slope], vec![-0.02 + 0.1 * self.unit()]);
        let mut at = 0.2 + 0.3 * self.unit();
        for _ in 1..segments {
            let value = slope * at + intercepts[intercepts.len() - 1];
            slope = if self.below(8) == 0 { slope * 0.7 } else { slope + 0.3 + self.unit() };
            slopes.push(slope);
            intercepts.push(value - slope * at);
            at += 0.1 + 0.3 * self.unit();
        }
        Shape {
            own: if self.below(4) == 0 { Bytes(0) } else { self.bytes(200 * MIB) },
            gradients: i64::try_from(self.below(100 * MIB)).unwrap_or(0) - 10 * (MIB as i64),
            // Below one, torch's estimator and tracker disagree, and the tracker wins.
            overhead: 0.95 + 0.6 * self.unit(),
            time_per_mib: 0.01 + 0.1 * self.unit(),
            slopes,
            intercepts,
        }
    }
}

struct Shape {
    own: Bytes,
    gradients: i64,
    overhead: f64,
    time_per_mib: f64,
    slopes: Vec<f64>,
    intercepts: Vec<f64>,
}

/// The tree in preorder: the old index of each module, and the new index of its parent.
fn preorder(parents: &[Option<usize>]) -> Vec<(usize, Option<usize>)> {
    let mut order = Vec::with_capacity(parents.len());
    let mut stack = vec![(0, None)];
    while let Some((module, parent)) = stack.pop() {
        order.push((module, parent));
        let here = order.len() - 1;
        let children: Vec<usize> = (0..parents.len()).filter(|&child| parents[child] == Some(module)).collect();
        stack.extend(children.into_iter().rev().map(|child| (child, Some(here))));
    }
    order
}
