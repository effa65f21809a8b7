"""What a region finds around it when it begins, so that it finds the same when it runs again.

A region reads its arguments and its parameters; and it may read anything else that Python can reach: containers and objects
that the caller changes after the call, attributes of its modules, globals, closures, generators of random numbers. All of
that is written down before its first run, and put back for its second; afterwards everything is again as it was before
the second run, so that nothing of it is left: no counter counts twice, and no attribute holds a recomputed tensor.

Tensors are referred to weakly, unless an operator of the region reads them: a tensor that an attribute has kept since
the last step must go when it would go without a plan. Builtin containers are copied; objects are changed in place, and made
anew if nobody else had them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import enum
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rematic._core import PlanError
from rematic._model.settings import Settings

from .encoded import (
    LEAVE,
    Again,
    ArrayCopy,
    Container,
    KeptTensor,
    NamedContainer,
    OneWay,
    Rewound,
    decoded,
    maker_of,
    place_name,
    progress_of,
)
from .places import Places, is_generator, is_opaque
from .spaces import (
    INTERNAL,
    BufferSpace,
    CellSpace,
    ContextSpace,
    DefaultSpace,
    GeneratorSpace,
    NameSpace,
    ObjectSpace,
    Space,
    TableSpace,
    slots_of,
)

# How many values are written down for one region, the nearest first.
MAX_VALUES = 4000

_ATOMS = frozenset(
    [int, float, bool, complex, str, bytes, type(None), type(...), type, range, slice, frozenset, property,
     types.BuiltinFunctionType, types.ModuleType, torch.dtype, torch.device, torch.Size, torch.layout,
     torch.memory_format]
)  # fmt: skip
_COPIED = (list, dict, set, collections.deque)
# Objects of Python's own library that hold what the user puts into them.
_HOLDERS = (
    types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, collections.ChainMap,
    threading.local,
)  # fmt: skip


class Snapshot:
    """What a region finds when it begins."""

    def __init__(
        self,
        modules: list[tuple[str, nn.Module]],
        places: Places,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        links: Any = None,
    ) -> None:
        # Knows what earlier calls of a run have returned, which is not kept.
        self._links = links
        # What must not be read when it runs again, by storage, with what is wrong with it.
        self.suspects: dict[int, str] = {}
        # What may be read besides the arguments, by storage.
        self.watched: dict[int, list[KeptTensor]] = {}
        self._settings = Settings()
        self._buffers: list[KeptTensor] = []
        # Buffers as they were, with their versions, where the region may be recomputed whole.
        self._copies: list[tuple[KeptTensor, int, Tensor]] = []
        # Their storages.
        self.copied: set[int] = set()
        # Those that an operator of the region has read, and those among its arguments.
        self._read: list[KeptTensor] = []
        self._spaces: list[Space] = []
        # Python's generators besides the arguments, and how far they were.
        self._generators: list[tuple[Any, Any, tuple[str, Any]]] = []
        # The parameters, and whether they are trained.
        self._trained: list[tuple[nn.Parameter, bool]] = []
        self._left = MAX_VALUES
        self._memo: dict[int, Any] = {}
        # The memo goes by addresses: what they are of must live until it is complete.
        self._alive: list[Any] = []
        self._waiting: collections.deque[tuple[Space, dict[Any, Any]]] = collections.deque()
        self._own = {id(module) for _, module in modules}
        self._args = [self._argument(value, ("the arguments", at)) for at, value in enumerate(args)]
        self._kwargs = {name: self._argument(value, ("the arguments", name)) for name, value in kwargs.items()}
        for label, module in modules:
            self._module(f"`{label}`", module)
        for space, names in places.names.values():
            self._add(NameSpace(f"the globals of `{space.get('__name__')}`", space, names))
        for kind, names in places.classes.items():
            if names:
                self._add(NameSpace(f"the class {kind.__name__}", kind, names))
        for cell in places.cells.values():
            self._add(CellSpace("a function's closure", cell))
        for function in places.functions.values():
            self._add(DefaultSpace(f"the default arguments of `{function.__name__}`", function))
        for generator in places.generators.values():
            self._generator(generator)
        while self._waiting:
            self._fill(*self._waiting.popleft())
        self._memo.clear()
        self._alive.clear()
        self._links = None

    def given(self) -> Iterator[Tensor]:
        """The tensors among the arguments that are kept."""
        return (kept.held for kept in self._read if kept.held is not None)

    # ---- writing down ----

    def _module(self, label: str, module: nn.Module) -> None:
        space = ObjectSpace(label, module)
        self._spaces.append(space)
        self._waiting.append((space, {key: value for key, value in vars(module).items() if key not in INTERNAL}))
        for table in (module._parameters, module._modules):
            if table:
                self._spaces.append(TableSpace(label, table))
        for parameter in module._parameters.values():
            if parameter is not None:
                self._trained.append((parameter, parameter.requires_grad))
        if module._buffers:
            buffers = BufferSpace(label, module)
            self._spaces.append(buffers)
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    kept = buffers.was[name] = KeptTensor(tensor, (buffers.label, name))
                    # Until the region is over: it may replace it.
                    kept.held = tensor
                    self._buffers.append(kept)
                else:
                    buffers.was[name] = None

    def _add(self, space: Space) -> None:
        self._spaces.append(space)
        self._waiting.append((space, space.read(space.target())))

    def _fill(self, space: Space, values: dict[Any, Any]) -> None:
        was = space.was
        for key, value in values.items():
            was[key] = value if type(value) in _ATOMS else self._encode(value, (space.label, key))

    def _generator(self, generator: Any) -> None:
        space = GeneratorSpace("a generator", generator)
        space.was = space.read(generator)
        self._spaces.append(space)

    def _argument(self, value: Any, place: tuple[str, Any]) -> Any:
        if isinstance(value, Tensor):
            linked = None if self._links is None else self._links.of(value)
            if linked is not None:
                return linked
            kept = KeptTensor(value, place)
            # As checkpointing itself keeps them.
            kept.held = value
            self._read.append(kept)
            return kept
        return value if type(value) in _ATOMS else self._encode(value, place, given=True)

    def _encode(self, value: Any, place: tuple[str, Any], given: bool = False) -> Any:
        """What stands for a value, by which it can be had again."""
        known = self._memo.get(id(value))
        if known is not None:
            return known
        self._left -= 1
        if self._left < 0:
            return LEAVE
        if isinstance(value, Tensor):
            encoded = self._tensor(value, place)
        elif isinstance(value, (*_COPIED, tuple)):
            return self._container(value, place, given)
        elif isinstance(value, Iterator):
            encoded = self._iterator(value, place, given)
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            encoded = self._function(value)
        elif is_generator(value):
            self._generator(value)
            encoded = value
        elif isinstance(value, contextvars.ContextVar):
            self._add(ContextSpace("a context variable", value))
            encoded = value
        elif type(value).__name__ == "ndarray" and value.dtype != object:
            encoded = ArrayCopy(value)
        elif _has_attributes(value):
            encoded = self._object(value, place)
        else:
            encoded = value
        self._memo[id(value)] = encoded
        self._alive.append(value)
        return encoded

    def _iterator(self, value: Any, place: tuple[str, Any], given: bool) -> Any:
        try:
            return Rewound(value)
        except OneWay:
            if given:
                raise _once(value, place) from None
            if isinstance(value, types.GeneratorType):
                self._generators.append((value, progress_of(value), place))
            return value

    def _tensor(self, tensor: Tensor, place: tuple[str, Any]) -> Any:
        if tensor.layout is not torch.strided or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            return tensor
        linked = None if self._links is None else self._links.of(tensor)
        if linked is not None:
            return linked
        kept = KeptTensor(tensor, place)
        self.watched.setdefault(tensor.untyped_storage()._cdata, []).append(kept)
        return kept

    def _container(self, value: Any, place: tuple[str, Any], given: bool) -> Any:
        kind = type(value)
        if len(value) > MAX_VALUES and not given:
            return value
        label = place_name(place)
        if isinstance(value, tuple):
            made: Container = Container(tuple) if kind is tuple else NamedContainer(kind)
        else:
            made = Container(maker_of(value))
            # Before what is in it: it may contain itself.
            self._memo[id(value)] = made
            self._alive.append(value)
        if isinstance(value, dict):
            ordered = isinstance(value, collections.OrderedDict)
            made.keys = list((collections.OrderedDict if ordered else dict).keys(value))
            items: Any = [(key, dict.__getitem__(value, key)) for key in made.keys]
        else:
            items = enumerate(list(value))
        for key, item in items:
            if type(item) not in _ATOMS:
                encoded = self._argument(item, (label, key)) if given else self._encode(item, (label, key))
                item = item if encoded is LEAVE else encoded
            made.items.append(item)
        if kind not in _COPIED:
            made.attributes = {
                key: self._encode(item, (label, key)) if type(item) not in _ATOMS else item
                for key, item in getattr(value, "__dict__", {}).items()
            }
        if isinstance(value, tuple) and all(a is b for a, b in zip(made.items, value, strict=True)):
            return value
        return made

    def _function(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            self._encode(value.__self__, ("a method", value.__name__))
        elif not is_opaque(value.__module__):
            for cell in value.__closure__ or ():
                if id(cell) not in self._memo:
                    self._memo[id(cell)] = cell
                    self._alive.append(cell)
                    self._add(CellSpace(f"the closure of `{value.__name__}`", cell))
        return value

    def _object(self, value: Any, place: tuple[str, Any]) -> Any:
        if isinstance(value, nn.Module):
            self._outside(value, place_name(place))
            return value
        space = ObjectSpace(place_name(place), value)
        self._spaces.append(space)
        self._waiting.append((space, space.read(value)))
        return space

    def _outside(self, outer: nn.Module, label: str) -> None:
        """A module that is not of the region, but that the region may reach."""
        if id(outer) in self._own:
            return
        for path, module in outer.named_modules():
            if id(module) in self._own:
                continue
            self._own.add(id(module))
            where = f"`{path}` in {label}" if path else label
            self._module(where, module)
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._tensor(parameter, (where, name))

    # ---- the first run ----

    def copy_buffers(self, written: list[Tensor]) -> None:
        """These are about to be changed in place. If nothing of the region can be saved, they are needed as they were."""
        storages = {tensor.untyped_storage()._cdata for tensor in written} - self.copied
        if not storages:
            return
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for kept in self._buffers:
                tensor = kept.get()
                if tensor is None or type(tensor) not in (Tensor, nn.Buffer):
                    continue
                storage = tensor.untyped_storage()._cdata
                if storage in storages:
                    self.copied.add(storage)
                    self._copies.append((kept, _version(tensor), tensor.clone()))

    def use_copies(self) -> None:
        """Nothing of the region was saved: it runs again with copies of the buffers that it has changed."""
        for kept, version, copy in self._copies:
            tensor = kept.get()
            if tensor is not None and _version(tensor) != version:
                kept.held = copy

    def note_reads(self, args: Any, kwargs: Any) -> None:
        """An operator of the region is about to run, and something is watched."""
        for read in tensors_among((args, kwargs)):
            storage = read.untyped_storage()._cdata
            for kept in self.watched.get(storage, ()):
                tensor = kept.ref()
                if tensor is not None and tensor.untyped_storage()._cdata == storage:
                    kept.held = tensor

    def close(self) -> None:
        """The first run is over. From now on nothing that it read may change."""
        self._read += [kept for found in self.watched.values() for kept in found if kept.held is not None]
        self.watched = {}
        self._copies = []
        for generator, before, place in self._generators:
            if progress_of(generator) != before:
                raise _once(generator, place)
        for space in self._spaces:
            if isinstance(space, BufferSpace):
                for name, kept in space.was.items():
                    if kept is not None and space.module._buffers.get(name) is kept.held:
                        kept.held = None
        for kept in [*self._read, *self._buffers]:
            tensor = kept.get()
            kept.version = _version(tensor) if tensor is not None else 0

    # ---- the runs after it ----

    def suspect(self, args: Any, kwargs: Any) -> str | None:
        """What an operator that runs again would read and must not, if anything is suspected."""
        found = (self.suspects.get(tensor.untyped_storage()._cdata) for tensor in tensors_among((args, kwargs)))
        return next(filter(None, found), None)

    def storages(self) -> set[int]:
        """The memory of what the region was given or read, and of buffers."""
        return {tensor.untyped_storage()._cdata for tensor in tensors_among([kept.get() for kept in [*self._read, *self._buffers]])}

    def look_for_changes(self) -> None:
        """What was changed in place since the first run must not be read."""
        self.suspects.clear()
        for kept, tensor in ((kept, kept.get()) for kept in [*self._read, *self._buffers]):
            if tensor is not None and _version(tensor) != kept.version:
                self.suspects[tensor.untyped_storage()._cdata] = f"{kept}, which was changed in place since"

    @contextlib.contextmanager
    def restored(self) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """While it is entered, everything is as it was. Gives the arguments."""
        again = Again(self.suspects)
        present: list[tuple[Space, Any, dict[Any, Any]]] = []
        with self._settings.restored(), _trained(self._trained):
            try:
                for space in self._spaces:
                    target = space.target()
                    if target is not None:
                        state = space.read(target)
                        present.append((space, target, state))
                        space.write(target, _before(space.was, state, again))
                keywords = {name: decoded(value, again) for name, value in self._kwargs.items()}
                yield [decoded(value, again) for value in self._args], keywords
            finally:
                for space, target, state in reversed(present):
                    space.write(target, state)


def _once(value: Any, place: tuple[str, Any]) -> PlanError:
    return PlanError(
        f"{place_name(place).capitalize()} is a {type(value).__name__}, which can be gone through only once, but the plan runs "
        "the module again; give a list, or plan without the module"
    )


@contextlib.contextmanager
def _trained(parameters: list[tuple[nn.Parameter, bool]]) -> Iterator[None]:
    """While it is entered, those parameters need a gradient that did. Afterwards those that do now, whatever the region
    switches, and wherever its second run ends."""
    before = [(parameter, parameter.requires_grad) for parameter, _ in parameters]
    try:
        _switch(parameters)
        yield
    finally:
        _switch(before)


def _switch(parameters: list[tuple[nn.Parameter, bool]]) -> None:
    for parameter, trains in parameters:
        if parameter.requires_grad != trains:
            parameter.requires_grad_(trains)


def _version(tensor: Tensor) -> int:
    """How often the tensor was changed in place; under `torch.inference_mode` nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def tensors_among(value: Any) -> Iterator[Tensor]:
    """The tensors among the arguments of an operator."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_among(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_among(item)


def _before(was: dict[Any, Any], present: dict[Any, Any], again: Again) -> dict[Any, Any]:
    state = {}
    for key, value in was.items():
        if value is not LEAVE:
            state[key] = decoded(value, again)
        elif key in present:
            state[key] = present[key]
    return state


def _has_attributes(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (nn.Module, *_HOLDERS)):
        return True
    if isinstance(value, (type, enum.Enum)) or is_opaque(kind.__module__):
        return False
    return hasattr(value, "__dict__") or bool(slots_of(kind))
