"""What is said when a step fails in its capture."""

from __future__ import annotations

import torch

from .errors import CaptureError, UnknownValue, user_line
from .modules import CallWatch
from .recorder import Recorder


def explained(error: Exception, recorder: Recorder, calls: CallWatch) -> CaptureError:
    where = f" in module `{calls.failed}`" if calls.failed else ""
    op = f", at operator `{recorder.running}`" if recorder.running is not None else ""
    line = user_line(error)
    at = f"\n  at {line}" if line else ""
    hint = _hint(error, recorder, calls)
    return CaptureError(
        f"The step fails on the meta device{where}{op}: {type(error).__name__}: {error}{at}\n{hint}"
    )


# What to do about errors that torch words like this.
_HINTS = {
    "don't yet support saved tensor hooks": "Gradients of torch.func cannot be watched; take torch.autograd.grad.",
    "FlexAttention": "Flex attention is made by the compiler, and has no backward on the CPU; take "
    "torch.nn.functional.scaled_dot_product_attention.",
    "expected device cpu but got meta": "A tensor that the step makes on the CPU needs a gradient: make it with "
    "requires_grad=True, or on the device.",
}


def _hint(error: Exception, recorder: Recorder, calls: CallWatch) -> str:
    if isinstance(error, NotImplementedError) and recorder.running is not None:
        return f"`{recorder.running}` has no meta kernel; give it one (torch.library.register_fake)."
    if not torch.is_grad_enabled():
        return "Gradients are off (torch.no_grad or torch.inference_mode): capture outside of it."
    known = next((hint for words, hint in _HINTS.items() if words in str(error)), None)
    if known is not None:
        return known
    if "meta tensor" in str(error) or "meta device" in str(error):
        return "It reads data that a tensor does not have here; leave this line out while the step is captured."
    if recorder.in_optimizer:
        return "It is the optimizer that fails; take another one, or optimizer=False to leave it out."
    if calls.failed is None and calls.forwards:
        return "The model has run; check the loss, and what the step does with the model's output."
    return "Check that the model runs with these inputs."


def unknown_value(error: UnknownValue, calls: CallWatch) -> UnknownValue:
    where = f"\n  in module `{calls.failed}`" if calls.failed else ""
    line = user_line(error)
    at = f"\n  at {line}" if line else ""
    return error.saying(f"{error.text}.{where}{at}")
