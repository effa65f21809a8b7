//! What the model computes in a step, and how fast the device could.

use rematic_trace::{Flops, Layout, Phase, StepTrace};

use crate::costs::Costs;
use crate::device::{Device, TflopPerSecond};
use crate::flops::Formula;
use crate::rules::without_overload;

/// What a share of the device's peak is counted by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The model's flops, of this rank: three times the products of forward, for those of backward are twice as many. Where backward
    /// computes fewer, because parameters are frozen, just what is computed. What is recomputed is never counted.
    ///
    /// For a decoder that is the usual rule: per token 6 for each parameter that is multiplied, and 12 · layers · width · positions for
    /// attention, as if it were not causal.
    pub flops: Flops,
    /// The device's dense rate for the type of the step's largest product; `None` if it has no products, or no such rate.
    pub peak: Option<TflopPerSecond>,
}

impl Work {
    /// Of a step with its costs.
    #[must_use]
    pub fn new(trace: &StepTrace, costs: &Costs, device: &Device) -> Work {
        let [forward, backward] = [Phase::Forward, Phase::Backward].map(|phase| costs.total(phase).flops.0);
        let flops = Flops(forward.saturating_mul(3).min(forward.saturating_add(backward)));
        let largest = costs.flops().entries().fold(None, |largest, (op, &flops)| match largest {
            Some((_, most)) if flops.0 <= most => largest,
            _ => (flops.0 > 0).then_some((op, flops.0)).or(largest),
        });
        let dtype = largest.and_then(|(op, _)| {
            let op = trace.ops().get(op)?;
            let inputs: Vec<&Layout> = trace.inputs(op).iter().map(|tensor| trace.layout_of(*tensor)).collect();
            Formula::of(without_overload(trace.op_name(op))).dtype(&inputs)
        });
        Work { flops, peak: dtype.and_then(|dtype| device.peaks.of(dtype)) }
    }
}
