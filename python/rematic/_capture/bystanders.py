"""Objects with a state that a step's function holds besides its arguments: gradient scalers and schedulers of learning
rates. A capture runs the function, and leaves them as they were."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

_KINDS = (torch.amp.GradScaler, LRScheduler, torch.optim.Optimizer)


@contextlib.contextmanager
def untouched(fn: Callable[..., Any]) -> Iterator[None]:
    """Whatever happens while it is entered, the bystanders of a function are afterwards as they were."""
    found = {id(item): item for item in _reached(fn) if isinstance(item, _KINDS)}
    for item in list(found.values()):
        if isinstance(item, LRScheduler):
            found.setdefault(id(item.optimizer), item.optimizer)
    states = [(item, _state(item)) for item in found.values()]
    try:
        yield
    finally:
        for item, state in states:
            _restore(item, state)


def _reached(fn: Any) -> Iterator[Any]:
    """What a function names: in its closure, its defaults, its globals, and as attributes of its object."""
    while isinstance(fn, functools.partial):
        yield from (*fn.args, *fn.keywords.values())
        fn = fn.func
    if not inspect.isroutine(fn):
        fn = getattr(fn, "__call__", fn)
    if isinstance(fn, types.MethodType):
        yield from getattr(fn.__self__, "__dict__", {}).values()
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        return
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            yield cell.cell_contents
    yield from (fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__)


def _state(item: Any) -> dict[str, Any]:
    if isinstance(item, torch.optim.Optimizer):
        # A scheduler sets the learning rates; everything else of an optimizer is the user's model's.
        groups = [group.items() for group in item.param_groups]
        return {"groups": [{key: _copied(value) for key, value in group if key != "params"} for group in groups]}
    return {key: _copied(value) for key, value in vars(item).items()}


def _copied(value: Any) -> Any:
    """Containers are changed in place; what else a scaler or scheduler has is replaced, or a tensor."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, (dict, list)) else value


def _restore(item: Any, state: dict[str, Any]) -> None:
    if isinstance(item, torch.optim.Optimizer):
        for group, settings in zip(item.param_groups, state["groups"], strict=True):
            group.update(settings)
    else:
        item.__dict__.clear()
        item.__dict__.update(state)
