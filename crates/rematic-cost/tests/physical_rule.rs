//! The physical rule and its attribution, on steps whose answers are known by hand.

mod step;

use rematic_cost::{CostRule, Costs, DEFAULT_MATMUL_EFFICIENCY, Device, ModuleOrders, ModuleTimes};
use rematic_trace::{Bytes, Dtype, Event, Flags, Flops, Layout, Phase, Tensor};
use step::{Step, assert_close, assert_millis};

const LAUNCH: f64 = 0.9e-3;

fn bytes(step: &Step) -> u64 {
    step.costs("a100-80", CostRule::Physical).bytes().last().unwrap().0
}

#[test]
fn a_large_matmul_is_bound_by_its_own_types_dense_peak() {
    let mut step = Step::new();
    let flops = 2.0 * 4096_f64.powi(3);
    for (dtype, peak) in [(Dtype::F32, 67.0), (Dtype::Bf16, 989.0), (Dtype::F16, 989.0), (Dtype::F8, 1979.0)] {
        let [a, b] = [(); 2].map(|()| step.of(dtype, &[4096, 4096]));
        let c = step.bf16(&[4096, 4096]);
        step.run("mm.default", &[a, b], &[c]);
        assert_close(step.last_time("h100", CostRule::Physical), flops / (0.80 * peak * 1e9) + LAUNCH);
    }
    let mut step = Step::new();
    let [a, b, c] = [(); 3].map(|()| step.f32(&[4096, 4096]));
    step.run("mm.default", &[a, b], &[c]);
    let default = flops / (DEFAULT_MATMUL_EFFICIENCY * 30.3e9) + LAUNCH;
    assert_close(step.last_time("l4", CostRule::Physical), default);
}

#[test]
fn convolutions_in_f32_use_tf32_where_there_is_one() {
    let mut step = Step::new();
    let (x, weight, y) = (step.f32(&[32, 256, 56, 56]), step.f32(&[256, 256, 3, 3]), step.f32(&[32, 256, 56, 56]));
    step.run("convolution.default", &[x, weight], &[y]);
    let flops = 2.0 * 32.0 * 256.0 * 256.0 * 9.0 * 56.0 * 56.0;
    assert_close(step.last_time("a100-80", CostRule::Physical), flops / (0.87 * 156e9) + LAUNCH);
    assert_close(step.last_time("v100", CostRule::Physical), flops / (DEFAULT_MATMUL_EFFICIENCY * 15.7e9) + LAUNCH);
}

#[test]
fn other_kernels_are_bound_by_bandwidth_and_a_launch() {
    let mut step = Step::new();
    let [x, y] = [(); 2].map(|()| step.bf16(&[1 << 20]));
    step.run("gelu.default", &[x], &[y]);
    assert_close(step.last_time("a100-80", CostRule::Physical), f64::from(1 << 22) / 2039.0 / 1e6 + LAUNCH);
    step.run("_foreach_add_.Scalar", &[], &[]);
    assert_close(step.last_time("a100-80", CostRule::Physical), LAUNCH);
}

#[test]
fn views_host_operators_and_allocations_are_free() {
    let mut step = Step::new();
    let [x, y] = [(); 2].map(|()| step.f32(&[1000]));
    step.run("empty_like.default", &[x], &[y]);
    step.flags = Flags { view: true, ..Flags::default() };
    step.run("slice.Tensor", &[x], &[x]);
    step.flags = Flags { host: true, ..Flags::default() };
    step.run("_local_scalar_dense.default", &[x], &[]);
    let costs = step.costs("a100-80", CostRule::Physical);
    assert_eq!(costs.step().time.0, 0.0);
    assert_eq!(costs.step().bytes, Bytes(0));
}

#[test]
fn each_distinct_tensor_is_read_once_and_written_once() {
    let mut step = Step::new();
    let [x, y] = [(); 2].map(|()| step.f32(&[1000]));
    step.run("mul.Tensor", &[x, x], &[y]);
    assert_eq!(bytes(&step), 8000);
    step.run_in_place("mul_.Tensor", &[x, y], &[x], &[x.storage]);
    assert_eq!(bytes(&step), 12_000);
    // Two layouts over one storage are two tensors.
    let half = Tensor { storage: x.storage, layout: step.trace.layout(&Layout::contiguous(Dtype::F32, &[500])) };
    step.run("add.Tensor", &[x, half], &[y]);
    assert_eq!(bytes(&step), 10_000);
}

#[test]
fn what_is_changed_but_not_returned_is_written() {
    let mut step = Step::new();
    let [a, b, c] = [(); 3].map(|()| step.f32(&[1000]));
    step.run_in_place("_foreach_add_.List", &[a, b, c], &[], &[a.storage, b.storage]);
    assert_eq!(bytes(&step), 12_000 + 8000);
}

