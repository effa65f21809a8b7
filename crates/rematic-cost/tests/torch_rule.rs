//! The torch rule against what torch 2.15's RuntimeEstimator said (`oracle/golden/{seed-transformer,gpt2}.json`).
//!
//! seed-transformer: dim 768, 12 heads, vocabulary 8192, batch 8, sequence 1024, f32, A100.
//! gpt2: dim 768, batch 4, sequence 512, f32, A100.

mod step;

use rematic_cost::{CostError, CostRule, Costs, Device, ModuleTimes};
use rematic_trace::{Dtype, Event, Flags, Layout, Phase};
use step::{Step, assert_close, assert_millis};

const TOKENS: [u64; 3] = [8, 1024, 768];
const ROWS: u64 = 8 * 1024;

fn torch(step: &Step) -> f64 {
    step.last_time("a100-80", CostRule::Torch)
}

#[test]
fn layer_norm() {
    let mut step = Step::new();
    let (x, y, weight, bias) = (step.f32(&TOKENS), step.f32(&TOKENS), step.f32(&[768]), step.f32(&[768]));
    let (mean, rstd) = (step.f32(&[8, 1024, 1]), step.f32(&[8, 1024, 1]));
    step.run("native_layer_norm.default", &[x, weight, bias], &[y, mean, rstd]);
    assert_close(torch(&step), 0.024_719_631_191_760_665); // layers.0.attention_norm, fw

    step.phase = Phase::Backward;
    let (grad_x, grad_weight, grad_bias) = (step.f32(&TOKENS), step.f32(&[768]), step.f32(&[768]));
    step.run(
        "native_layer_norm_backward.default",
        &[y, x, mean, rstd, weight, bias],
        &[grad_x, grad_weight, grad_bias],
    );
    assert_close(torch(&step), 0.037_064_882_785_679_26); // Transformer.norm, bw

    let (x, y) = (step.f32(&[4, 512, 768]), step.f32(&[4, 512, 768]));
    let (mean, rstd) = (step.f32(&[4, 512, 1]), step.f32(&[4, 512, 1]));
    step.run("native_layer_norm.default", &[x, weight, bias], &[y, mean, rstd]);
    assert_close(torch(&step), 0.006_182_167_729_279_058); // gpt2's h.0.ln_1, fw
}

#[test]
fn embedding() {
    let mut step = Step::new();
    let (weight, tokens, y) = (step.f32(&[8192, 768]), step.of(Dtype::I64, &[8, 1024]), step.f32(&TOKENS));
    step.run("embedding.default", &[weight, tokens], &[y]);
    assert_close(torch(&step), 0.024_716_617_949_975_48); // tok_embeddings, fw

    let (weight, tokens, y) = (step.f32(&[50257, 768]), step.of(Dtype::I64, &[4, 512]), step.f32(&[4, 512, 768]));
    step.run("embedding.default", &[weight, tokens], &[y]);
    assert_close(torch(&step), 0.078_811_841_098_577_74); // gpt2's wte, fw
}

#[test]
fn dropout_and_gelu() {
    let mut step = Step::new();
    let (x, y, mask) = (step.f32(&TOKENS), step.f32(&TOKENS), step.of(Dtype::Bool, &TOKENS));
    step.run("native_dropout.default", &[x], &[y, mask]);
    assert_close(torch(&step), 0.027_770_036_292_300_147); // Transformer.dropout, fw

    let wide = [8, 1024, 3072];
    let (x, y, gradient) = (step.f32(&wide), step.f32(&wide), step.f32(&wide));
    step.run("gelu.default", &[x], &[y]);
    assert_close(torch(&step), 0.098_737_906_817_067_19); // feed_forward.gelu, fw
    step.run("gelu_backward.default", &[gradient, x], &[y]);
    assert_close(torch(&step), 0.148_106_860_225_600_77); // feed_forward.gelu, bw
}

