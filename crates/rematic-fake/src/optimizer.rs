mod single;

use std::fmt;
use std::str::FromStr;

use rematic_trace::{Category, Dtype, Phase};

use crate::kernel::{Kernel, Out};
use crate::parallel::Spread;
use crate::scaler::{Scaler, Scaling};
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The optimizer, with PyTorch's default settings: in its `foreach` implementation, or fused into one kernel.
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
    /// Adam in one kernel.
    AdamFused,
    /// AdamW in one kernel.
    AdamWFused,
    /// Plain gradient descent in one kernel.
    SgdFused,
    /// Gradient descent with momentum in one kernel.
    SgdMomentumFused,
    /// AdamW with its state in 8 bits, as bitsandbytes has it.
    AdamW8bit,
    /// Lion, as `lion-pytorch` has it.
    Lion,
    /// `torch.optim.Muon` for matrices, and AdamW in one kernel for the rest.
    Muon,
    /// `torch.optim.Adafactor`.
    Adafactor,
    /// None: forward and backward alone, after which the gradients are there.
    None,
}

impl Optimizer {
    /// All names, as the command line takes them.
    pub const NAMES: [(&'static str, Optimizer); 13] = [
        ("adam", Optimizer::Adam),
        ("adamw", Optimizer::AdamW),
        ("sgd", Optimizer::Sgd),
        ("sgd-momentum", Optimizer::SgdMomentum),
        ("adam-fused", Optimizer::AdamFused),
        ("adamw-fused", Optimizer::AdamWFused),
        ("sgd-fused", Optimizer::SgdFused),
        ("sgd-momentum-fused", Optimizer::SgdMomentumFused),
        ("adamw8bit", Optimizer::AdamW8bit),
        ("lion", Optimizer::Lion),
        ("muon", Optimizer::Muon),
        ("adafactor", Optimizer::Adafactor),
        ("none", Optimizer::None),
    ];

    /// Whether all is done by one kernel.
    fn is_fused(self) -> bool {
        use Optimizer::{AdamFused, AdamWFused, SgdFused, SgdMomentumFused};
        matches!(self, AdamFused | AdamWFused | SgdFused | SgdMomentumFused)
    }

    /// The same in one kernel, if it is not and there is one.
    #[must_use]
    pub fn fused(self) -> Option<Optimizer> {
        match self {
            Optimizer::Adam => Some(Optimizer::AdamFused),
            Optimizer::AdamW => Some(Optimizer::AdamWFused),
            Optimizer::Sgd => Some(Optimizer::SgdFused),
            Optimizer::SgdMomentum => Some(Optimizer::SgdMomentumFused),
            _ => None,
        }
    }

    /// How many tensors like it an optimizer keeps for a parameter.
    fn state_tensors(self) -> usize {
        match self {
            Optimizer::Adam | Optimizer::AdamW | Optimizer::AdamFused | Optimizer::AdamWFused => 2,
            Optimizer::SgdMomentum | Optimizer::SgdMomentumFused => 1,
            _ => 0,
        }
    }

    /// Whether it steps for one parameter after the other.
    fn is_single(self) -> bool {
        matches!(self, Optimizer::AdamW8bit | Optimizer::Lion | Optimizer::Muon | Optimizer::Adafactor)
    }

    /// Whether a step counter of each parameter lies on the device, where the kernel reads it; else it lies on the host.
    fn counts_on_device(self) -> bool {
        matches!(self, Optimizer::AdamFused | Optimizer::AdamWFused)
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
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, optimizer)| *optimizer).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _)| name);
            format!("`{text}` is not an optimizer; take one of {}", names.join(", "))
        })
    }
}

