"""The linear layer whose loss is computed in chunks: found in a captured step, and put onto a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rematic._core import PlanError, Trace
from rematic._model.follower import Follower
from rematic._model.wrapped import is_spread

from .logits import Logits

# Operators that end a cross-entropy, those that change logits number by number or take some of their rows, and those that compute them.
LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
CHANGES = ("_to_copy", "tanh", "mul", "div", "clone", "index")
PRODUCTS = ("mm", "addmm", "linear", "_scaled_mm")
BY_HAND = (
    "to compute it so by hand, call in place of the last projection and cross_entropy:\n"
    "    loss = rematic.chunked_loss(hidden, weight, labels)"
)

# What compiles the frames that run now; None or False if nothing does.
_compiler: Any = torch._C._dynamo.eval_frame.get_eval_frame_callback


class Chunked(NamedTuple):
    """A decision: the loss of this layer, by its path in the model, is computed over so many parts of its rows."""

    head: str
    chunks: int

    def facts(self) -> list[list[str]]:
        """What a step says of itself that computes its loss so."""
        return [["loss", "chunked"], ["loss-head", self.head], ["loss-chunks", str(self.chunks)]]


class Head(Follower):
    """Stands in for the forward of the layer."""

    def __init__(self, model: nn.Module, module: nn.Linear, path: str, chunks: int) -> None:
        self.model = model
        self.module = module
        self.path = path
        self.chunks = chunks
        # A model that evaluates has logits, unless it trains in that state.
        self.trains = model.training

    def __call__(self, hidden: Tensor) -> Any:
        module = self.module
        if not torch.is_grad_enabled() or (self.trains and not self.model.training):
            return nn.Linear.forward(module, hidden)
        # Where the compiler gives up a frame, what is called from there is compiled all the same.
        if torch.compiler.is_compiling() or callable(_compiler()):
            raise PlanError(
                f"The plan computes the loss of `{self.path}` in chunks, which torch.compile does not follow; plan with the plain "
                'loss (loss="plain"), or train without torch.compile'
            )
        if is_spread(module.weight):
            raise PlanError(
                f"The weight of `{self.path}` is spread over devices where it is used, so its loss cannot be computed in chunks; plan "
                'with the plain loss (loss="plain")'
            )
        return Logits.of(self.path, hidden, module.weight, module.bias, self.chunks)

    def take_off(self) -> None:
        """The layer is as it was."""
        self.module.__dict__.pop("forward", None)


def head_in(trace: Trace) -> str:
    """The path of the linear layer whose output goes into the largest cross-entropy of a step.

    It is found by what each operator reads: from the end of the loss back to `_log_softmax`, and through whatever changes logits number
    by number to the product that made them. That nothing else reads them is seen when the step runs with logits that cannot be read.
    """
    ops = [op for op in trace.ops if op.phase == "forward" and not op.view]
    made = {storage: op for op in reversed(ops) for storage, _ in op.outputs}
    classes = {module.path: module.class_name for module in trace.modules}
    heads: dict[str, int] = {}
    refused = "it has no cross_entropy"
    for loss in ops:
        if _name(loss) not in LOSSES or _name(made.get(loss.inputs[0][0])) != "_log_softmax":
            continue
        softmax = made[loss.inputs[0][0]]
        source = made.get(softmax.inputs[0][0])
        while source is not None and _name(source) in CHANGES and source.inputs:
            source = made.get(source.inputs[0][0])
        module = (source and source.module) or ""
        if _name(source) not in PRODUCTS or classes.get(module) != "Linear":
            where = f" in `{module}`" if module else ""
            refused = f"what its cross_entropy reads comes from {_name(source) or 'elsewhere'}{where}, and not from an nn.Linear"
            continue
        size = _elements(softmax.inputs[0][1][1])
        heads[module] = max(size, heads.get(module, 0))
    if not heads:
        raise PlanError(f"The loss of {trace.name} cannot be computed in chunks: {refused}; {BY_HAND}")
    return max(heads, key=lambda path: heads[path]).partition(".")[2]


def _name(op: Any) -> str:
    return "" if op is None else op.name.partition(".")[0]


def _elements(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def put(model: nn.Module, decision: Chunked) -> Head:
    """Puts it onto a model."""
    path = decision.head
    try:
        module = model.get_submodule(path)
    except AttributeError:
        raise PlanError(
            f"The plan computes the loss of `{path}` in chunks, and this {type(model).__name__} has no such module; capture and plan this one"
        ) from None
    if decision.chunks < 1:
        raise PlanError(f"The plan computes the loss of `{path}` in {decision.chunks} chunks; it takes at least 1")
    _check(module, path)
    assert isinstance(module, nn.Linear)
    head = module.__dict__["forward"] = Head(model, module, path, decision.chunks)
    return head


def _check(module: nn.Module, path: str) -> None:
    """Refuses a layer of which more than its product is asked."""
    why = None
    if type(module).forward is not nn.Linear.forward:
        why = f"it is of type {type(module).__name__}, and not an nn.Linear"
    elif "forward" in module.__dict__:
        why = "something has put another forward onto it"
    elif module._forward_hooks or module._forward_pre_hooks:
        why = "it has forward hooks, which would see its output or change its input"
    elif module._backward_hooks or module._backward_pre_hooks:
        why = "it has backward hooks, which would see the gradients of its output"
    elif any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
        why = "FSDP2 shards it by itself, so that its weight is gone when the loss is computed; shard it together with the model"
    if why is not None:
        raise PlanError(f'The loss of `{path}` cannot be computed in chunks: {why}; plan with the plain loss (loss="plain")')


@contextlib.contextmanager
def placed(model: nn.Module, decision: Chunked | None) -> Iterator[None]:
    """While it is entered, the model computes its loss so."""
    if decision is None:
        yield
        return
    head = put(model, decision)
    try:
        yield
    finally:
        head.take_off()
