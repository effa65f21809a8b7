use rematic_trace::{Category, Dtype, Event, Phase, StepTrace};

use crate::error::FakeError;
use crate::nn::Outputs;
use crate::optimizer::{Optimizer, OptimizerState};
use crate::scaler::Scaler;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// One training step in steady state.
///
/// It is the loop that training scripts have, with the model's output in a variable: that variable holds the previous
/// step's output while forward runs, and this step's until the step is over.
///
/// ```python
/// output = model(batch)
/// loss_of(output).backward()
/// optimizer.step()
/// optimizer.zero_grad()
/// ```
///
/// With several micro-batches the first two lines run once for each, with the loss divided by their number.
pub struct Step {
    tape: Tape,
    optimizer: OptimizerState,
    autocast: Option<Dtype>,
    micro_batches: u32,
    scaler: Option<Scaler>,
}

impl Step {
    /// A step with this optimizer over all parameters that the tape knows.
    #[must_use]
    pub fn new(tape: &Tape, optimizer: Optimizer) -> Self {
        tape.fact("optimizer", optimizer);
        Step {
            tape: tape.clone(),
            optimizer: OptimizerState::new(tape, optimizer),
            autocast: None,
            micro_batches: 1,
            scaler: None,
        }
    }

    /// Forward and loss run under `torch.autocast` with this type.
    pub(crate) fn autocast(self, dtype: Option<Dtype>) -> Self {
        Step { autocast: dtype, ..self }
    }

    /// The loss is scaled by `torch.amp.GradScaler`.
    pub(crate) fn scaled(self) -> Self {
        self.tape.fact("scaler", "GradScaler");
        let scaler = Scaler::new(&self.tape);
        Step { scaler: Some(scaler), ..self }
    }

    /// Gradients of so many micro-batches are added up.
    pub(crate) fn micro_batches(self, count: u32) -> Self {
        Step { micro_batches: count.max(1), ..self }
    }

    /// Runs the step and gives its trace. Parameters and batch live on with their owner.
    ///
    /// # Errors
    /// The first mistake that an operator found.
    pub fn run<R: Outputs>(
        self,
        forward: impl FnOnce() -> R,
        loss_of: impl Fn(&R) -> Tensor,
    ) -> Result<StepTrace, FakeError> {
        let mut forward = Some(forward);
        self.run_all(|_| forward.take().map(|forward| forward()), loss_of)
    }

    /// The same with a forward of each micro-batch.
    pub(crate) fn run_each<R: Outputs>(
        self,
        mut forward: impl FnMut(usize) -> R,
        loss_of: impl Fn(&R) -> Tensor,
    ) -> Result<StepTrace, FakeError> {
        self.run_all(|batch| Some(forward(batch)), loss_of)
    }

    fn run_all<R: Outputs>(
        self,
        mut forward: impl FnMut(usize) -> Option<R>,
        loss_of: impl Fn(&R) -> Tensor,
    ) -> Result<StepTrace, FakeError> {
        // Sizes that no tensor can have are found before anything runs; nothing is gained by running then.
        if self.tape.has_failed() {
            return self.tape.take_trace();
        }
        let mut output = None;
        for batch in 0..self.micro_batches {
            self.begin(batch);
            let loss = self.tape.autocast(self.autocast, || {
                let made = forward(batch as usize)?;
                if self.tape.has_failed() {
                    return None;
                }
                if batch == 0 {
                    self.drop_previous(&made.tensors());
                }
                output = Some(made);
                output.as_ref().map(&loss_of)
            });
            let Some(mut loss) = loss else { return self.tape.take_trace() };
            if self.micro_batches > 1 {
                loss = loss.div_scalar();
            }
            if let Some(scaler) = &self.scaler {
                loss = scaler.scaled(&loss);
            }
            self.tape.backward(&loss);
        }
        self.optimizer.step(&self.tape, self.scaler.as_ref());
        self.optimizer.zero_grad();
        self.tape.take_trace()
    }

    /// A micro-batch begins, if there are several.
    fn begin(&self, batch: u32) {
        self.tape.with(|state| {
            state.phase = Phase::Forward;
            if self.micro_batches > 1 {
                state.emit(Event::MicroBatch(batch));
            }
        });
    }

    /// Assigning the output to its variable drops the previous step's.
    fn drop_previous(&self, outputs: &[Tensor]) {
        let mut storages: Vec<_> = outputs.iter().map(Tensor::storage).collect();
        storages.sort_unstable();
        storages.dedup();
        self.tape.with(|state| {
            for storage in storages {
                let bytes = state.trace.storages()[storage].bytes;
                let previous = state.trace.storage_before_step(bytes, Category::Activation);
                state.emit(Event::Drop(previous));
            }
        });
    }
}
