"""One real run of the step, which tells what weights and random numbers decide.

It runs only if the captured step looks at such a value: on a copy of the model that shares its weights, or has copies of them
where the step writes them, on copies of the buffers and of the batch, on the device where the weights are. Everything that it
reaches is put back.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rematic._model.collectives import COLLECTIVES
from rematic._model.settings import Settings
from rematic._model.trees import tensors_in
from rematic._model.wrapped import is_spread

from .arguments import OptimizerChoice, made_optimizer
from .bystanders import Bystanders
from .contents import MAX_BYTES
from .devices import Elsewhere
from .effects import Effect
from .errors import UnknownValue, user_line
from .reading import read_by
from .readings import (
    BACKWARDS,
    FORWARD,
    HOST,
    MAKES,
    MAKING,
    NOTHING,
    STEP,
    TEXTS,
    Place,
    Reading,
    differentiate,
    shapes_of,
)
from .replica import Replica


class _Enough(BaseException):
    """Ends a run where the rest of the step is of no interest."""


class _Failed(Exception):
    """A real run ended with an error, which is its cause."""


class _Writes(BaseException):
    """Ends a run before it writes to the user's weights."""


class _Copies(Replica):
    """Real tensors that stand for the user's, all on one device. Weights may be the user's own."""

    def __init__(self, device: torch.device, shares_weights: bool) -> None:
        super().__init__()
        self._device = device
        self._shares_weights = shares_weights
        self.shared: set[int] = set()

    def _memory(self, original: Tensor) -> torch.UntypedStorage:
        storage = original.untyped_storage()
        if self._shares_weights and isinstance(original, nn.Parameter):
            self.shared.add(storage._cdata)
            return storage
        device = original.device if original.dim() == 0 and original.is_cpu else self._device
        return torch.UntypedStorage(storage.nbytes(), device=device).copy_(storage, non_blocking=False)


