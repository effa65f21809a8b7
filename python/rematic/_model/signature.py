"""What a model is given: which of its arguments are tensors, of which types and shapes, and which switches are on.

It is a fact of the trace, in words: `input_ids=int64[4,64] use_cache=False`. An argument that is None is not given. By it a
model under a plan knows which captured variant a batch is like, and an error says what is unlike.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

INPUTS = "inputs"
# Between the forwards of a step that are given different things.
NEXT = " | "
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Signature:
    """The arguments of one forward by name, each in words."""

    given: dict[str, str]

    @staticmethod
    def of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
        """What a call of the model is given."""
        kind: type = type(model)
        names = _parameters(kind)
        named = [(names[at] if at < len(names) else str(at), value) for at, value in enumerate(args)]
        return Signature(dict(_words([*named, *kwargs.items()])))

    @staticmethod
    def read(text: str) -> Signature:
        """The same from a fact of a trace."""
        pairs = [word.partition("=") for word in text.split()]
        return Signature({name: value for name, is_one, value in pairs if is_one})

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.given.items())

    def distance(self, other: Signature) -> int:
        """How many arguments are of another kind: not given, of another type, or with dimensions of 1 elsewhere."""
        names = self.given.keys() | other.given.keys()
        return sum(_kind(self.given.get(name)) != _kind(other.given.get(name)) for name in names)

    def covers(self, other: Signature) -> bool:
        """Whether no dimension of the other is larger."""
        for name, words in other.given.items():
            own, its = _shape(self.given.get(name, "")), _shape(words)
            if its is not None and (own is None or len(own) != len(its) or any(a < b for a, b in zip(own, its))):
                return False
        return True

    def size(self) -> int:
        """The number of elements."""
        shapes = [shape for words in self.given.values() if (shape := _shape(words)) is not None]
        return sum(functools.reduce(int.__mul__, shape, 1) for shape in shapes)

    def unlike(self, other: Signature) -> list[str]:
        """What this one has otherwise, in words."""
        names = dict.fromkeys([*self.given, *other.given])
        pairs = [(name, self.given.get(name, "not given"), other.given.get(name, "not given")) for name in names]
        return [f"`{name}` is {own}, and was {its}" for name, own, its in pairs if own != its]


def _words(arguments: list[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, value in arguments:
        if isinstance(value, Tensor):
            yield name, f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
        elif isinstance(value, bool):
            yield name, str(value)
        elif isinstance(value, Mapping):
            yield from _words([(f"{name}.{str(key).replace(' ', '_')}", item) for key, item in value.items()])
        elif isinstance(value, (tuple, list)):
            yield from _words([(f"{name}.{at}", item) for at, item in enumerate(value)])


def _shape(words: str) -> list[int] | None:
    match = _TENSOR.fullmatch(words)
    return None if match is None else [int(part) for part in match[2].split(",") if part]


def _kind(words: str | None) -> Any:
    if words is None or (shape := _shape(words)) is None:
        return words
    return words.partition("[")[0], [extent == 1 for extent in shape]


@functools.cache
def _parameters(kind: type[nn.Module]) -> list[str]:
    """The names of the positional arguments of a module's forward."""
    try:
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional]
