"""Calls that follow one another and are checkpointed as one, from where the first begins to where the last ends.

When they run again there is no code between them: they are called one after the other, each with what it was given, where what
an earlier one returned is replaced by what it returns now. So each call writes down what it finds around it by itself, and what
is done between two calls with what the first returned, or with switches that operators go by, is refused.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpointing
from torch.utils._python_dispatch import _get_current_dispatch_mode

from rematic._core import PlanError

from .call import anchors, run_forward
from .encoded import Again, Encoded
from .snapshot import Snapshot

_autograd: Any = torch._C._autograd
# What checkpoints from one place of a program to another.
_between: Any = checkpointing._checkpoint_without_reentrant_generator
# How deep tensors are looked for in what a call returns.
_DEPTH = 8


class Returned:
    """The tensors that a call of a run has returned."""

    def __init__(self, at: int) -> None:
        # The last call that is given one of them.
        self.needed_by = at
        # In the run that is under way.
        self.tensors: list[Tensor] = []


class Linked(Encoded):
    """A tensor that an earlier call of the run has returned: when it runs again, what it returns then."""

    __slots__ = ("returned", "index")

    def __init__(self, returned: Returned, index: int) -> None:
        self.returned = returned
        self.index = index

    def decode(self, again: Again) -> Any:
        return self.returned.tensors[self.index]


class Links:
    """What the calls of a run have returned so far."""

    def __init__(self) -> None:
        # By the identity of the tensor, which must be the same still.
        self._known: dict[int, tuple[weakref.ref[Tensor], Returned, int]] = {}
        self._storages: set[int] = set()
        # Which call is under way.
        self.at = 0

    def note(self, out: Any, returned: Returned) -> None:
        """A call has returned."""
        for index, tensor in enumerate(_returned_tensors(out)):
            self._known[id(tensor)] = (weakref.ref(tensor), returned, index)
            if tensor.layout is torch.strided:
                self._storages.add(tensor.untyped_storage()._cdata)

    def of(self, tensor: Tensor) -> Linked | None:
        """What stands for a tensor, if a call has returned it."""
        found = self._known.get(id(tensor))
        if found is None or found[0]() is not tensor:
            return None
        _, returned, index = found
        returned.needed_by = self.at
        return Linked(returned, index)

    def has_part(self, tensor: Tensor) -> bool:
        """Whether it shares memory with what a call has returned."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._storages


