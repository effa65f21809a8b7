"""One run of a training step on the meta device, watched from all sides."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from rematic._core import PlanError
from rematic._model.forwards import FORWARDS, TRAIN
from rematic._model.signature import INPUTS, NEXT
from rematic._model.trees import tensors_in
from rematic._model.wrapped import inner

from . import survivors
from .arguments import OptimizerChoice, made_optimizer
from .attention import deciding_card
from .attributes import AttributeWatch, rows_of
from .bystanders import Bystanders
from .contents import META_INPUT
from .cudnn import flatten_weights
from .devices import Elsewhere
from .errors import CaptureError, UnknownValue
from .failures import explained, unknown_value
from .ground import Ground
from .leftovers import Kept
from .literals import Literals
from .modules import CallWatch, GradientWatch, ModuleTree
from .optimizers import take_first_step
from .readings import STEP, Place
from .recorder import Recorder
from .references import saving
from .replica import Replica
from .routing import as_on
from .streams import with_streams
from .values import Values

_jit: Any = torch.jit

# The model, its optimizer and the inputs to what the step returns.
Step = Callable[[nn.Module, "torch.optim.Optimizer | None", Any], Any]

NO_GRADIENT = (
    "Backward gave no parameter a gradient; check requires_grad of the model's parameters, and that the step calls backward"
)


@dataclasses.dataclass(frozen=True)
class Before:
    """What a step in steady state finds, as it has left it."""

    # Positions in the optimizers of parameters that never get a gradient: no state is made for them.
    untrained: frozenset[int] = frozenset()
    # Positions among all parameters of those whose gradients outlive the step: it begins with `zero_grad`.
    with_gradient: frozenset[int] = frozenset()
    # Modules and caches hold what an earlier step has made.
    is_warm: bool = False


class Attempt:
    """One run of the step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerChoice,
        device: str,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        bystanders: Bystanders,
        before: Before,
        place: Place,
        kept: Kept,
    ) -> None:
        self.device = device
        self.place = place
        self.replica = Replica()
        self._ground = Ground.of(model)
        self.model = self.replica.model(model)
        self._of_model = len(self.replica.values)
        if device == "cuda" and self._ground is None:
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

    def warm_up(self, step: Step, place: Place) -> None:
        """Takes a step that is not captured: what it keeps is there for the next one."""
        following, self.place = self.place, place
        self.run(step)
        assert self._earlier is not None
        made = [ref() for ref in survivors.made(self._earlier)]
        self.bystanders.let_go({storage._cdata for storage in made if storage is not None})
        self.place = following

    def run(self, step: Step) -> dict[str, Any]:
        """Takes a step."""
        earlier = self._earlier
        recorder = Recorder(counts_host=self.device == "cpu", values=None if earlier is None else earlier.values)
        recorder.values.place = self.place
        recorder.replica = self.replica
        recorder.ground = self._ground
        recorder.hear(self.replica.streams)
        with _no_collection(), as_on(self.device), contextlib.ExitStack() as watches:
            if earlier is None:
                self._make_optimizer_state()
            tree = ModuleTree(self.model, recorder)
            recorder.writers.paths = tree.paths
            self._note_what_is_there(recorder)
            calls = CallWatch(tree, recorder)
            gradients = GradientWatch([*self.parameters, *self._unsharded()], recorder)
            for optimizer in self._optimizers():
                for handle in self._watch_optimizer(optimizer, recorder, gradients):
                    watches.callback(handle.remove)
            attributes = AttributeWatch(self.model, recorder)
            self._know_values(recorder.values)
            output = self._taken(step, recorder, calls, gradients, attributes)
            gradients.look_at(self.model.parameters())
            if not any(id(parameter) in gradients.trained for parameter in self.model.parameters()):
                raise CaptureError(NO_GRADIENT)
            self.evaluates = calls.evaluates
            self._note_untrained(gradients)
            self._note_gradients()
            left = survivors.left(recorder) - gradients.rows
            if earlier is None:
                waiting = recorder.unreleased()
                returned = left & rows_of(output, recorder, waiting)
                # What modules keep goes when it is replaced.
                replaced = attributes.rows(waiting)
                goes = {row: None if row in returned else replaced.get(row) for row in left}
                del output
            else:
                del output
                gc.collect()
                returned = left - survivors.left(recorder)
                # All else is there already.
                goes = dict.fromkeys(returned)
            self.keeps = left > returned
            events = _with_previous(recorder, goes, calls.first_exit)
        self._earlier = recorder
        return self._document(recorder, tree, calls, events)

    def _unsharded(self) -> list[nn.Parameter]:
        sharding = self.replica.sharding
        return [] if sharding is None else sharding.unsharded()

    def _note_what_is_there(self, recorder: Recorder) -> None:
        """All that is there before the step, besides the model."""
        if self.replica.sharding is not None:
            for tensor in self.replica.sharding.gathered():
                recorder.add_gathered(tensor)
        for tensor in tensors_in(self.inputs):
            if tensor.is_meta:
                recorder.storage_before_step(tensor, "other")
        recorder.expect(self.outside, self.bystanders.tensors.values())
        for optimizer in self._optimizers():
            for state in optimizer.state.values():
                for tensor in tensors_in(state):
                    if tensor.is_meta or self.device == "cpu":
                        recorder.storage_before_step(tensor, "optimizer")
        for position, parameter in enumerate(self.parameters):
            if position in self.before.with_gradient:
                parameter.grad = torch.empty_like(parameter)
                recorder.storage_before_step(parameter.grad, "gradient")
        if self._earlier is not None:
            survivors.inherit(recorder, self._earlier)

    def _taken(
        self, step: Step, recorder: Recorder, calls: CallWatch, gradients: GradientWatch, attributes: AttributeWatch
    ) -> Any:
        """What the step returns."""
        try:
            with calls.watching(), gradients.watching(), attributes.watching(), self._spread(recorder), self._recording(recorder):
                output = step(self.model, self.optimizer, self.inputs)
            self.place.check_end(STEP)
            return output
        except UnknownValue as error:
            raise unknown_value(error, calls) from error
        except (CaptureError, PlanError):
            raise
        except Exception as error:
            raise explained(error, recorder, calls) from error
        finally:
            recorder.close()
            self._kept += survivors.made(recorder)

    @contextlib.contextmanager
    def _spread(self, recorder: Recorder) -> Iterator[None]:
        """What is done to gather and reduce is seen."""
        sharding = self.replica.sharding
        if sharding is None:
            yield
            return
        with sharding.running_on(self.replica.streams), sharding.watching(recorder), recorder.resizing():
            yield

    def _document(
        self, recorder: Recorder, tree: ModuleTree, calls: CallWatch, events: list[dict[str, Any] | None]
    ) -> dict[str, Any]:
        kept = [event for event in events if event is not None]
        for row in recorder.released_before:
            recorder.storages[row].append("released")
        sharding = self.replica.sharding
        return {
            "format": "rematic-trace",
            "version": 2,
            "origin": self._origin(calls, sorted(recorder.values.assumptions)),
            "place": [] if self._ground is None else self._ground.axes,
            "streams": with_streams(recorder.ops, kept, {} if sharding is None else sharding.stream_names()),
            "collectives": recorder.collectives,
            "names": recorder.names,
            "layouts": recorder.layouts,
            "modules": tree.rows,
            "calls": recorder.calls,
            "storages": recorder.storages,
            "ops": recorder.ops,
            "events": [event for event in kept if event],
        }

    @contextlib.contextmanager
    def _recording(self, recorder: Recorder) -> Iterator[None]:
        literals = Literals(recorder.values, self.device)
        # TorchScript as it is written, and as it runs under a plan.
        written = _jit.optimized_execution(False)
        with saving(recorder.pack, recorder.unpack), _eagerly(), written, self._elsewhere(recorder), literals, recorder:
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
            values.forget(inner(parameter).untyped_storage())

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
        if (card := deciding_card()) is not None:
            origin["card"] = card
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