/// An optimizer with its state, which exists before the step.
pub(crate) struct OptimizerState {
    optimizer: Optimizer,
    parameters: Vec<Tensor>,
    /// The step counters that lie on the device.
    counters: Vec<Tensor>,
    /// One list a kind of state (first moments, second moments).
    states: Vec<Vec<Tensor>>,
    /// Of an optimizer that steps for one parameter after the other: what it keeps for each.
    own: Vec<Vec<Tensor>>,
    /// What it shares among all.
    shared: Vec<Tensor>,
    /// The optimizer of the parameters that this one does not take.
    rest: Option<Box<OptimizerState>>,
}

impl OptimizerState {
    pub(crate) fn new(tape: &Tape, optimizer: Optimizer) -> Self {
        let parameters = tape.state().parameters.clone();
        if optimizer != Optimizer::Muon {
            return Self::of(tape, optimizer, parameters);
        }
        let (matrices, others) = parameters.into_iter().partition(|parameter| parameter.shape().len() == 2);
        let rest = Self::of(tape, Optimizer::AdamWFused, others);
        OptimizerState { rest: Some(Box::new(rest)), ..Self::of(tape, optimizer, matrices) }
    }

    fn of(tape: &Tape, optimizer: Optimizer, parameters: Vec<Tensor>) -> Self {
        let begins_as_gradient = matches!(optimizer, Optimizer::SgdMomentum | Optimizer::SgdMomentumFused);
        let state_of = |parameter: &Tensor| {
            // The momentum begins as a copy of the gradient, and lies as that does.
            let shape = match parameter.spread() {
                Spread::Whole(_, shape) if begins_as_gradient => shape,
                _ => parameter.shape(),
            };
            tape.tensor_before_step(parameter.dtype(), shape, Category::Optimizer)
        };
        let mut counters = Vec::new();
        let mut states = vec![Vec::new(); optimizer.state_tensors()];
        let mut own = Vec::new();
        let shared = match optimizer {
            // The two tables of what 8 bits stand for.
            Optimizer::AdamW8bit => {
                vec![tape.tensor_before_step(Dtype::F32, &[256], Category::Optimizer); 2]
            }
            _ => Vec::new(),
        };
        // PyTorch makes all that belongs to a parameter before it goes on to the next.
        for parameter in &parameters {
            if optimizer.counts_on_device() {
                counters.push(tape.tensor_before_step(Dtype::F32, &[], Category::Optimizer));
            }
            states.iter_mut().for_each(|kind| kind.push(state_of(parameter)));
            if optimizer.is_single() {
                own.push(single::state_of(tape, optimizer, parameter));
            }
        }
        OptimizerState { optimizer, parameters, counters, states, own, shared, rest: None }
    }

    /// `optimizer.step()`, or `scaler.step(optimizer)` and `scaler.update()`.
    pub(crate) fn step(&self, tape: &Tape, scaler: Option<&Scaler>) {
        if self.optimizer == Optimizer::None {
            return;
        }
        let Some(scaler) = scaler else { return self.unscaled_step(tape, None) };
        // Neither backward nor the optimizer, which is what capture calls forward.
        tape.with(|state| state.phase = Phase::Forward);
        // In the order of the model, which is that of `param_groups`.
        let gradients: Vec<Tensor> = tape.state().parameters.iter().filter_map(Tensor::gradient).collect();
        let mut checked = scaler.check(&gradients, self.optimizer.is_fused());
        drop(gradients);
        self.unscaled_step(tape, checked.scaling.take());
        scaler.update(checked);
    }

