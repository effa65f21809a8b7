//! A model of your own: how much memory does one training step of it take, and why?
//!
//! It is a small vision transformer: patches of an image go through a linear layer, then through blocks of attention and
//! feed-forward, and the mean over the patches is classified. It is written as it would be in PyTorch: a struct a
//! module, and a `forward` that calls the layers. No tensor has any data, so this runs anywhere in a moment:
//!
//! ```text
//! cargo run --release --package rematic --example custom_model
//! ```

use rematic::fake::{Attention, Dtype, FakeError, Optimizer, Step, Tape, Tensor, nn};
use rematic::{CostRule, CostSource, Error, StepTrace, Study, Style, Target};

/// ViT-S/16 on images of 224 × 224 pixels.
const PATCHES: u64 = 14 * 14;
const PATCH_PIXELS: u64 = 16 * 16 * 3;
const WIDTH: u64 = 384;
const HEADS: u64 = 6;
const LAYERS: u64 = 12;
const CLASSES: u64 = 1000;

struct VisionTransformer {
    // Every module has a scope: its place in the tree, under which its parameters and calls are filed.
    scope: nn::Scope,
    patches: nn::Linear,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: nn::LayerNorm,
    head: nn::Linear,
}

impl VisionTransformer {
    fn new(tape: &Tape, dtype: Dtype) -> Self {
        let scope = nn::Scope::root(tape, "VisionTransformer", dtype);
        // Children are made in the order in which Python's `__init__` would: the optimizer sees them in that order.
        let patches = nn::Linear::new(&scope, "patches", PATCH_PIXELS, WIDTH, true);
        let positions = scope.parameter("positions", &[1, PATCHES, WIDTH]);
        let list = scope.child("blocks", "ModuleList");
        let blocks = (0..LAYERS).map(|index| Block::new(&list, index)).collect();
        let norm = nn::LayerNorm::new(&scope, "norm", WIDTH);
        let head = nn::Linear::new(&scope, "head", WIDTH, CLASSES, true);
        VisionTransformer { scope, patches, positions, blocks, norm, head }
    }

    fn forward(&self, images: &Tensor) -> Tensor {
        // `call` marks where the module begins and ends, as calling a module in PyTorch does.
        self.scope.call(&[images], || {
            // Assigning to `hidden` drops the tensor that it held: its memory is free again unless autograd saved it.
            // Where Python would drop a temporary at the end of an expression, give it a block of its own.
            let mut hidden = {
                let embedded = self.patches.forward(images);
                embedded.add(&self.positions)
            };
            for block in &self.blocks {
                hidden = block.forward(&hidden);
            }
            hidden = self.norm.forward(&hidden);
            // The mean over the patches, which must be the last dimension for that.
            let pooled = {
                let mean = {
                    let turned = hidden.transpose(1, 2);
                    turned.mean_last()
                };
                mean.squeeze(2)
            };
            self.head.forward(&pooled)
        })
    }
}

struct Block {
    scope: nn::Scope,
    attention_norm: nn::LayerNorm,
    queries_keys_values: nn::Linear,
    projection: nn::Linear,
    mlp_norm: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
}

impl Block {
    fn new(list: &nn::Scope, index: u64) -> Self {
        let scope = list.child(&index.to_string(), "Block");
        Block {
            attention_norm: nn::LayerNorm::new(&scope, "attention_norm", WIDTH),
            queries_keys_values: nn::Linear::new(&scope, "queries_keys_values", WIDTH, 3 * WIDTH, true),
            projection: nn::Linear::new(&scope, "projection", WIDTH, WIDTH, true),
            mlp_norm: nn::LayerNorm::new(&scope, "mlp_norm", WIDTH),
            up: nn::Linear::new(&scope, "up", WIDTH, 4 * WIDTH, true),
            down: nn::Linear::new(&scope, "down", 4 * WIDTH, WIDTH, true),
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
            let fed = {
                let activated = {
                    let raised = {
                        let normed = self.mlp_norm.forward(&hidden);
                        self.up.forward(&normed)
                    };
                    raised.gelu()
                };
                self.down.forward(&activated)
            };
            hidden.add(&fed)
        })
    }

    fn attend(&self, input: &Tensor) -> Tensor {
        let batch = input.size(0);
        // A mistake in the sizes does not panic: the step returns the first one as its error.
        let [queries, keys, values] = {
            let all = self.queries_keys_values.forward(input);
            all.split_into::<3>(-1)
        };
        // `[batch, patches, width]` into `[batch, heads, patches, width / heads]`, without copying.
        let heads = |part: Tensor| {
            let split = part.view(&[batch, PATCHES, HEADS, WIDTH / HEADS]);
            split.transpose(1, 2)
        };
        let (queries, keys, values) = (heads(queries), heads(keys), heads(values));
        let joined = {
            // Every patch sees every other one.
            let attention = Attention { causal: false, ..Attention::default() };
            let attended = attention.attend(&queries, &keys, &values, None);
            let turned = attended.transpose(1, 2);
            turned.reshape(&[batch, PATCHES, WIDTH])
        };
        self.projection.forward(&joined)
    }
}

/// One step: forward, loss, backward, AdamW, zero_grad.
fn trace(batch: u64) -> Result<StepTrace, FakeError> {
    let tape = Tape::new("a small vision transformer");
    let model = VisionTransformer::new(&tape, Dtype::Bf16);
    let images = tape.input(Dtype::Bf16, &[batch, PATCHES, PATCH_PIXELS]);
    let labels = tape.input(Dtype::I64, &[batch]);
    Step::new(&tape, Optimizer::AdamW).run(|| model.forward(&images), |logits| logits.cross_entropy(&labels))
}

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), Error> {
    let target = Target::find("a100-80", None, CostSource::Rule(CostRule::Physical))?;
    let study = Study::of_calls(trace(256)?, target)?;
    print!("{}", study.stats().text(Style::default()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use rematic::{Allocator, Timeline};

    use super::*;

    #[test]
    fn the_model_traces_and_its_parameters_are_those_of_vit_s() {
        let trace = trace(2).unwrap();
        assert_eq!(trace.validate(), Ok(()));
        let parameters = trace.modules().iter().flat_map(|module| &module.parameters);
        let count: u64 = parameters.map(|parameter| trace.layouts()[parameter.layout].elements()).sum();
        // By hand: the patches, the positions, 12 blocks, the last norm, the head.
        let (w, block) = (WIDTH, 4 * WIDTH + 12 * WIDTH * WIDTH + (3 + 1 + 4 + 1) * WIDTH);
        assert_eq!(count, (768 + 1) * w + 196 * w + 12 * block + 2 * w + (w + 1) * 1000);
    }

    /// At batch 1 the optimizer makes the peak: parameters, gradients, two moments and the roots of one, 5 times 2 bytes
    /// for each of 22 million. The others are activations, written down as traced, to notice a change.
    #[test]
    fn the_peak_stays_where_it_is() {
        for (batch, bytes) in [(1, 220_914_176), (64, 2_057_606_656), (256, 7_827_429_376)] {
            let peak = Timeline::replay(&trace(batch).unwrap(), Allocator::Cuda).peak().total();
            assert_eq!(peak.0, bytes, "batch {batch}");
        }
    }
}
