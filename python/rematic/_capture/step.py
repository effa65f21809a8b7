"""Capture: one training step of a PyTorch model, without a GPU and without its memory.

The model's structure is copied to the meta device, where tensors have shapes but no data, and one step runs there with
PyTorch's own autograd, on the operators that the target device would run. What comes out is the trace document of
`docs/trace-format.md`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rematic._core import Trace
from rematic._device import kind_of
from rematic._model.cache import caching_configs, makes_cache, without_cache
from rematic._model.follower import check_free
from rematic._model.forwards import FORWARDS, TRAIN
from rematic._model.settings import Settings
from rematic._model.signature import INPUTS, NEXT
from rematic._model.trees import tensors_in
from rematic._warning import warn

from . import leftovers
from .arguments import (
    OptimizerChoice,
    check_gradients,
    check_loss,
    check_model,
    check_optimizer,
    made_optimizer,
    unwrapped,
)
from .attributes import AttributeWatch, rows_of
from .bystanders import Bystanders
from .contents import META_INPUT
from .cudnn import flatten_weights
from .devices import Elsewhere
from .errors import CaptureError, UnknownValue, let_go_of_frames
from .failures import explained, unknown_value
from .literals import Literals
from .modules import CallWatch, GradientWatch, ModuleTree
from .optimizers import take_first_step
from .readings import STEP, Place
from .recorder import Recorder
from .rehearsal import Rehearsal
from .replica import Replica
from .routing import as_on
from .values import Values

__all__ = ["OptimizerChoice", "capture", "capture_step", "document", "document_of_step"]

_jit: Any = torch.jit

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
    **kwargs: Any,
) -> bytes:
    """What `capture` captures, as the text of a trace file."""
    check_model(model, "give the module whose step is to be captured, and then its inputs")
    check_loss(loss)
    check_gradients()

    def step(copied: nn.Module, stepper: torch.optim.Optimizer | None, inputs: Any) -> Any:
        output = copied(*inputs[0], **inputs[1])
        _loss_of(output, loss).backward()
        if stepper is not None:
            stepper.step()
            stepper.zero_grad()
        else:
            copied.zero_grad()
        return output

    return _run(step, model, optimizer, device, (args, kwargs), Bystanders(loss), eval_mode)


def document_of_step(
    fn: Callable[[nn.Module, Any], Any],
    model: nn.Module,
    optimizer: OptimizerChoice = None,
    *,
    device: Any = "cuda",
    eval_mode: bool = False,
) -> bytes:
    """What `capture_step` captures, as the text of a trace file."""
    check_model(model, "capture_step takes the step's function, then the model, then its optimizer")
    if not callable(fn):
        raise TypeError(f"`fn` must be a function of `model, optimizer`, but is of type {type(fn).__name__}")

    def step(copied: nn.Module, stepper: torch.optim.Optimizer | None, inputs: Any) -> Any:
        return fn(copied, stepper)

    return _run(step, model, optimizer, device, ((), {}), Bystanders(fn), eval_mode)


def capture(
    model: nn.Module,
    *args: Any,
    loss: Callable[[Any], Tensor] | None = None,
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

    The step is `output = model(...)`, `loss(output).backward()`, `optimizer.step()`, `optimizer.zero_grad()`. The
    loop's variable holds the output, so the previous step's lives until this one's forward is over.
    """
    return Trace.from_bytes(document(model, *args, loss=loss, optimizer=optimizer, device=device, eval_mode=eval_mode, **kwargs))


def capture_step(
    fn: Callable[[nn.Module, Any], Any],
    model: nn.Module,
    optimizer: OptimizerChoice = None,
    *,
    device: Any = "cuda",
    eval_mode: bool = False,
) -> Trace:
    """Captures one call of a training-step function: `fn(model, optimizer)` is called with copies on the meta device.

    What `fn` returns counts as held by the training loop until the next step's forward is over.
    """
    return Trace.from_bytes(document_of_step(fn, model, optimizer, device=device, eval_mode=eval_mode))


