//! How the exact planner's cost grows with a model's layers, if they are equal, and if every one is a little different:
//!
//!     cargo run --release -p rematic-plan --example exact_speed
//!
//! Each layer is a block of attention and feed-forward; in the different ones the feed-forward of each is 16 wider than
//! that of the one before. The budget is 60 % of the step's peak.

use std::time::Instant;

use rematic_cost::{CostRule, Costs, Device};
use rematic_fake::{Attention, Dtype, FakeError, Optimizer, Step, Tape, Tensor, nn};
use rematic_plan::{Limits, Outcome, Problem};
use rematic_trace::{Bytes, StepTrace, Verdict};

const LAYERS: [u64; 5] = [8, 16, 32, 64, 126];
const DIM: u64 = 1024;
const HEADS: u64 = 16;
const TOKENS: u64 = 4096;
const RUNS: usize = 5;

struct Model {
    scope: nn::Scope,
    blocks: Vec<Block>,
}

struct Block {
    scope: nn::Scope,
    attention_norm: nn::LayerNorm,
    queries_keys_values: nn::Linear,
    projection: nn::Linear,
    feed_forward: FeedForward,
}

struct FeedForward {
    scope: nn::Scope,
    norm: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
}

impl Model {
    fn new(tape: &Tape, widths: &[u64]) -> Self {
        let scope = nn::Scope::root(tape, "Model", Dtype::Bf16);
        let list = scope.child("blocks", "ModuleList");
        let block = |(index, width): (usize, &u64)| Block::new(&list, index, *width);
        Model { blocks: widths.iter().enumerate().map(block).collect(), scope }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let mut hidden = self.blocks[0].forward(input);
            for block in &self.blocks[1..] {
                hidden = block.forward(&hidden);
            }
            hidden
        })
    }
}

impl Block {
    fn new(list: &nn::Scope, index: usize, width: u64) -> Self {
        let scope = list.child(&index.to_string(), "Block");
        Block {
            attention_norm: nn::LayerNorm::new(&scope, "attention_norm", DIM),
            queries_keys_values: nn::Linear::new(&scope, "queries_keys_values", DIM, 3 * DIM, true),
            projection: nn::Linear::new(&scope, "projection", DIM, DIM, true),
            feed_forward: FeedForward::new(&scope, width),
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let hidden = {
                let attended = {
                    let normed = self.attention_norm.forward(input);
                    self.attend(&normed)
                };
                input.add(&attended)
            };
            let fed = self.feed_forward.forward(&hidden);
            hidden.add(&fed)
        })
    }

    fn attend(&self, input: &Tensor) -> Tensor {
        let [queries, keys, values] = {
            let joined = self.queries_keys_values.forward(input);
            joined.split_into::<3>(-1)
        };
        let heads = |tensor: Tensor| tensor.view(&[1, TOKENS, HEADS, DIM / HEADS]).transpose(1, 2);
        let output = Attention::default().attend(&heads(queries), &heads(keys), &heads(values), None);
        let merged = output.transpose(1, 2).reshape(&[1, TOKENS, DIM]);
        self.projection.forward(&merged)
    }
}

impl FeedForward {
    fn new(parent: &nn::Scope, width: u64) -> Self {
        let scope = parent.child("feed_forward", "FeedForward");
        FeedForward {
            norm: nn::LayerNorm::new(&scope, "norm", DIM),
            up: nn::Linear::new(&scope, "up", DIM, width, true),
            down: nn::Linear::new(&scope, "down", width, DIM, true),
            scope,
        }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let activated = {
                let raised = {
                    let normed = self.norm.forward(input);
                    self.up.forward(&normed)
                };
                raised.gelu()
            };
            self.down.forward(&activated)
        })
    }
}

fn trace(layers: u64, step: u64) -> Result<StepTrace, FakeError> {
    let tape = Tape::new("a stack of blocks");
    let widths: Vec<u64> = (0..layers).map(|layer| 4 * DIM + step * layer).collect();
    let model = Model::new(&tape, &widths);
    let input = tape.input(Dtype::Bf16, &[1, TOKENS, DIM]);
    Step::new(&tape, Optimizer::Sgd).run(|| model.forward(&input), |output| output.sum())
}

/// Milliseconds of everything before the solve, of the solve with its replays, and how far the plan is from the bound.
fn times(layers: u64, step: u64) -> Result<[f64; 3], Box<dyn std::error::Error>> {
    let mut best = [f64::INFINITY; 3];
    for _ in 0..RUNS {
        let start = Instant::now();
        let trace = trace(layers, step)?;
        let costs = Costs::new(&trace, &Device::find("h100")?, CostRule::Physical)?;
        let problem = Problem::new(trace.clone(), costs.clone(), Limits::default())?;
        let ready = Instant::now();
        let Outcome { verdict: Verdict::Planned, solution } = problem.exact(Bytes(problem.baseline().peak.0 / 10 * 6))
        else {
            return Err(format!("{layers} layers: no plan").into());
        };
        let solved = ready.elapsed();
        let gap = solution.replayed.recompute.0 / solution.lower_bound.0 - 1.0;
        let now = [(ready - start).as_secs_f64() * 1e3, solved.as_secs_f64() * 1e3, gap * 100.0];
        best = [best[0].min(now[0]), best[1].min(now[1]), now[2]];
    }
    Ok(best)
}

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| layers | equal: before, solve | gap | different: before, solve | gap |\n|---|---|---|---|---|");
    for layers in LAYERS {
        let [equal, different] = [times(layers, 0)?, times(layers, 16)?];
        let cells = |[before, solve, gap]: [f64; 3]| format!("{before:.1} ms, {solve:.1} ms | {:.2} %", gap.max(0.0));
        println!("| {layers} | {} | {} |", cells(equal), cells(different));
    }
    Ok(())
}
