"""What a step's function reaches besides its arguments: a second network with its optimizer, schedulers, scalers, averages,
counters, generators of random numbers. A capture runs the function, and leaves all of it as it was."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import itertools
import random
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rematic._model.wrapped import inner

from .holders import CONTAINERS, Cell, Holder, Named, Slots
from .replica import Replica

# More objects than this are not looked at, nor items of a longer container.
MAX_OBJECTS = 200_000
MAX_ITEMS = 10_000
# Containers in containers are looked into so far for what a run has made.
DEPTH = 4
# Arrays of numpy up to this many bytes are copied and put back.
MAX_ARRAY = 1 << 20

_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {"<frozen", "<string>"}
)
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, range, slice, torch.dtype, torch.device, torch.Size,
    torch.layout, types.BuiltinFunctionType, types.GeneratorType, weakref.ReferenceType, inspect.Signature,
)  # fmt: skip
# Of the standard library's objects, these are plain data; others (locks, files, loggers) are left alone.
_PLAIN = ("collections", "types", "argparse", "functools", "__main__")

# Gives what puts a state back; whatever that returns is of no interest.
Remembers = Callable[[], Callable[[], object]]


def _is_users_file(path: str | None) -> bool:
    return path is not None and not path.startswith(_LIBRARIES)


def _names(code: types.CodeType) -> Iterator[str]:
    """What a function names, and what functions inside of it do."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


