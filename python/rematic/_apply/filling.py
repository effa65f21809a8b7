"""The run of a region that fills a cache.

A module may make a table when it first needs one, and keep it: positions, masks, frequencies. Plans are made for the steps
after that, which find it. The first one runs more operators, and when it is recomputed, it may or may not find the table. So
from the first of these operators on nothing is saved this once; and what is run again must be what ran, where only the
operators that are not in the plan may be missing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import Mismatch
from .policy import Policy, name_of

if TYPE_CHECKING:
    from .modes import Kept

# What dropout does in place on the CPU with the numbers that it has drawn.
_SCALES_DRAWN = ("bernoulli_.float", "div_.Scalar")


class Filling(Policy):
    """Grows by what runs, which is all that is planned and more."""

    def __init__(self, planned: Policy, followed: Policy, at: int, kept: Kept, error: Mismatch) -> None:
        super().__init__(planned.module, planned.call, [])
        self._planned = planned
        # Its frames would hold tensors.
        self._error = error.with_traceback(None)
        self._done = at
        self.names = planned.names[:at]
        self.positions = planned.positions[:at]
        self.ops, self.draws, self.changes = followed.ops[:at], followed.draws[:at], followed.changes[:at]
        self.plain = [False] * at
        self._is_planned = [True] * at
        # What makes the table may look like what is planned for a while. But it draws no numbers: up to the last that were
        # drawn, all is as planned.
        sure = max((place + 1 for place in range(at) if self.draws[place]), default=0)
        sure += tuple(self.names[sure - 1 : sure + 1]) == _SCALES_DRAWN
        for place in [place for place in kept.values if place >= sure]:
            if self.changes[place]:
                raise error
            del kept.values[place]
        self.saves = [place in kept.values for place in range(at)]
        # The storages that were made since, and what operators have made that are not planned.
        self._made: set[int] = set()
        self._more: list[weakref.ref[Tensor]] = []

    def meets(self, at: int, func: Any) -> bool:
        if at < len(self.names):
            return super().meets(at, func)
        name, planned = name_of(func), self._planned
        is_planned = planned.names[self._done : self._done + 1] == [name]
        if not is_planned and (torch.Tag.nondeterministic_seeded in func.tags or func.namespace != "aten"):
            return False
        self.names.append(name)
        self.positions.append(planned.place(self._done))
        self.ops.append(None)
        for answers in (self.saves, self.draws, self.changes, self.plain):
            answers.append(False)
        self._is_planned.append(is_planned)
        self._done += is_planned
        super().meets(at, func)
        # All is to be noted.
        self.plain[at] = False
        return True

    def check_change(self, at: int, written: Sequence[Tensor]) -> None:
        """Refuses what would be changed in place a second time."""
        is_saved = self._is_planned[at] and self._planned.saves[self._done - 1]
        is_wanted = is_saved or not self._is_planned[at]
        if is_wanted and not all(tensor.untyped_storage()._cdata in self._made for tensor in written):
            raise self._error

    def note(self, at: int, made: Sequence[Tensor]) -> None:
        """An operator has run."""
        self._made.update(tensor.untyped_storage()._cdata for tensor in made if tensor.layout is torch.strided)
        if not self._is_planned[at]:
            self._more += map(weakref.ref, made)

    def found(self, at: int, func: Any) -> int | None:
        while at < len(self.names):
            if super().meets(at, func):
                return at
            if self._is_planned[at]:
                return None
            at += 1
        return None

    def ended(self, at: int, kept: Kept) -> Policy:
        # A table is there now, and no part of the model's graph.
        kept_more = any(tensor is not None and not tensor.requires_grad for tensor in (ref() for ref in self._more))
        if self._done < len(self._planned.names) or not kept_more:
            raise self._error
        return self

    def mismatch(self, at: int, func: Any, *, again: bool = False, hint: str = "") -> Mismatch:
        return self._error