#[test]
fn sources_that_are_read_by_index_are_not_read_wholly() {
    let mut step = Step::new();
    let (table, rows, y) = (step.bf16(&[128_256, 4096]), step.of(Dtype::I64, &[10]), step.bf16(&[10, 4096]));
    step.run("embedding.default", &[table, rows], &[y]);
    assert_eq!(bytes(&step), 2 * 10 * 4096 * 2 + 80);
    let (small, y) = (step.bf16(&[4, 4096]), step.bf16(&[10, 4096]));
    step.run("embedding.default", &[small, rows], &[y]);
    assert_eq!(bytes(&step), 4 * 4096 * 2 + 10 * 4096 * 2 + 80);

    let (scores, gradient) = (step.f32(&[10, 1000]), step.f32(&[10, 1000]));
    let (loss, weight) = (step.f32(&[]), step.f32(&[]));
    step.run("nll_loss_forward.default", &[scores, rows], &[loss, weight]);
    assert_eq!(bytes(&step), 40 + 80 + 8);
    step.run("nll_loss_backward.default", &[loss, scores, rows, weight], &[gradient]);
    assert_eq!(bytes(&step), 4 + 80 + 4 + 40_000);
}

#[test]
fn a_type_without_a_rate_is_refused_with_a_way_out() {
    let mut step = Step::new();
    let [a, b, c] = [(); 3].map(|()| step.of(Dtype::F8, &[8, 8]));
    step.run("relu.default", &[a], &[b]);
    step.run("mm.default", &[a, b], &[c]);
    let error = Costs::new(&step.trace, &Device::find("v100").unwrap(), CostRule::Physical).unwrap_err();
    assert_eq!(
        error.to_string(),
        "op 1 (mm.default) multiplies in fp8, but v100 has no fp8 rate under the physical rule; train in another \
         type, or give the device that rate with --device-file"
    );
}

#[test]
fn bf16_without_units_runs_at_the_rate_of_f32() {
    let mut step = Step::new();
    let [a, b, c] = [(); 3].map(|()| step.bf16(&[4096, 4096]));
    step.run("mm.default", &[a, b], &[c]);
    let flops = 2.0 * 4096_f64.powi(3);
    assert_close(step.last_time("v100", CostRule::Physical), flops / (DEFAULT_MATMUL_EFFICIENCY * 15.7e9) + LAUNCH);
}

/// root { a { b }, c }, where `b` is called twice.
#[test]
fn time_goes_to_the_calls_module_and_all_above_it() {
    let mut step = Step::new();
    let root = step.module("Root", None);
    let a = step.module("a", Some(root));
    let b = step.module("b", Some(a));
    let c = step.module("c", Some(root));
    let [x, y] = [(); 2].map(|()| step.f32(&[1000]));
    let relu = 8000.0 / 2039.0 / 1e6 + LAUNCH;

    let in_root = step.enter(root);
    let in_a = step.enter(a);
    let mut calls_of_b = Vec::new();
    for _ in 0..2 {
        let in_b = step.enter(b);
        step.run("relu.default", &[x], &[y]);
        step.exit(in_b, Some(in_a));
        calls_of_b.push(in_b);
    }
    step.run("relu.default", &[x], &[y]);
    step.exit(in_a, Some(in_root));
    let in_c = step.enter(c);
    step.exit(in_c, Some(in_root));
    step.run("relu.default", &[x], &[y]);
    step.exit(in_root, None);
    step.run("relu.default", &[x], &[y]);
    step.phase = Phase::Backward;
    step.call = Some(calls_of_b[1]);
    // The windows do not matter for this attribution.
    step.push(Event::EnterBackward(in_c));
    step.run("relu.default", &[x], &[y]);
    step.push(Event::ExitBackward(in_c));
    step.push(Event::ExitBackward(in_a));
    step.phase = Phase::Optimizer;
    step.run("relu.default", &[x], &[y]);

    let costs = step.costs("a100-80", CostRule::Physical);
    let times = ModuleTimes::new(&step.trace, &costs);
    for (module, forward, backward) in [(root, 4.0, 1.0), (a, 3.0, 1.0), (b, 2.0, 1.0), (c, 0.0, 0.0)] {
        assert_millis(times.forward()[module], forward * relu);
        assert_millis(times.backward()[module], backward * relu);
    }
    assert_millis(costs.total(Phase::Forward).time, 5.0 * relu);
    assert_millis(costs.total(Phase::Optimizer).time, relu);
    assert_eq!(costs.step().bytes, Bytes(7 * 8000));
    assert_eq!(costs.step().flops, Flops(0));

    let orders = ModuleOrders::new(&step.trace);
    assert_eq!(orders.fw_pre, [root, a, b, b, c]);
    assert_eq!(orders.fw_post, [b, b, a, c, root]);
    assert_eq!(orders.bw_pre, [c]);
    assert_eq!(orders.bw_post, [c, a]);
}