class Run:
    """The first run of such calls."""

    def __init__(self, name: str, calls: list[tuple[Any, int]], first: Any, again: Any, given: Any) -> None:
        self.name = name
        # Stand-ins for the forwards of modules, and which of their calls.
        self._planned = calls
        self._first = first
        self._again = Repeat(again)
        self._links = Links()
        # Whether a call is under way.
        self.inside = False
        self._frame = _checkpointed(self._again, lambda: (first, again), anchors(*given))
        next(self._frame)
        self._state = _switched()
        self._hooks = _autograd._top_saved_tensors_default_hooks(True)

    @property
    def is_over(self) -> bool:
        """Whether all of its calls have been made."""
        return len(self._again.calls) == len(self._planned)

    def call(self, forward: Any, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The next call."""
        at = self._links.at = len(self._again.calls)
        self._check(forward, number)
        modules, places = forward.surroundings()
        snapshot = Snapshot(modules, places, args, kwargs, self._links)
        for tensor in snapshot.given():
            if self._links.has_part(tensor):
                raise self._refused("is given a part of what an earlier call returned, or another view of it")
        returned = Returned(at)
        self._again.calls.append((forward, snapshot, returned))
        self._first.begin(snapshot)
        self.inside = True
        try:
            out = run_forward(forward.plain, args, kwargs)
        finally:
            self.inside = False
        self._links.note(out, returned)
        if self.is_over:
            self._check_context()
            for _ in self._frame:
                raise AssertionError("checkpointing goes on")
        return out

    def close(self) -> None:
        """It ends in the middle."""
        self._frame.close()

    def _check(self, forward: Any, number: int) -> None:
        expected, which = self._planned[len(self._again.calls)]
        if forward is not expected or number != which:
            raise self._refused(f"comes in place of call {which} (from 0) of `{expected.path}`", forward.path)
        self._check_context()
        if _switched() != self._state:
            raise self._refused("finds gradients or autocast switched otherwise than the first call")

    def _check_context(self) -> None:
        if _get_current_dispatch_mode() is not self._first:
            raise self._refused("finds another dispatch mode entered or left since the first call")
        if _autograd._top_saved_tensors_default_hooks(True) != self._hooks:
            raise self._refused("finds other hooks for saved tensors than the first call")

    def _refused(self, what: str, path: str | None = None) -> PlanError:
        at = min(len(self._again.calls), len(self._planned) - 1)
        path = self._planned[at][0].path if path is None else path
        return PlanError(
            f"The plan checkpoints {self.name} as one, in which each is called right after the other with what that returned; but "
            f"`{path}` {what}. Capture and plan the step as it runs, or plan without such runs (runs=False)"
        )

    def unfinished(self) -> PlanError:
        """The error that the model returns before all have been called."""
        path = self._planned[len(self._again.calls)][0].path
        return PlanError(
            f"The plan checkpoints {self.name} as one, but `{path}` was not called after those before it; capture and plan the step "
            "as it runs, or plan without such runs (runs=False)"
        )


class Repeat:
    """Calls the modules of a run again, one after the other."""

    def __init__(self, again: Any) -> None:
        self._again = again
        self.calls: list[tuple[Any, Snapshot, Returned]] = []

    def __call__(self, *_anchors: Tensor) -> None:
        # Before the first of them: what one changes in place and is handed back counts as changed, as if it were changed again.
        for _, found, _ in self.calls:
            found.look_for_changes()
        self._again.repeated(self._repeat)

    def _repeat(self) -> None:
        try:
            for at, (forward, made, returned) in enumerate(self.calls):
                self._call(forward, made, returned)
                for _, _, earlier in self.calls[:at]:
                    if earlier.needed_by <= at:
                        earlier.tensors = []
        finally:
            for _, _, returned in self.calls:
                returned.tensors = []

    def _call(self, forward: Any, snapshot: Snapshot, returned: Returned) -> None:
        with snapshot.restored() as (args, kwargs):
            self._again.begin(snapshot)
            returned.tensors = list(_returned_tensors(run_forward(forward.plain, args, kwargs)))


def _switched() -> tuple[Any, ...]:
    """What operators go by besides what they are given, and checkpointing puts back as it was where it began."""
    devices = ("cpu", *_accelerators())
    autocast = tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices)
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_cache_enabled(), autocast)


def _accelerators() -> tuple[str, ...]:
    """The type of the machine's accelerator, if there is one."""
    accelerator: Any = getattr(torch, "accelerator", None)
    return (accelerator.current_accelerator().type,) if accelerator is not None and accelerator.is_available() else ()


def _checkpointed(repeat: Repeat, contexts: Callable[[], Any], devices: list[Tensor]) -> Generator[None, None, None]:
    """Checkpoints from its first step to its second."""
    settings = {"preserve_rng_state": False, "context_fn": contexts}
    given = inspect.signature(_between).parameters.values()
    named = [one for one in given if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD][1:]
    found: Generator[None, None, None] = _between(repeat, *(settings.get(one.name, one.default) for one in named), *devices)
    return found


def _returned_tensors(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors in what a call returns, in order."""
    if isinstance(value, Tensor):
        yield value
    elif depth == 0:
        return
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _returned_tensors(item, depth - 1)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _returned_tensors(item, depth - 1)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        for item in vars(value).values():
            yield from _returned_tensors(item, depth - 1)
