"""From an operator's signature back to a call of it.

A signature has the layouts of the tensors that an operator reads and returns, and nothing else. The operator's schema
says which other arguments it takes; their values are guessed from the layouts, and a guess is right if the operator, run
on the meta device, returns what the signature says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .arguments import Context, guesses
from .inputs import Layout, on_meta, same_layout, same_shape

# So many guesses are tried for an operator.
MOST_GUESSES = 2000
# Operators whose arguments must not be negative.
POSITIVE = ("sqrt", "rsqrt", "log", "bernoulli", "pow", "multinomial")
# Arguments of type Tensor that may be missing: attention's own, where there is no mask or no packing.
UNDEFINED = ("attn_bias", "cum_seq_q", "cum_seq_k")
# Arguments of type Tensor for which Python may pass a number.
NUMBERS = ("other", "exponent", "value")


class NotRebuilt(Exception):
    """There is no call for a signature; the text says why."""


class Slot:
    """The place of one of the signature's inputs among the arguments."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


class OnDevice:
    """The place of the device among the arguments."""


def operator(name: str) -> Any:
    """The operator of a name: `mm.default`, or with the library that it belongs to."""
    *library, packet, overload = name.split(".")
    try:
        found = getattr(getattr(torch.ops, library[0] if library else "aten"), packet)
        return getattr(found, overload)
    except AttributeError:
        raise NotRebuilt("this version of torch has no such operator") from None


class Call:
    """An operator with all of its arguments."""

    def __init__(self, op: Any, arguments: Mapping[str, Any], context: Context) -> None:
        self._op = op
        schema = op._schema.arguments
        self._positional = [arguments[argument.name] for argument in schema if not argument.kwarg_only]
        self._named = {argument.name: arguments[argument.name] for argument in schema if argument.kwarg_only}
        self._context = context

    @property
    def needs_positive(self) -> bool:
        """Whether numbers must not be negative."""
        return self._context.packet.strip("_").removeprefix("foreach_") in POSITIVE

    def bound(self, position: int) -> int:
        """What the values of an input must stay below, if they are integers."""
        return self._context.bound(position)

    def run(self, inputs: list[torch.Tensor], device: torch.device) -> Any:
        """Runs it."""
        fill = _Fill(inputs, device)
        return self._op(*map(fill, self._positional), **{name: fill(value) for name, value in self._named.items()})

    def check(self, results: Any, outputs: list[Layout]) -> None:
        """Refuses results of another type or shape."""
        if not _are(results, outputs, same_shape):
            raise NotRebuilt("its other arguments cannot be told from what it reads and returns")


class _Fill:
    """Puts tensors where the slots are."""

    def __init__(self, inputs: list[torch.Tensor], device: torch.device) -> None:
        self._inputs = inputs
        self._device = device

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Slot):
            return self._inputs[value.position]
        if isinstance(value, OnDevice):
            return self._device
        if isinstance(value, list):
            return [self(item) for item in value]
        return value


def rebuild(op: Any, inputs: list[Layout], outputs: list[Layout], causal: bool) -> Call:
    """A call whose results have the layouts of the outputs."""
    metas = [on_meta(layout) for layout in inputs]
    meta = torch.device("meta")
    similar = first = None
    for call in itertools.islice(_calls(op, inputs, outputs, causal), MOST_GUESSES):
        first = first or call
        try:
            results = call.run(metas, meta)
        except Exception:
            continue
        if _are(results, outputs, same_layout):
            return call
        if similar is None and _are(results, outputs, same_shape):
            similar = call
    # An operator that does not run on the meta device may run on a real one.
    found = similar or first
    if found is None:
        raise NotRebuilt("it takes other tensors than the trace says")
    return found


def _are(results: Any, outputs: list[Layout], same: Any) -> bool:
    """Whether the tensors among the results have the layouts, in order; traces leave out what is on the host, and in-place
    operators on lists return nothing."""
    tensors = iter(_tensors(results))
    return all(any(same(tensor, layout) for tensor in tensors) for layout in outputs)