class Rehearsal:
    """A step of a model, ready to run for real."""

    def __init__(
        self,
        step: Callable[[Any, Any, Any], Any],
        model: nn.Module,
        optimizer: OptimizerChoice,
        kind: str,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        bystanders: Bystanders,
    ) -> None:
        self._step = step
        self._model = model
        self._optimizer = optimizer
        self._kind = kind
        self._inputs = inputs
        self._bystanders = bystanders

        self._readings: list[Reading] = []
        self._extent = NOTHING
        # Whether it is a step after the first.
        self._is_warm = False
        # Where the captured run first met a value that it cannot know, as part of a sentence.
        self.line = ""

    def warmed(self) -> Rehearsal:
        """That of a later step, which finds what the first keeps."""
        made = copy.copy(self)
        made._readings, made._extent, made._is_warm = [], NOTHING, True
        return made

    def place(self) -> Place:
        """The beginning of what was read so far."""
        return Place(self._readings, self._extent, self._obstacle() is None)

    def _obstacle(self) -> str | None:
        """What to do first, if there is nothing that can be run."""
        held = (*self._model.parameters(), *self._model.buffers(), *self._bystanders.tensors.values())
        if any(is_spread(tensor) for tensor in held):
            return (
                "The model is spread over several ranks, and a real run needs them all. Capture it before it is spread, with real "
                "weights on the CPU: one real run of the step then tells what they decide."
            )
        if any(tensor.is_meta for tensor in held):
            return "Give the model with real weights on the CPU: one real run of the step then tells what they decide."
        if any(tensor.is_meta for tensor in tensors_in(self._inputs)):
            return "Give the inputs as real tensors on the CPU: one real run of the step then tells what weights decide."
        return None

    def go_on(self, place: Place, error: UnknownValue) -> None:
        """Runs the step for real, to its first backward and if need be to its end, or raises an error that this cannot help."""
        obstacle = self._obstacle()
        if obstacle is not None and error.is_told_by_run:
            raise error.saying(remedy=obstacle) from error
        # What a whole run did not tell, another does not either.
        if place.missing is None or self._extent == STEP:
            raise error
        if not self.line and place.line:
            self.line = f" (first at {place.line})"
        try:
            self._readings, self._extent = self._run(FORWARD if self._extent == NOTHING else STEP)
        except _Failed as failed:
            raise error.saying(remedy=str(failed)) from failed.__cause__

    def _run(self, extent: int) -> tuple[list[Reading], int]:
        shares_weights = extent == FORWARD
        while True:
            watch = _Watch(extent)
            try:
                self._run_once(watch, shares_weights)
            except _Writes:
                shares_weights = False
                continue
            except _Enough:
                return watch.readings, FORWARD
            except Exception as error:
                line = user_line(error)
                at = f"\n  at {line}" if line else ""
                first = str(error).strip().split("\n")[0]
                raise _Failed(
                    f"One real run of the step would tell, but fails: {type(error).__name__}: {first}{at}\n"
                    "Check that the model runs with these inputs where its weights are, and that there is memory for it."
                ) from error
            return watch.readings, STEP

    def _run_once(self, watch: _Watch, shares_weights: bool) -> None:
        device = next((tensor.device for tensor in self._model.parameters()), torch.device("cpu"))
        # What the model's code reaches, too: the captured run has yet to find it as it was.
        reached = Bystanders(self._step, self._model, *self._inputs[0], *self._inputs[1].values())
        with Settings().restored(), self._bystanders.untouched(), reached.untouched(), _generators(device):
            held = (*self._model.parameters(), *self._model.buffers(), *tensors_in(self._inputs))
            known = (*held, *self._bystanders.tensors.values(), *reached.tensors.values())
            watch.outside = {t.untyped_storage()._cdata for t in known if t.layout is torch.strided}
            copies = _Copies(device, shares_weights)
            model = copies.model(self._model)
            inputs = copies.inputs(*self._inputs)
            self._bystanders.replace(copies)
            optimizer = made_optimizer(self._optimizer, model, copies, self._kind)
            watch.shared = copies.shared
            for one in [watch.up_to_backward(), watch] if self._is_warm else [watch]:
                with self._elsewhere(device), one.without_optimizers(), _Functions(one), one:
                    try:
                        self._step(model, optimizer, inputs)
                    except _Enough:
                        if one is watch:
                            raise

    def _elsewhere(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if device.type == self._kind:
            return contextlib.nullcontext()
        return Elsewhere(self._kind, lambda tensor: None, device)


class _Watch(TorchDispatchMode):
    """Writes down what operators read, and sees what is written."""

    def __init__(self, extent: int) -> None:
        super().__init__()
        self.extent = extent
        self.readings: list[Reading] = []
        # The storages of the user's own tensors, and those of them that the run shares.
        self.outside: set[int] = set()
        self.shared: set[int] = set()
        self._effects: dict[Any, Effect] = {}
        self._silent = 0

    def up_to_backward(self) -> _Watch:
        """One for a run before this, which fills caches."""
        made = _Watch(FORWARD)
        made.outside, made.shared = self.outside, self.shared
        return made

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """While it is entered, readings are not counted."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    @contextlib.contextmanager
    def without_optimizers(self) -> Iterator[None]:
        """While it is entered, what optimizers read is not counted."""
        quiet = contextlib.ExitStack()
        begins = register_optimizer_step_pre_hook(lambda *_: quiet.enter_context(self.silent()))
        ends = register_optimizer_step_post_hook(lambda *_: quiet.close())
        try:
            yield
        finally:
            begins.remove()
            ends.remove()

    def note(self, reading: Reading) -> None:
        """The step has read this."""
        if not self._silent:
            # In a backward, functions are watched here too.
            with self.silent(), _disable_current_modes():
                self.readings.append(dataclasses.replace(reading, result=_kept(reading.result)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = Effect(func)
        if func.namespace in COLLECTIVES:
            raise RuntimeError(f"`{func}` waits for other processes, which do not run")
        if effect.writes:
            for tensor in effect.targets(args, kwargs):
                address = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0
                if address in self.shared:
                    raise _Writes
                if address in self.outside:
                    raise RuntimeError(f"`{func}` changes a tensor that lies outside of the model, and would really change it")
        out, reading = read_by(func, args, kwargs, lambda: func(*args, **kwargs))
        if reading is not None:
            self.note(reading)
        return out


class _Functions(TorchFunctionMode):
    """Writes down what functions bring to Python, and ends the run at its first backward if that is enough."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        if func in BACKWARDS:
            if watch.extent == FORWARD:
                raise _Enough
            return differentiate(self, func, args, kwargs)
        if func in TEXTS:
            with watch.silent():
                return func(*args, **kwargs)
        if func in MAKING:
            with watch.silent():
                out = func(*args, **kwargs)
            if next(tensors_in([item for item in args if isinstance(item, (list, tuple))]), None) is not None:
                watch.note(Reading(MAKES, (), out.tolist()))
            return out
        name = HOST.get(func)
        if name is None:
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["input"]
        moves = func is not Tensor.to or any(_is_host(item) for item in (*args[1:], *kwargs.values()))
        watch.note(Reading(name, shapes_of((tensor,)), tensor if moves else None))
        with watch.silent():
            out = func(*args, **kwargs)
        if func in (Tensor.numpy, Tensor.__array__):
            # What is written to it would be written to the tensor, unseen.
            out = out.copy()
            out.flags.writeable = False
        return out


def _is_host(item: Any) -> bool:
    return item == "cpu" or (isinstance(item, torch.device) and item.type == "cpu")


def _kept(result: Any) -> Any:
    """A copy of what was read, on the CPU and as it lies in its memory, if it is not too large."""
    if isinstance(result, (list, tuple)):
        return [_kept(item) for item in result]
    if not isinstance(result, Tensor):
        return result
    storage = result.untyped_storage()
    if storage.nbytes() > MAX_BYTES:
        return None if result.nbytes > MAX_BYTES else result.detach().cpu().clone()
    memory = torch.UntypedStorage(storage.nbytes()).copy_(storage, non_blocking=False)
    return torch.empty(0, dtype=result.dtype).set_(memory, result.storage_offset(), result.shape, result.stride())


@contextlib.contextmanager
def _generators(device: torch.device) -> Iterator[None]:
    """Puts back the generators of the device; that of the CPU is a bystander."""
    if device.type != "cuda":
        yield
        return
    with torch.random.fork_rng(devices=[device]):
        yield
