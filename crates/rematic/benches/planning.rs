//! How the planner's time grows with what a step has: `cargo bench --bench planning`. It is to be near-linear in all of these.

use rematic::fake::{Dtype, FakeError, Optimizer, Step, Tape, Tensor, nn};
use rematic::{Bytes, CostRule, Costs, Device, Limits, Model, Options, Outcome, Problem, Recipe, StepTrace};

fn main() {
    divan::main();
}

/// The budget is this share of the peak without a plan.
const SHARE: f64 = 0.7;

/// From the trace to the plan.
fn planned(trace: StepTrace) -> Outcome {
    let costs = Costs::new(&trace, &Device::find("h100").unwrap(), CostRule::Physical).unwrap();
    let problem = Problem::new(trace, costs, Limits::default()).unwrap();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the peak")]
    let budget = Bytes((problem.baseline().peak.0 as f64 * SHARE) as u64);
    problem.exact(budget)
}

fn plan(bencher: divan::Bencher<'_, '_>, trace: &StepTrace) {
    bencher.with_inputs(|| trace.clone()).bench_values(planned);
}

fn llama(options: &Options) -> StepTrace {
    Model::builtin("llama-3-8b").unwrap().with(options).unwrap().trace().unwrap()
}

#[divan::bench(args = [8, 32, 126, 500], sample_count = 3)]
fn layers(bencher: divan::Bencher<'_, '_>, layers: u64) {
    plan(bencher, &llama(&Options { layers: Some(layers), ..Options::default() }));
}

#[divan::bench(args = [1, 2, 4, 8], sample_count = 3)]
fn micro_batches(bencher: divan::Bencher<'_, '_>, accumulate: u32) {
    let recipe = Recipe { accumulate: Some(accumulate), ..Recipe::default() };
    plan(bencher, &llama(&Options { recipe, layers: Some(8), ..Options::default() }));
}

#[divan::bench(args = [10, 20, 40, 80], sample_count = 3)]
fn depth(bencher: divan::Bencher<'_, '_>, depth: u64) {
    plan(bencher, &nested(depth).unwrap());
}

#[divan::bench(args = [1000, 2000, 4000, 8000], sample_count = 3)]
fn in_place(bencher: divan::Bencher<'_, '_>, operators: u64) {
    plan(bencher, &changed(operators).unwrap());
}

/// A module in whose forward so many operators change their input in place.
fn changed(operators: u64) -> Result<StepTrace, FakeError> {
    let tape = Tape::new("in place");
    let scope = nn::Scope::root(&tape, "Chain", Dtype::Bf16);
    let layer = nn::Linear::new(&scope, "layer", WIDTH, WIDTH, true);
    let input = tape.input(Dtype::Bf16, &[4096, WIDTH]);
    let labels = tape.input(Dtype::I64, &[4096]);
    let forward = || {
        scope.call(&[&input], || {
            let mut hidden = layer.forward(&input);
            for _ in 0..operators {
                hidden = hidden.neg().relu_in_place();
            }
            hidden
        })
    };
    Step::new(&tape, Optimizer::AdamW).run(forward, |logits| logits.cross_entropy(&labels))
}

const WIDTH: u64 = 256;

/// A module with a layer of its own around another such module.
struct Nest {
    scope: nn::Scope,
    layer: nn::Linear,
    inner: Option<Box<Nest>>,
}

impl Nest {
    fn new(scope: nn::Scope, depth: u64) -> Self {
        let layer = nn::Linear::new(&scope, "layer", WIDTH, WIDTH, true);
        let inner = (depth > 1).then(|| Box::new(Nest::new(scope.child("inner", "Nest"), depth - 1)));
        Nest { scope, layer, inner }
    }

    fn forward(&self, input: &Tensor) -> Tensor {
        self.scope.call(&[input], || {
            let hidden = {
                let raised = self.layer.forward(input);
                raised.gelu()
            };
            match &self.inner {
                Some(inner) => inner.forward(&hidden),
                None => hidden,
            }
        })
    }
}

fn nested(depth: u64) -> Result<StepTrace, FakeError> {
    let tape = Tape::new("nested");
    let model = Nest::new(nn::Scope::root(&tape, "Nest", Dtype::Bf16), depth);
    let input = tape.input(Dtype::Bf16, &[4096, WIDTH]);
    let labels = tape.input(Dtype::I64, &[4096]);
    Step::new(&tape, Optimizer::AdamW).run(|| model.forward(&input), |logits| logits.cross_entropy(&labels))
}