#[test]
fn matmuls() {
    let mut step = Step::new();
    let (x, y) = (step.f32(&[ROWS, 768]), step.f32(&[ROWS, 768]));
    let weight = step.tensor(&Layout { dtype: Dtype::F32, shape: vec![768, 768], strides: vec![1, 768] });
    step.run("mm.default", &[x, weight], &[y]);
    assert_close(torch(&step), 0.330_382_099_692_307_7); // attention.wq, fw

    let (bias, weight, y) = (step.f32(&[3072]), step.f32(&[768, 3072]), step.f32(&[ROWS, 3072]));
    step.run("addmm.default", &[bias, x, weight], &[y]);
    assert_close(torch(&step), 1.321_528_398_769_230_8); // feed_forward.w1, fw

    let (weight, y) = (step.f32(&[768, 8192]), step.f32(&[ROWS, 8192]));
    step.run("mm.default", &[x, weight], &[y]);
    assert_close(torch(&step), 3.524_075_730_051_282_4); // Transformer.output, fw

    let (x, weight, y) = (step.f32(&[2048, 768]), step.f32(&[768, 50257]), step.f32(&[2048, 50257]));
    step.run("mm.default", &[x, weight], &[y]);
    assert_close(torch(&step), 5.404_952_208_410_257); // gpt2's lm_head, fw
}

/// `layers.0.attention` in forward is four projections, one dropout and this.
#[test]
fn attention_is_what_its_module_has_left() {
    let mut step = Step::new();
    let heads = Layout { dtype: Dtype::F32, shape: vec![8, 12, 1024, 64], strides: vec![786_432, 64, 768, 1] };
    let [q, k, v, y] = [(); 4].map(|()| step.tensor(&heads));
    let (lse, seed, offset) = (step.f32(&[8, 12, 1024]), step.of(Dtype::I64, &[]), step.of(Dtype::I64, &[]));
    step.run("_scaled_dot_product_efficient_attention.default", &[q, k, v], &[y, lse, seed, offset]);
    let forward = torch(&step);
    assert_close(4.0 * 0.330_382_099_692_307_7 + forward + 0.027_770_036_292_300_147, 2.230_317_367_574_351_7);
}

#[test]
fn the_lists_of_free_operators_are_torchs_and_flags_do_not_matter() {
    let mut step = Step::new();
    let (x, y) = (step.f32(&[1000]), step.f32(&[1000]));
    for name in
        ["t.default", "_unsafe_view.default", "split.Tensor", "detach.default", "ones_like.default", "arange.start"]
    {
        step.run(name, &[x], &[y]);
        assert_eq!(torch(&step), 0.0, "{name}");
    }
    for flags in [Flags { view: true, ..Flags::default() }, Flags { host: true, ..Flags::default() }] {
        step.flags = flags;
        for name in ["alias.default", "slice.Tensor", "empty_like.default"] {
            step.run(name, &[x], &[y]);
            assert_close(torch(&step), 8000.0 / 2039.0 / 1e6);
        }
    }
}

#[test]
fn a_tensor_given_twice_is_read_twice_and_an_expanded_one_once() {
    let mut step = Step::new();
    let (x, y) = (step.f32(&[1000]), step.f32(&[1000]));
    step.run("mul.Tensor", &[x, x], &[y]);
    assert_close(torch(&step), 12_000.0 / 2039.0 / 1e6);
    let expanded = step.tensor(&Layout { dtype: Dtype::F32, shape: vec![50, 1000], strides: vec![0, 1] });
    step.run("sum.default", &[expanded], &[]);
    assert_close(torch(&step), 4000.0 / 2039.0 / 1e6);
}