class Bystanders:
    """Everything that some functions reach: closures, defaults, globals that they name, attributes of their objects, and
    what these hold in turn."""

    def __init__(self, *functions: Any) -> None:
        self._seen: dict[int, Any] = {}
        self._holders: list[Holder] = []
        self.tensors: dict[int, Tensor] = {}
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._states: list[Remembers] = []
        # What puts back each of the holders, while that is to be done.
        self._back: list[Callable[[], object]] = []
        pending = list(functions)
        while pending and len(self._seen) < MAX_OBJECTS:
            item = pending.pop()
            if not isinstance(item, _ATOMS) and id(item) not in self._seen:
                self._seen[id(item)] = item
                pending.extend(self._visit(item))

    # ---- the walk ----

    def _visit(self, item: Any) -> Iterable[Any]:
        """Notes an object, and gives what it holds."""
        if isinstance(item, Tensor):
            self.tensors[id(item)] = item
            return () if item.grad is None else (item.grad,)
        if isinstance(item, (types.FunctionType, types.MethodType)):
            return self._visit_function(item)
        state = _state_of(item)
        if state is not None:
            self._states.append(state)
            return ()
        if isinstance(item, types.CellType):
            holder: Holder = Cell(item)
        elif isinstance(item, tuple(CONTAINERS)):
            holder = next(make for kind, make in CONTAINERS.items() if isinstance(item, kind))(item)
        elif isinstance(item, (tuple, frozenset)):
            return list(item)[:MAX_ITEMS]
        elif isinstance(item, functools.partial):
            return (item.func, *item.args, *item.keywords.values())
        elif isinstance(item, types.ModuleType) or not _is_plain(item):
            return ()
        else:
            return self._visit_object(item)
        self._holders.append(holder)
        return holder.items()[:MAX_ITEMS]

    def _visit_function(self, function: Any) -> list[Any]:
        if isinstance(function, types.MethodType):
            return [function.__self__, function.__func__]
        if not _is_users_file(function.__code__.co_filename):
            return []
        held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *(function.__closure__ or ())]
        held.append(vars(function))
        names = set(_names(function.__code__))
        named = Named(function.__globals__, names)
        self._holders.append(named)
        held += named.items()
        for module in named.items():
            if isinstance(module, types.ModuleType) and _is_users_file(getattr(module, "__file__", None)):
                inside = Named(vars(module), names)
                self._holders.append(inside)
                held += inside.items()
        return held

    def _visit_object(self, item: Any) -> list[Any]:
        if isinstance(item, nn.Module):
            self.modules.append(item)
        elif isinstance(item, torch.optim.Optimizer):
            self.optimizers.append(item)
        found: list[Any] = []
        if isinstance(getattr(item, "__dict__", None), dict):
            found.append(item.__dict__)
        slots = Slots(item)
        if slots.names:
            self._holders.append(slots)
            found += slots.items()
        # What its methods reach.
        for kind in type(item).__mro__:
            found += [member for member in vars(kind).values() if isinstance(member, types.FunctionType)]
        return found

    # ---- what is put in place, and back ----

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Whatever happens while it is entered, everything is afterwards as it was."""
        outer, self._back = self._back, [holder.remember() for holder in self._holders]
        back = [*self._back, *(state() for state in (*self._states, *_global_states()))]
        try:
            yield
        finally:
            self._back = outer
            for restore in reversed(back):
                restore()

    def let_go(self, made: set[int]) -> None:
        """A run has ended, and these are the addresses of storages that it has made. Containers that it has replaced would be gone, if
        nothing here referred to them, and with them what the run has put there: that goes."""
        own = {id(self._seen), id(self._holders), *_ids_of(self._back)}
        for holder in self._holders:
            own |= {id(holder), id(vars(holder))}
        for holder, restore in zip(self._holders, self._back, strict=True):
            held = holder.container
            if held is None or not _holds(held, made, DEPTH):
                continue
            if all(id(other) in own or isinstance(other, types.FrameType) for other in gc.get_referrers(held)):
                restore()

    def replace(self, replica: Replica) -> list[Tensor]:
        """Puts what stands for them in the place of tensors that a step could train or change: those of networks and of
        optimizers, and others that need gradients. The captured model's own stay. Gives what was put there."""
        changed = {id(t) for module in self.modules for t in (*module.parameters(False), *module.buffers(False))}
        for optimizer in self.optimizers:
            changed |= {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        changed |= {key for key, tensor in self.tensors.items() if tensor.requires_grad and tensor.is_leaf}
        made: dict[int, Tensor] = {}

        def stand_in(tensor: Tensor) -> Tensor:
            if id(tensor) not in changed or tensor.is_meta or replica.is_of_model(tensor):
                return tensor
            twin = made.get(id(tensor))
            if twin is None:
                twin = made[id(tensor)] = replica.tensor(tensor)
            return twin

        for holder in self._holders:
            holder.replace(stand_in)
        for optimizer in self.replaced_optimizers(replica):
            optimizer.state = collections.defaultdict(dict)
        return list(made.values())

    def replaced_optimizers(self, replica: Replica) -> list[torch.optim.Optimizer]:
        """Those of other networks than the captured one."""
        return [
            optimizer
            for optimizer in self.optimizers
            if not any(replica.is_of_model(parameter) for group in optimizer.param_groups for parameter in group["params"])
        ]


def _holds(item: Any, made: set[int], depth: int) -> bool:
    """Whether a tensor on one of some storages is there."""
    if isinstance(item, Tensor):
        tensor = inner(item)
        return tensor.is_meta and tensor.layout is torch.strided and tensor.untyped_storage()._cdata in made
    held = item.values() if isinstance(item, dict) else item
    if not depth or not isinstance(item, (dict, list, tuple, set, collections.deque)):
        return False
    return any(_holds(inside, made, depth - 1) for inside in itertools.islice(held, MAX_ITEMS))


def _ids_of(back: list[Callable[[], object]]) -> Iterator[int]:
    """Copies that functions which put something back have of it."""
    for restore in back:
        yield from (id(cell.cell_contents) for cell in getattr(restore, "__closure__", None) or ())


def _is_plain(item: Any) -> bool:
    module = type(item).__module__.partition(".")[0]
    return module not in sys.stdlib_module_names or module in _PLAIN


# ---- states that are no attributes ----


def _state_of(item: Any) -> Remembers | None:
    """How to remember the state of a generator of random numbers, or the values of an array."""
    if isinstance(item, torch.Generator):
        return lambda: functools.partial(item.set_state, item.get_state())
    if isinstance(item, random.Random):
        return lambda: functools.partial(item.setstate, item.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(item, numpy.random.Generator):
        return lambda: functools.partial(setattr, item.bit_generator, "state", item.bit_generator.state)
    if isinstance(item, numpy.random.RandomState):
        return lambda: functools.partial(item.set_state, item.get_state())
    if isinstance(item, numpy.ndarray):
        is_small = item.nbytes <= MAX_ARRAY and item.flags.writeable
        return lambda: functools.partial(numpy.copyto, item, item.copy()) if is_small else _nothing
    return None


def _nothing() -> None:
    pass


def _global_states() -> list[Remembers]:
    states: list[Remembers] = [
        lambda: functools.partial(torch.set_rng_state, torch.get_rng_state()),
        lambda: functools.partial(random.setstate, random.getstate()),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append(lambda: functools.partial(numpy.random.set_state, numpy.random.get_state()))
    return states