    fn unscaled_step(&self, tape: &Tape, scaling: Option<Scaling>) {
        tape.with(|state| state.phase = Phase::Optimizer);
        if self.optimizer.is_single() {
            self.step_single(tape);
            return self.rest.iter().for_each(|rest| rest.unscaled_step(tape, None));
        }
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
        if self.optimizer.is_fused() {
            let states: Vec<Vec<Tensor>> = self.states.iter().map(|states| kept(states)).collect();
            let tensors = [&parameters[..], &gradients[..], &kept(&self.counters)[..]];
            return self.fused(tape, tensors, &states, scaling.as_ref());
        }
        match (self.optimizer, self.states.as_slice()) {
            (Optimizer::Adam | Optimizer::AdamW, [first, second]) => {
                self.adam(tape, &parameters, gradients, &kept(first), &kept(second));
            }
            (Optimizer::SgdMomentum, [momenta]) => {
                let momenta = &kept(momenta);
                in_place(tape, "_foreach_mul_.Scalar", momenta, &[]);
                in_place(tape, "_foreach_add_.List", momenta, &[&gradients]);
                in_place(tape, "_foreach_add_.List", &parameters, &[&settled(&parameters, momenta)]);
            }
            _ => in_place(tape, "_foreach_add_.List", &parameters, &[&settled(&parameters, &gradients)]),
        }
    }

    /// One parameter after the other.
    fn step_single(&self, tape: &Tape) {
        let kept = self.parameters.iter().zip(&self.own);
        let each: Vec<(Tensor, Tensor, &[Tensor])> =
            kept.filter_map(|(p, own)| Some((p.clone(), p.gradient()?, own.as_slice()))).collect();
        match self.optimizer {
            Optimizer::Muon => single::muon(&each),
            Optimizer::Adafactor => single::adafactor(tape, &each),
            other => single::step_each(tape, other, &each, &self.shared),
        }
    }

    fn adam(&self, tape: &Tape, parameters: &[Tensor], gradients: Vec<Tensor>, first: &[Tensor], second: &[Tensor]) {
        // The step counters live on the host.
        on_host(tape, "lift_fresh.default", 1);
        on_host(tape, "_foreach_add_.Tensor", 1);
        if self.optimizer == Optimizer::AdamW {
            in_place(tape, "_foreach_mul_.Scalar", parameters, &[]);
        }
        in_place(tape, "_foreach_lerp_.Scalar", first, &[&settled(parameters, &gradients)]);
        in_place(tape, "_foreach_mul_.Scalar", second, &[]);
        let factors = [settled(parameters, &gradients), settled(parameters, &gradients)];
        in_place(tape, "_foreach_addcmul_.Scalar", second, &[&factors[0], &factors[1]]);
        drop(factors);
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

    /// One kernel changes parameters, gradients (by their scale) and state; the counters go ahead of it.
    fn fused(
        &self,
        tape: &Tape,
        [parameters, gradients, counters]: [&[Tensor]; 3],
        states: &[Vec<Tensor>],
        scaling: Option<&Scaling>,
    ) {
        let name = match self.optimizer {
            Optimizer::AdamFused => "_fused_adam_.default",
            Optimizer::AdamWFused => "_fused_adamw_.default",
            _ => "_fused_sgd_.default",
        };
        if !counters.is_empty() {
            in_place(tape, "_foreach_add_.Scalar", counters, &[]);
        }
        let gradients = settled(parameters, gradients);
        let changed: Vec<&Tensor> = parameters.iter().chain(&gradients).chain(states.iter().flatten()).collect();
        let scales = scaling.into_iter().flat_map(|scaling| [&scaling.grad_scale, &scaling.found_inf]);
        let inputs: Vec<&Tensor> = changed.iter().copied().chain(counters).chain(scales).collect();
        tape.launch(Kernel::new(name, &inputs, vec![]).mutating(&changed));
        if let Some(scaling) = scaling.filter(|_| !counters.is_empty()) {
            // A step that is left out does not count.
            in_place(tape, "_foreach_sub_.List", counters, &[&vec![scaling.found_inf.clone(); counters.len()]]);
        }
    }

    /// `optimizer.zero_grad()`.
    pub(crate) fn zero_grad(&self) {
        for parameter in &self.parameters {
            parameter.set_gradient(None);
        }
        self.rest.iter().for_each(|rest| rest.zero_grad());
    }
}

/// Gradients or momenta as the parameters are spread; of those that are not, copies.
fn settled(parameters: &[Tensor], others: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().zip(others).map(|(parameter, other)| other.settled(parameter.spread())).collect()
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
