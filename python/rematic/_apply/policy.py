"""What a plan decides about one call of a module."""

from __future__ import annotations

from typing import Any

import torch

from rematic._core import Region

from .errors import Mismatch

DETACH = torch.ops.aten.detach.default
# What capture does not record: they run no kernel.
UNRECORDED = ("profiler", "prim", "prims")
_RANDOM = torch.Tag.nondeterministic_seeded


def name_of(func: Any) -> str:
    """An operator's name as plans spell it."""
    return str(func).removeprefix("aten.")


class Policy:
    """The operators of a region in order, and whether their outputs are saved.

    Checkpointing itself detaches what autograd saves, once in forward and in other places when it recomputes. `detach`
    makes no memory and is left out on both sides.
    """

    def __init__(self, region: Region) -> None:
        self.module = region.module
        self.call = region.call
        listed = [(index, name, saved) for index, (name, saved) in enumerate(region.policy) if name != "detach.default"]
        self.length = len(region.policy)
        self.positions = [index for index, _, _ in listed]
        self.names = [name for _, name, _ in listed]
        self.saves = [saved for _, _, saved in listed]
        # The operators themselves: compared faster than names. Filled in as they are met.
        self.ops: list[Any] = [None] * len(listed)
        # Random numbers must come again as they came only if they are drawn again.
        self.draws = any(not saved and _may_draw(name) for _, name, saved in listed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ops": [None] * len(self.ops)}

    def meets(self, at: int, func: Any) -> bool:
        """Whether the region's operator at this place is the one that runs now."""
        if at < len(self.ops) and name_of(func) == self.names[at]:
            self.ops[at] = func
            return True
        return False

    def mismatch(self, at: int, func: Any, *, again: bool = False, hint: str = "") -> Mismatch:
        """The error that another operator runs; None if none does any more."""
        listed = at < len(self.names)
        return Mismatch(
            self.module,
            self.call,
            self.positions[at] if listed else self.length,
            self.names[at] if listed else None,
            name_of(func) if func is not None else None,
            again=again,
            hint=hint,
        )


def _may_draw(name: str) -> bool:
    """Whether an operator draws random numbers. Of those that are not known yet, it is assumed."""
    *namespace, packet, overload = name.split(".")
    try:
        func = getattr(getattr(getattr(torch.ops, namespace[0] if namespace else "aten"), packet), overload)
    except AttributeError:
        return True
    return _RANDOM in func.tags or func.namespace != "aten"