/// Torch refuses attention in bf16, because its log-sum-exp is f32; here the first output's type counts.
#[test]
fn attention_in_bf16_has_a_time() {
    let mut step = Step::new();
    let shape = [8, 12, 1024, 64];
    let [q, k, v, y] = [(); 4].map(|()| step.bf16(&shape));
    let lse = step.f32(&[8, 12, 1024]);
    step.run("_scaled_dot_product_flash_attention.default", &[q, k, v], &[y, lse]);
    assert_close(torch(&step), 25_769_803_776.0 / 2.0 / (0.75 * 312.5e9));
}

#[test]
fn a_matmul_of_integers_costs_only_its_bytes() {
    let mut step = Step::new();
    let [a, b, c] = [(); 3].map(|()| step.of(Dtype::I64, &[512, 512]));
    step.run("mm.default", &[a, b], &[c]);
    assert_close(torch(&step), 3.0 * 512.0 * 512.0 * 8.0 / 2039.0 / 1e6);
}

/// The sparsity factor of torch's H100 sheet halves its f32 rate too.
#[test]
fn torchs_h100_multiplies_f32_at_half_its_rate() {
    let mut step = Step::new();
    let [a, b, c] = [(); 3].map(|()| step.f32(&[4096, 4096]));
    step.run("mm.default", &[a, b], &[c]);
    assert_close(step.last_time("h100", CostRule::Torch), 4096_f64.powi(3) / (0.75 * 33.5e9));
}

#[test]
fn a_device_that_torch_does_not_know_is_refused() {
    let error = Costs::new(&Step::new().trace, &Device::find("a100-40").unwrap(), CostRule::Torch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "torch 2.15's data sheet does not know a100-40, so the torch rule has no rates for it; use the physical rule, \
         or one of a100-80, h100, b200, l4, mi250x, mi300x, mi355x"
    );
    assert!(matches!(error, CostError::NotInTorchDatasheet { known, .. } if known.len() == 7));
}

/// The backward of layer 0's attention: the three projections share their input, so their windows all end together.
#[test]
fn projections_with_one_input_are_charged_for_each_other() {
    let mut step = Step::new();
    let root = step.module("Attention", None);
    let modules = ["wq", "wk", "wv"].map(|name| step.module(name, Some(root)));
    let [x, y, z, gradient] = [(); 4].map(|()| step.f32(&[ROWS, 768]));
    let weight = step.f32(&[768, 768]);
    let outer = step.enter(root);
    let calls = modules.map(|module| {
        let call = step.enter(module);
        step.run("mm.default", &[x, weight], &[y]);
        step.exit(call, Some(outer));
        call
    });
    step.exit(outer, None);

    step.phase = Phase::Backward;
    step.push(Event::EnterBackward(outer));
    for (position, &call) in calls.iter().rev().enumerate() {
        step.push(Event::EnterBackward(call));
        let transposed = step.f32(&[768, ROWS]);
        step.run("mm.default", &[transposed, gradient], &[weight]);
        step.run("mm.default", &[gradient, weight], &[y]);
        if position > 0 {
            step.run("add.Tensor", &[y, z], &[x]);
        }
    }
    for call in calls {
        step.push(Event::ExitBackward(call));
    }
    // A second end, and the outer module's missing one, change nothing.
    step.push(Event::ExitBackward(calls[0]));
    step.phase = Phase::Optimizer;
    step.run("_foreach_add_.Scalar", &[weight], &[]);

    let costs = step.costs("a100-80", CostRule::Torch);
    let times = ModuleTimes::new(&step.trace, &costs);
    for module in modules {
        assert_millis(times.forward()[module], 0.330_382_099_692_307_7);
    }
    assert_millis(times.backward()[modules[0]], 0.697_790_914_441_015_6); // attention.wq, bw
    assert_millis(times.backward()[modules[1]], 1.395_581_828_882_031); // attention.wk, bw
    assert_millis(times.backward()[modules[2]], 2.056_346_028_266_647); // attention.wv, bw
    assert_close(times.backward()[root].0, costs.total(Phase::Backward).time.0);
    assert_close(times.forward()[root].0, costs.total(Phase::Forward).time.0);
}
