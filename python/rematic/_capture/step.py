"""Capture: one training step of a PyTorch model, without a GPU and without its memory.

The model's structure is copied to the meta device, where tensors have shapes but no data, and one step runs there with
PyTorch's own autograd, on the operators that the target device would run. What comes out is the trace document of
`docs/trace-format.md`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rematic._core import Trace
from rematic._device import card_of, kind_of
from rematic._loss.head import Chunked, placed
from rematic._loss.kinds import LossKind, function_and_kind, of_kind
from rematic._model.cache import caching_configs, makes_cache, without_cache
from rematic._model.follower import check_free
from rematic._model.settings import Settings
from rematic._model.trees import tensors_in
from rematic._warning import warn

from . import leftovers
from .arguments import (
    OptimizerChoice,
    check_gradients,
    check_loss,
    check_model,
    check_optimizer,
    unwrapped,
)
from .attempt import Attempt, Before, Step
from .attention import on_card
from .bystanders import Bystanders
from .errors import CaptureError, UnknownValue, let_go_of_frames
from .readings import Place
from .rehearsal import Rehearsal

__all__ = ["OptimizerChoice", "capture", "capture_step", "document", "document_of_step"]

CACHES = (
    "the model's config has use_cache, which keeps keys and values for generation; a step without it is captured, and under a "
    "plan the model trains without it; give use_cache=False or True to say what you want"
)
DEPENDS = (
    "what this step does, and the shapes in it, depend on weights or random numbers{}; one real run of it has told what they are "
    "now. Weights change from step to step, and shapes with them: the peaks are those of this step"
)
EVALUATES = (
    "the model is in evaluation mode, where dropout and batch norm do other things than in training; call model.train() "
    "first, or give eval_mode=True if it trains like this"
)


def document(
    model: nn.Module,
    *args: Any,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: OptimizerChoice = None,
    device: Any = "cuda",
    eval_mode: bool = False,
    chunked: Chunked | None = None,
    **kwargs: Any,
) -> bytes:
    """What `capture` captures, as the text of a trace file."""
    check_model(model, "give the module whose step is to be captured, and then its inputs")
    check_loss(loss)
    check_gradients()

    def step(copied: nn.Module, stepper: torch.optim.Optimizer | None, inputs: Any) -> Any:
        output = copied(*inputs[0], **inputs[1])
        loss_of(output, loss).backward()
        if stepper is not None:
            stepper.step()
            stepper.zero_grad()
        else:
            copied.zero_grad()
        return output

    return _run(step, model, optimizer, device, (args, kwargs), Bystanders(loss), eval_mode, chunked)


def document_of_step(
    fn: Callable[[nn.Module, Any], Any],
    model: nn.Module,
    optimizer: OptimizerChoice = None,
    *,
    device: Any = "cuda",
    eval_mode: bool = False,
    chunked: Chunked | None = None,
) -> bytes:
    """What `capture_step` captures, as the text of a trace file."""
    check_model(model, "capture_step takes the step's function, then the model, then its optimizer")
    if not callable(fn):
        raise TypeError(f"`fn` must be a function of `model, optimizer`, but is of type {type(fn).__name__}")

    def step(copied: nn.Module, stepper: torch.optim.Optimizer | None, inputs: Any) -> Any:
        return fn(copied, stepper)

    return _run(step, model, optimizer, device, ((), {}), Bystanders(fn), eval_mode, chunked)


def capture(
    model: nn.Module,
    *args: Any,
    loss: Callable[[Any], Tensor] | LossKind | None = None,
    loss_kind: LossKind | None = None,
    optimizer: OptimizerChoice = None,
    device: Any = "cuda",
    eval_mode: bool = False,
    **kwargs: Any,
) -> Trace:
    """Captures one training step of `model(*args, **kwargs)` in steady state, without a GPU and without its memory.

    `loss` takes the model's output and gives a scalar; by default it is the output's own `loss` if it has one, and
    otherwise the sum of its first tensor that needs a gradient. `optimizer` is an optimizer of this model, or a
    function from parameters to one, or False for none; by default Adam. `device` says whose operators run: "cuda", "cpu", a
    torch.device, or a name of `rematic devices`. `eval_mode` says that the model is meant to train in evaluation mode,
    which is warned of otherwise.

    `loss_kind="chunked"` captures the step with the cross-entropy of its last linear layer computed over parts of the rows, as `apply` of a
    plan for it does; "auto" captures both, for `plan(trace, loss="auto")`. Without a function, `loss` takes these words too.

    The step is `output = model(...)`, `loss(output).backward()`, `optimizer.step()`, `optimizer.zero_grad()`. The
    loop's variable holds the output, so the previous step's lives until this one's forward is over.
    """
    function, kind = function_and_kind(loss, loss_kind)

    def captured(chunked: Chunked | None) -> Trace:
        said: dict[str, Any] = {"optimizer": optimizer, "device": device, "eval_mode": eval_mode, "chunked": chunked}
        return Trace.from_bytes(document(model, *args, loss=function, **said, **kwargs))

    return of_kind(kind, captured)


def capture_step(
    fn: Callable[[nn.Module, Any], Any],
    model: nn.Module,
    optimizer: OptimizerChoice = None,
    *,
    loss_kind: LossKind | None = None,
    device: Any = "cuda",
    eval_mode: bool = False,
) -> Trace:
    """Captures one call of a training-step function: `fn(model, optimizer)` is called with copies on the meta device.

    What `fn` returns counts as held by the training loop until the next step's forward is over. `loss_kind` is that of `capture`.
    """
    _, kind = function_and_kind(None, loss_kind)

    def captured(chunked: Chunked | None) -> Trace:
        return Trace.from_bytes(document_of_step(fn, model, optimizer, device=device, eval_mode=eval_mode, chunked=chunked))

    return of_kind(kind, captured)


def loss_of(output: Any, loss: Callable[[Any], Tensor] | None) -> Tensor:
    """What a step goes backward from: what `loss` gives, or what the model says itself."""
    if loss is not None:
        value = loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise CaptureError(
                f"`loss` must give a tensor with one element, but gave {found}; reduce it, as by .mean()"
            )
    else:
        given = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(given, Tensor):
            value = given
        else:
            differentiable = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
            if not differentiable:
                raise CaptureError(
                    "Nothing that the model returns needs a gradient, so there is no backward to capture; "
                    "check requires_grad of its parameters, torch.no_grad, and detach"
                )
            value = differentiable[0] if differentiable[0].dim() == 0 else differentiable[0].sum()
    if not value.requires_grad:
        raise CaptureError(
            "The loss needs no gradient, so there is no backward to capture; "
            "check requires_grad of the model's parameters, torch.no_grad, and detach"
        )
    return value


def _run(
    step: Step,
    model: nn.Module,
    optimizer: OptimizerChoice,
    device: Any,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    bystanders: Bystanders,
    eval_mode: bool,
    chunked: Chunked | None,
) -> bytes:
    kind = kind_of(device)
    check_optimizer(optimizer)
    model = unwrapped(model)
    check_free(model)
    caching = [] if "use_cache" in inputs[1] else caching_configs(model)
    if makes_cache(model, caching):
        warn(CACHES)
    with without_cache(caching), placed(model, chunked), on_card(card_of(device)):
        search = _Search(step, model, optimizer, kind, inputs, bystanders)
        found = search.steady()
    if found.place.is_used:
        warn(DEPENDS.format(search.rehearsal.line))
    if found.evaluates and not eval_mode:
        warn(EVALUATES)
    leftovers.warn_of(search.kept)
    if chunked is not None:
        found.document["origin"]["options"] = chunked.facts()
    return json.dumps(found.document, separators=(",", ":")).encode()


class _Found(NamedTuple):
    """What an attempt has found."""

    document: dict[str, Any]
    place: Place
    evaluates: bool
    # Whether the step leaves something, besides gradients and what it returns.
    keeps: bool
    # What the next step finds.
    after: Before


class _Search:
    """Attempts, one after the other, until a step finds what it leaves, and every value is known that it asks for."""

    def __init__(
        self,
        step: Step,
        model: nn.Module,
        optimizer: OptimizerChoice,
        device: str,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        bystanders: Bystanders,
    ) -> None:
        self._step = step
        self._asked = (model, optimizer, device, inputs, bystanders)
        self._bystanders = bystanders
        self.rehearsal = self._opening = Rehearsal(step, model, optimizer, device, inputs, bystanders)
        self.kept: leftovers.Kept = []
        self._surroundings = leftovers.Surroundings(model)

    def steady(self) -> _Found:
        """The step in steady state."""
        before = Before()
        first: _Found | None = None
        while True:
            try:
                found = self._attempted(before)
            except CaptureError:
                # Nothing tells of a second step.
                if first is None:
                    raise
                return first
            if found is None:
                continue
            if found.after != before:
                # What a step leaves, it finds. That is known now.
                before = found.after
            elif found.keeps and not before.is_warm:
                # Perhaps for all steps to come, and they do without what makes it.
                first, self.rehearsal = found, self._opening.warmed()
                before = dataclasses.replace(before, is_warm=True)
            else:
                return found

    def _attempted(self, before: Before) -> _Found | None:
        """What an attempt finds; nothing if it asks for a value that the rehearsal has told only now."""
        place = self.rehearsal.place()
        found: _Found | None = None
        unknown: UnknownValue | None = None
        attempt: Attempt | None = None
        try:
            with Settings().restored(), self._bystanders.untouched(), self._surroundings.untouched():
                attempt = Attempt(*self._asked, before, place, self.kept)
                if before.is_warm:
                    attempt.warm_up(self._step, self._opening.place())
                document = attempt.run(self._step)
                found = _Found(document, place, attempt.evaluates, attempt.keeps, attempt.after)
            # The model may have taken care of an error itself.
            unknown = place.missing
        except UnknownValue as error:
            unknown = error
            let_go_of_frames(error)
        finally:
            del attempt
            # Another attempt finds the caches as they were.
            leftovers.clear(self.kept)
        if unknown is None:
            return found
        self.rehearsal.go_on(place, unknown)
        return None
