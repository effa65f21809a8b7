//! `torch.amp.GradScaler` with rows of gradients.

use rematic_trace::{Dtype, Layout, Op, OpId, Tensor};

use super::Fsdp2Error;
use super::walk::Walk;

/// The look at all gradients, which also divides them.
const UNSCALE: &str = "_amp_foreach_non_finite_check_and_unscale_.default";

impl Walk<'_> {
    pub(super) fn is_look_at_gradients(&self, op: &Op) -> bool {
        self.trace.op_name(op) == UNSCALE
    }

    /// A rank looks at its rows; whether any rank has found infinities, all are told.
    pub(super) fn look_at_gradients(&mut self, id: OpId) -> Result<(), Fsdp2Error> {
        self.finish_backward();
        self.optimizer_op(id)?;
        // What it has found is the last that it writes.
        if let Some(&found) = self.trace.mutates(self.trace.op(id)).last() {
            let layout = self.made.layout(&Layout::contiguous(Dtype::F32, &[]));
            let found = Tensor { storage: self.place(found), layout };
            self.traffic.agree(&mut self.made, found);
        }
        Ok(())
    }
}