def _tensors(results: Any) -> Iterator[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        yield results
    elif isinstance(results, (list, tuple)):
        for result in results:
            yield from _tensors(result)


def _calls(op: Any, inputs: list[Layout], outputs: list[Layout], causal: bool) -> Iterator[Call]:
    arguments = op._schema.arguments
    for tensors in _assignments(arguments, inputs):
        layouts = {name: _layouts(value, inputs) for name, value in tensors.items()}
        context = Context(op._schema.name, layouts, _positions(tensors), outputs, causal)
        others = [argument for argument in arguments if argument.name not in tensors]
        for values in guesses(others, context):
            if "device" in values and not inputs:
                values = {**values, "device": OnDevice()}
            yield Call(op, {**tensors, **values}, context.with_values(values))


def _layouts(value: Any, inputs: list[Layout]) -> Any:
    if isinstance(value, Slot):
        return inputs[value.position]
    return [_layouts(item, inputs) for item in value] if isinstance(value, list) else None


def _positions(tensors: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """For each input, the argument that it belongs to, and its place in it."""
    positions = {}
    for name, value in tensors.items():
        for place, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, Slot):
                positions[item.position] = (name, place)
    return positions


TENSOR, MAYBE, LIST, LIST_OF_MAYBE = "Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]"


def _assignments(arguments: Any, inputs: list[Layout]) -> Iterator[dict[str, Any]]:
    """The ways to hand the inputs, in their order, to the arguments that are tensors."""
    takers = [argument for argument in arguments if str(argument.type) in (TENSOR, MAYBE, LIST, LIST_OF_MAYBE)]
    lists = [argument for argument in takers if str(argument.type) == LIST]
    for length in _lengths(lists, len(inputs)):
        for assigned in _assigned(takers, 0, len(inputs), length):
            if _lists_agree([assigned[argument.name] for argument in lists], inputs):
                yield assigned


def _lengths(lists: list[Any], count: int) -> Iterator[int]:
    """How long the lists may be that are not empty: they are all equally long."""
    if len(lists) <= 1:
        yield from range(count, -1, -1) if lists else (0,)
        return
    # Most optimizers keep no maxima.
    usual = sum(not argument.name.startswith("max_") for argument in lists)
    for used in sorted(range(1, len(lists) + 1), key=lambda used: (used != usual, -used)):
        yield from (length for length in range(count // used, 0, -1) if used * length <= count)


def _assigned(takers: list[Any], start: int, count: int, length: int) -> Iterator[dict[str, Any]]:
    if not takers:
        if start == count:
            yield {}
        return
    argument, rest = takers[0], takers[1:]
    for value, taken in _choices(argument, start, count, length):
        for others in _assigned(rest, start + taken, count, length):
            yield {argument.name: value, **others}


def _choices(argument: Any, start: int, count: int, length: int) -> Iterator[tuple[Any, int]]:
    """What an argument may be, and how many of the inputs that takes."""
    kind, left = str(argument.type), count - start
    if kind in (TENSOR, MAYBE) and left:
        yield Slot(start), 1
    if kind == MAYBE or argument.name in UNDEFINED:
        yield None, 0
    elif kind == TENSOR and argument.name in NUMBERS:
        yield 1, 0
    elif kind == LIST:
        slots = [Slot(start + place) for place in range(length)]
        options = [(slots, length)] if length <= left else []
        if length:
            options.append(([], 0))
        yield from reversed(options) if argument.name.startswith("max_") else options
    elif kind == LIST_OF_MAYBE:
        # Indices of the first dimensions, or of the last of several.
        for taken in range(left, 0, -1):
            for skipped in range(4):
                yield [None] * skipped + [Slot(start + place) for place in range(taken)], taken


def _lists_agree(lists: list[list[Slot]], inputs: list[Layout]) -> bool:
    """Whether what stands at the same place of several lists belongs together: the shapes are equal, or it is a number."""
    for slots in zip(*filter(None, lists), strict=False):
        shapes = [inputs[slot.position][1] for slot in slots]
        if any(shape and shape != shapes[0] for shape in shapes):
            return False
    return True
