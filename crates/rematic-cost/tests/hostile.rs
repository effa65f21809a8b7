//! Traces that nobody could have recorded: they get a finite time or an error, never a panic.

mod step;

use proptest::prelude::*;
use rematic_cost::{CostError, CostRule, Costs, Device, ModuleTimes};
use rematic_trace::{Dtype, Flags, Layout, Phase};
use step::Step;

const NAMES: [&str; 14] = [
    "mm.default",
    "addmm.default",
    "bmm.default",
    "baddbmm.default",
    "_scaled_mm.default",
    "convolution.default",
    "convolution_backward.default",
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_efficient_attention_backward.default",
    "embedding.default",
    "nll_loss_forward.default",
    "nll_loss_backward.default",
    "_foreach_add_.List",
    "",
];

fn layout() -> impl Strategy<Value = Layout> {
    let dtype = prop::sample::select(vec![Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F8, Dtype::I64, Dtype::C64]);
    let extent = prop_oneof![0..4_u64, Just(1 << 20), Just(1 << 40), Just(u64::MAX)];
    let extents = || prop::collection::vec(extent.clone(), 0..6);
    // Ragged on purpose.
    (dtype, extents(), extents()).prop_map(|(dtype, shape, strides)| Layout { dtype, shape, strides })
}

proptest! {
    #[test]
    fn hostile_shapes_never_panic(
        ops in prop::collection::vec(
            (
                prop::sample::select(NAMES.to_vec()),
                prop::collection::vec(layout(), 0..6),
                prop::collection::vec(layout(), 0..4),
                any::<(bool, bool, bool)>(),
            ),
            1..8,
        ),
        device in prop::sample::select(vec!["v100", "a100-80", "mi355x"]),
    ) {
        let mut step = Step::new();
        let module = step.module("Root", None);
        let call = step.enter(module);
        for (name, inputs, outputs, (view, in_place, backward)) in &ops {
            step.flags = Flags { view: *view, ..Flags::default() };
            step.phase = if *backward { Phase::Backward } else { Phase::Forward };
            let inputs: Vec<_> = inputs.iter().map(|layout| step.tensor(layout)).collect();
            let outputs: Vec<_> = outputs.iter().map(|layout| step.tensor(layout)).collect();
            let mutated: Vec<_> = inputs.iter().filter(|_| *in_place).map(|tensor| tensor.storage).collect();
            step.run_in_place(name, &inputs, &outputs, &mutated);
        }
        step.exit(call, None);
        let device = Device::find(device).unwrap();
        for rule in CostRule::ALL {
            match Costs::new(&step.trace, &device, rule) {
                Ok(costs) => {
                    prop_assert!(costs.times().iter().all(|time| time.0.is_finite() && time.0 >= 0.0));
                    let times = ModuleTimes::new(&step.trace, &costs);
                    prop_assert!(times.forward().iter().chain(times.backward()).all(|time| time.0.is_finite()));
                }
                Err(error) => prop_assert!(
                    matches!(error, CostError::NoRate { .. } | CostError::NotInTorchDatasheet { .. }),
                    "{error}"
                ),
            }
        }
    }
}