def _loss_of(output: Any, loss: Callable[[Any], Tensor] | None) -> Tensor:
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
    step: Callable[[nn.Module, torch.optim.Optimizer | None, Any], Any],
    model: nn.Module,
    optimizer: OptimizerChoice,
    device: Any,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    bystanders: Bystanders,
    eval_mode: bool,
) -> bytes:
    kind = kind_of(device)
    check_optimizer(optimizer)
    model = unwrapped(model)
    check_free(model)
    caching = [] if "use_cache" in inputs[1] else caching_configs(model)
    if makes_cache(model, caching):
        warn(CACHES)
    with without_cache(caching):
        rehearsal = opening = Rehearsal(step, model, optimizer, kind, inputs, bystanders)
        before = _Before()
        first: _Found | None = None
        kept: leftovers.Kept = []
        surroundings = leftovers.Surroundings(model)
        while True:
            place = rehearsal.place()
            found: _Found | None = None
            unknown: UnknownValue | None = None
            attempt: _Attempt | None = None
            try:
                with Settings().restored(), bystanders.untouched(), surroundings.untouched():
                    attempt = _Attempt(model, optimizer, kind, inputs, bystanders, before, place, kept)
                    if before.is_warm:
                        attempt.warm_up(step, opening.place())
                    found = _Found(attempt.run(step), place, attempt.evaluates)
                    before, before_this, keeps = attempt.after, before, attempt.keeps
                # The model may have taken care of an error itself.
                unknown = place.missing
            except UnknownValue as error:
                unknown = error
                let_go_of_frames(error)
            except CaptureError:
                if first is None:
                    raise
            del attempt
            # Another attempt finds the caches as they were.
            leftovers.clear(kept)
            if unknown is not None:
                try:
                    rehearsal.go_on(place, unknown)
                    continue
                except CaptureError:
                    if first is None:
                        raise
                    found = None
            if found is None:
                # Nothing tells of a second step.
                assert first is not None
                found = first
            elif before != before_this:
                # What a step leaves, it finds. That is known now.
                continue
            elif keeps and not before.is_warm:
                # Perhaps for all steps to come, and they do without what makes it.
                first, rehearsal = found, opening.warmed()
                before = dataclasses.replace(before, is_warm=True)
                continue
            if found.place.is_used:
                warn(DEPENDS.format(rehearsal.line))
            if found.evaluates and not eval_mode:
                warn(EVALUATES)
            leftovers.warn_of(kept)
            return json.dumps(found.document, separators=(",", ":")).encode()


class _Found(NamedTuple):
    """What an attempt has found."""

    document: dict[str, Any]
    place: Place
    evaluates: bool


@dataclasses.dataclass(frozen=True)
class _Before:
    """What a step in steady state finds, as it has left it."""

    # Positions in the optimizers of parameters that never get a gradient: no state is made for them.
    untrained: frozenset[int] = frozenset()
    # Positions among all parameters of those whose gradients outlive the step: it begins with `zero_grad`.
    with_gradient: frozenset[int] = frozenset()
    # Modules and caches hold what an earlier step has made.
    is_warm: bool = False


