use rematic_trace::{Category, Event, StepTrace};

use crate::error::FakeError;
use crate::nn::Outputs;
use crate::optimizer::{Optimizer, OptimizerState};
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
pub struct Step {
    tape: Tape,
    optimizer: OptimizerState,
}

impl Step {
    /// A step with this optimizer over all parameters that the tape knows.
    #[must_use]
    pub fn new(tape: &Tape, optimizer: Optimizer) -> Self {
        tape.fact("optimizer", optimizer);
        Step { tape: tape.clone(), optimizer: OptimizerState::new(tape, optimizer) }
    }

    /// Runs the step and gives its trace. Parameters and batch live on with their owner.
    ///
    /// # Errors
    /// The first mistake that an operator found.
    pub fn run<R: Outputs>(
        self,
        forward: impl FnOnce() -> R,
        loss_of: impl FnOnce(&R) -> Tensor,
    ) -> Result<StepTrace, FakeError> {
        // Sizes that no tensor can have are found before anything runs; nothing is gained by running then.
        if self.tape.has_failed() {
            return self.tape.take_trace();
        }
        let output = forward();
        if self.tape.has_failed() {
            return self.tape.take_trace();
        }
        self.drop_previous(&output.tensors());
        let loss = loss_of(&output);
        self.tape.backward(&loss);
        drop(loss);
        self.optimizer.step(&self.tape);
        self.optimizer.zero_grad();
        self.tape.take_trace()
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
