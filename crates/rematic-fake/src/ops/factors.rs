use crate::autograd::Gradients;
use crate::kernel::Slot;
use crate::tensor::Tensor;

/// The two factors of a product. The gradient of each is computed from the other, so each is saved only if the other one
/// needs a gradient.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    left_needs: bool,
    right_needs: bool,
}

impl Factors {
    /// The factors, and what autograd saves of them.
    pub(super) fn new<'a>(left: &'a Tensor, right: &'a Tensor) -> (Self, Vec<Slot<'a>>) {
        let factors = Factors { left_needs: left.requires_grad(), right_needs: right.requires_grad() };
        let saves = [(factors.left_needs, right), (factors.right_needs, left)];
        (factors, saves.into_iter().filter(|(needed, _)| *needed).map(|(_, other)| Slot::Input(other)).collect())
    }

    /// The right factor, if the left one needs a gradient.
    pub(super) fn right_for_left<'a>(self, gradients: &'a Gradients<'_>) -> Option<&'a Tensor> {
        self.left_needs.then(|| &gradients.saved[0])
    }

    /// The left factor, if the right one needs a gradient.
    pub(super) fn left_for_right<'a>(self, gradients: &'a Gradients<'_>) -> Option<&'a Tensor> {
        self.right_needs.then(|| &gradients.saved[usize::from(self.left_needs)])
    }
}
