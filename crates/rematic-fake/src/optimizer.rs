use std::fmt;
use std::str::FromStr;

use rematic_trace::{Category, Phase};

use crate::kernel::{Kernel, Out};
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The optimizer, in PyTorch's `foreach` implementation with its default settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimizer {
    /// Adam without weight decay.
    #[default]
    Adam,
    /// AdamW with decoupled weight decay.
    AdamW,
    /// Plain gradient descent.
    Sgd,
    /// Gradient descent with momentum.
    SgdMomentum,
}

impl Optimizer {
    /// All names, as the command line takes them.
    pub const NAMES: [(&'static str, Optimizer); 4] = [
        ("adam", Optimizer::Adam),
        ("adamw", Optimizer::AdamW),
        ("sgd", Optimizer::Sgd),
        ("sgd-momentum", Optimizer::SgdMomentum),
    ];

    fn state_tensors(self) -> usize {
        match self {
            Optimizer::Adam | Optimizer::AdamW => 2,
            Optimizer::Sgd => 0,
            Optimizer::SgdMomentum => 1,
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES.iter().find(|(_, optimizer)| optimizer == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for Optimizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::NAMES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, optimizer)| *optimizer)
            .ok_or_else(|| format!("`{text}` is not an optimizer; take adam, adamw, sgd or sgd-momentum"))
    }
}

/// An optimizer with its state, which exists before the step.
pub(crate) struct OptimizerState {
    optimizer: Optimizer,
    parameters: Vec<Tensor>,
    /// One list a kind of state (first moments, second moments).
    states: Vec<Vec<Tensor>>,
}

impl OptimizerState {
    pub(crate) fn new(tape: &Tape, optimizer: Optimizer) -> Self {
        let parameters = tape.state().parameters.clone();
        let state_of =
            |parameter: &Tensor| tape.tensor_before_step(parameter.dtype(), parameter.shape(), Category::Optimizer);
        let states = (0..optimizer.state_tensors()).map(|_| parameters.iter().map(state_of).collect()).collect();
        OptimizerState { optimizer, parameters, states }
    }

    /// `optimizer.step()`.
    pub(crate) fn step(&self, tape: &Tape) {
        tape.with(|state| state.phase = Phase::Optimizer);
        let (parameters, gradients): (Vec<Tensor>, Vec<Tensor>) =
            self.parameters.iter().filter_map(|p| Some((p.clone(), p.gradient()?))).unzip();
        if parameters.is_empty() {
            return;
        }
        // Parameters without a gradient are left alone, and so is their state.
        let kept = |states: &[Tensor]| -> Vec<Tensor> {
            let with_gradient = self.parameters.iter().zip(states).filter(|(p, _)| p.gradient().is_some());
            with_gradient.map(|(_, state)| state.clone()).collect()
        };
        match (self.optimizer, self.states.as_slice()) {
            (Optimizer::Adam | Optimizer::AdamW, [first, second]) => {
                self.adam(tape, &parameters, gradients, &kept(first), &kept(second));
            }
            (Optimizer::SgdMomentum, [momenta]) => {
                let momenta = &kept(momenta);
                in_place(tape, "_foreach_mul_.Scalar", momenta, &[]);
                in_place(tape, "_foreach_add_.List", momenta, &[&gradients]);
                in_place(tape, "_foreach_add_.List", &parameters, &[momenta]);
            }
            _ => in_place(tape, "_foreach_add_.List", &parameters, &[&gradients]),
        }
    }

    fn adam(&self, tape: &Tape, parameters: &[Tensor], gradients: Vec<Tensor>, first: &[Tensor], second: &[Tensor]) {
        // The step counters live on the host.
        on_host(tape, "lift_fresh.default", 1);
        on_host(tape, "_foreach_add_.Tensor", 1);
        if self.optimizer == Optimizer::AdamW {
            in_place(tape, "_foreach_mul_.Scalar", parameters, &[]);
        }
        in_place(tape, "_foreach_lerp_.Scalar", first, &[&gradients]);
        in_place(tape, "_foreach_mul_.Scalar", second, &[]);
        in_place(tape, "_foreach_addcmul_.Scalar", second, &[&gradients, &gradients]);
        drop(gradients);
        // Two bias corrections a parameter.
        on_host(tape, "_local_scalar_dense.default", 2 * parameters.len());
        let inputs: Vec<&Tensor> = second.iter().collect();
        let outputs = second.iter().map(|state| Out::New(state.layout().clone())).collect();
        let roots = tape.launch(Kernel::new("_foreach_sqrt.default", &inputs, outputs));
        in_place(tape, "_foreach_div_.ScalarList", &roots, &[]);
        in_place(tape, "_foreach_add_.Scalar", &roots, &[]);
        in_place(tape, "_foreach_addcdiv_.ScalarList", parameters, &[first, &roots]);
        // Python lets go of a list from its end.
        roots.into_iter().rev().for_each(drop);
    }

    /// `optimizer.zero_grad()`.
    pub(crate) fn zero_grad(&self) {
        for parameter in &self.parameters {
            parameter.set_gradient(None);
        }
    }
}

/// A kernel over lists of tensors that changes the first list.
fn in_place(tape: &Tape, name: &'static str, targets: &[Tensor], others: &[&[Tensor]]) {
    let inputs: Vec<&Tensor> = targets.iter().chain(others.iter().flat_map(|list| list.iter())).collect();
    let mutates: Vec<&Tensor> = targets.iter().collect();
    tape.launch(Kernel::new(name, &inputs, vec![]).mutating(&mutates));
}

fn on_host(tape: &Tape, name: &'static str, times: usize) {
    for _ in 0..times {
        let mut kernel = Kernel::new(name, &[], vec![]);
        kernel.flags.host = true;
        tape.launch(kernel);
    }
}