class _Attempt:
    """One run of the step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerChoice,
        device: str,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        bystanders: Bystanders,
        before: _Before,
        place: Place,
        kept: leftovers.Kept,
    ) -> None:
        self.device = device
        self.place = place
        self.replica = Replica()
        self.model = self.replica.model(model)
        self._of_model = len(self.replica.values)
        if device == "cuda":
            flatten_weights(self.model)
        self.inputs = self.replica.inputs(*inputs)
        self.bystanders = bystanders
        self.outside = bystanders.replace(self.replica)
        with as_on(device):
            self.optimizer = made_optimizer(optimizer, self.model, self.replica, device)
        # All that are trained: the model's, and those of other networks that the step reaches.
        self.parameters = [*self.model.parameters(), *(tensor for tensor in self.outside if tensor.requires_grad)]
        self.before = before
        self.after = before
        self.evaluates = False
        # Whether something that the step has made outlives it, besides gradients and what it returns.
        self.keeps = False
        # All of that.
        self._kept = kept
        self._earlier: Recorder | None = None

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        own = [] if self.optimizer is None else [self.optimizer]
        return own + self.bystanders.replaced_optimizers(self.replica)

    def _make_optimizer_state(self) -> None:
        """As the first steps of training do: gradients come, and the optimizers make their state for them."""
        position = 0
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and position not in self.before.untrained:
                        parameter.grad = torch.empty_like(parameter)
                    position += 1
            take_first_step(optimizer)

    def warm_up(self, step: Callable[[nn.Module, torch.optim.Optimizer | None, Any], Any], place: Place) -> None:
        """Takes a step that is not captured: what it keeps is there for the next one."""
        following, self.place = self.place, place
        self.run(step)
        self.place = following

    def run(self, step: Callable[[nn.Module, torch.optim.Optimizer | None, Any], Any]) -> dict[str, Any]:
        """Takes a step."""
        earlier = self._earlier
        recorder = Recorder(counts_host=self.device == "cpu", values=None if earlier is None else earlier.values)
        recorder.values.place = self.place
        recorder.replica = self.replica
        with _no_collection(), as_on(self.device), contextlib.ExitStack() as watches:
            if earlier is None:
                self._make_optimizer_state()
            tree = ModuleTree(self.model, recorder)
            recorder.writers.paths = tree.paths
            for tensor in tensors_in(self.inputs):
                if tensor.is_meta:
                    recorder.storage_before_step(tensor, "other")
            recorder.expect(self.outside, self.bystanders.tensors.values())
            calls = CallWatch(tree, recorder)
            gradients = GradientWatch(self.parameters, recorder)
            for optimizer in self._optimizers():
                for state in optimizer.state.values():
                    for tensor in tensors_in(state):
                        if tensor.is_meta or self.device == "cpu":
                            recorder.storage_before_step(tensor, "optimizer")
                for handle in self._watch_optimizer(optimizer, recorder, gradients):
                    watches.callback(handle.remove)
            for position, parameter in enumerate(self.parameters):
                if position in self.before.with_gradient:
                    parameter.grad = torch.empty_like(parameter)
                    recorder.storage_before_step(parameter.grad, "gradient")
            if earlier is not None:
                recorder.inherit(earlier)
            attributes = AttributeWatch(self.model, recorder)
            self._know_values(recorder.values)
            try:
                with calls.watching(), gradients.watching(), attributes.watching(), self._recording(recorder):
                    output = step(self.model, self.optimizer, self.inputs)
                self.place.check_end(STEP)
            except UnknownValue as error:
                raise unknown_value(error, calls) from error
            except CaptureError:
                raise
            except Exception as error:
                raise explained(error, recorder, calls) from error
            finally:
                recorder.close()
                self._kept += recorder.made()
            gradients.look_at(self.model.parameters())
            if not any(id(parameter) in gradients.trained for parameter in self.model.parameters()):
                raise CaptureError(
                    "Backward gave no parameter a gradient; check requires_grad of the model's parameters, and that "
                    "the step calls backward"
                )
            self.evaluates = calls.evaluates
            self._note_untrained(gradients)
            self._note_gradients()
            left = recorder.left() - gradients.rows
            waiting = recorder.unreleased()
            if earlier is None:
                returned = left & rows_of(output, recorder, waiting)
                # What modules keep goes when it is replaced.
                replaced = attributes.rows(waiting)
                goes = {row: None if row in returned else replaced.get(row) for row in left}
                del output
            else:
                del output
                gc.collect()
                returned = left - recorder.left()
                # All else is there already.
                goes = dict.fromkeys(returned)
            self.keeps = left > returned
            events = _with_previous(recorder, goes, calls.first_exit)
        self._earlier = recorder
        return {
            "format": "rematic-trace",
            "version": 2,
            "origin": self._origin(calls, sorted(recorder.values.assumptions)),
            # Of what communicates, no more is known here than that it does.
            "collectives": [["unknown", 0, "", 0]],
            "names": recorder.names,
            "layouts": recorder.layouts,
            "modules": tree.rows,
            "calls": recorder.calls,
            "storages": recorder.storages,
            "ops": recorder.ops,
            "events": [event for event in events if event is not None],
        }

    @contextlib.contextmanager
    def _recording(self, recorder: Recorder) -> Iterator[None]:
        literals = Literals(recorder.values, self.device)
        # TorchScript as it is written, and as it runs under a plan.
        written = _jit.optimized_execution(False)
        with recorder.saving(), _eagerly(), written, self._elsewhere(recorder), literals, recorder:
            yield

    def _know_values(self, values: Values) -> None:
        of_model, of_inputs = self.replica.values[: self._of_model], self.replica.values[self._of_model :]
        for tensor, value in of_model:
            if not value.requires_grad:
                values.know(tensor, value)
        for tensor, value in of_inputs:
            values.know(tensor, value, META_INPUT)
        for parameter in self.model.parameters():
            # A buffer may be a view of one.
            values.forget(parameter.untyped_storage())

    def _elsewhere(self, recorder: Recorder) -> contextlib.AbstractContextManager[Any]:
        # It takes time at every call of torch, and only tensors that are not there yet need it.
        if next(tensors_in(self.inputs), None) is not None:
            return contextlib.nullcontext()
        return Elsewhere(self.device, recorder.bring)

    def _watch_optimizer(
        self, optimizer: torch.optim.Optimizer, recorder: Recorder, gradients: GradientWatch
    ) -> list[RemovableHandle]:
        def begins(*_: Any) -> None:
            recorder.in_optimizer = True
            gradients.look_at(parameter for group in optimizer.param_groups for parameter in group["params"])

        def is_over(*_: Any) -> None:
            recorder.in_optimizer = False
            recorder.after_optimizer = True
            recorder.stepped |= optimizer is self.optimizer

        return [optimizer.register_step_pre_hook(begins), optimizer.register_step_post_hook(is_over)]

    def _note_untrained(self, gradients: GradientWatch) -> None:
        listed = [
            (optimizer, parameter)
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        untrained = frozenset(
            position
            for position, (optimizer, parameter) in enumerate(listed)
            if id(parameter) not in gradients.trained and optimizer.state.get(parameter)
        )
        self.after = dataclasses.replace(self.after, untrained=self.before.untrained | untrained)

    def _note_gradients(self) -> None:
        with_gradient = frozenset(
            position for position, parameter in enumerate(self.parameters) if parameter.grad is not None
        )
        self.after = dataclasses.replace(self.after, with_gradient=with_gradient)

    def _origin(self, calls: CallWatch, assumptions: list[str]) -> dict[str, Any]:
        origin: dict[str, Any] = {
            "model": type(self.model).__name__,
            "device": self.device,
            "versions": [["torch", torch.__version__.split("+")[0]]],
            "optimizer": type(self.optimizer).__name__.lower() if self.optimizer else "none",
            "assumptions": assumptions,
        }
        if calls.forwards not in ([], [TRAIN]):
            origin[FORWARDS] = " ".join(calls.forwards)
        if any(calls.inputs):
            alike = len(set(calls.inputs)) == 1
            origin[INPUTS] = calls.inputs[0] if alike else NEXT.join(calls.inputs)
        return origin


def _with_previous(recorder: Recorder, goes: dict[int, int | None], forward_over: int | None) -> list[dict[str, Any] | None]:
    """What the step leaves, the previous step has left too. It goes at some events, and if none is given when forward is over
    and the loop's variable takes the new output."""
    over = len(recorder.events) if forward_over is None else forward_over
    drops: dict[int, list[dict[str, Any] | None]] = {}
    for row in sorted(goes):
        at = goes[row]
        drops.setdefault(over if at is None else at, []).append({"drop": recorder.add_previous(recorder.storages[row][0])})
    events: list[dict[str, Any] | None] = []
    begin = 0
    for at in sorted(drops):
        events += recorder.events[begin:at] + drops[at]
        begin = at
    return events + recorder.events[begin:]


def _eagerly() -> contextlib.AbstractContextManager[Any]:
    """Compiled parts of the model run as they are written."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing in a step may hang on when the collector of cycles happens to run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
