"""The run of a region that fills a cache.

A module may make a table when it first needs one, and keep it: positions, masks, frequencies. Plans are made for the steps
after that, which find it. The first one runs more operators, and when it is recomputed, it may or may not find the table. Names
alone tell which of its operators are those of the plan. Some are, however one takes it: these are saved as the plan says, and
all others are made again. What is run again must be what ran, where only operators that are not in the plan may be missing,
and must make what it made.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import Mismatch
from .inside import Inside, storages
from .policy import Policy, name_of

if TYPE_CHECKING:
    from .kept import Kept


class Filling(Policy):
    """Grows by what runs, which is all that is planned and more."""

    def __init__(
        self, planned: Policy, followed: Policy, at: int, kept: Kept, inside: Inside, error: Mismatch
    ) -> None:
        super().__init__(planned.module, planned.call, [])
        self._planned = planned
        # Its frames would hold tensors.
        self._error = error.with_traceback(None)
        self._inside = inside
        self.names = planned.names[:at]
        self.positions = planned.positions[:at]
        self.ops, self.draws, self.changes = followed.ops[:at], followed.draws[:at], followed.changes[:at]
        self.plain = [False] * at
        self.saves = [place in kept.values for place in range(at)]
        # Which operator of the plan each is at the earliest, if any.
        self._earliest: list[int | None] = list(range(at))
        self._done = at
        # And which ones are none, in the end.
        self._is_planned = [True] * at
        # What was made since, with its storage.
        self._made: list[tuple[int, weakref.ref[Tensor], weakref.ref[Any]]] = []

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
        self.saves.append(is_planned and planned.saves[self._done])
        for answers in (self.draws, self.changes, self.plain):
            answers.append(False)
        self._earliest.append(self._done if is_planned else None)
        self._is_planned.append(is_planned)
        self._done += is_planned
        super().meets(at, func)
        # All is to be noted.
        self.plain[at] = False
        return True

    def changes_outside(self, at: int) -> None:
        """An operator is about to change what the region has not made. It must not do so twice."""
        if self._earliest[at] is None:
            raise self._error

    def note(self, at: int, made: Sequence[Tensor]) -> None:
        """An operator has run."""
        plain = [tensor for tensor in made if tensor.layout is torch.strided]
        self._made += [(at, weakref.ref(tensor), weakref.ref(tensor.untyped_storage())) for tensor in plain]

    def reach(self, at: int) -> Iterator[int]:
        while at < len(self.names):
            yield at
            if self._is_planned[at]:
                return
            at += 1

    def candidates(self, places: Iterable[int], func: Any) -> list[int]:
        """Where an operator that is run again may be, if the last one may have been before any of these places."""
        name = name_of(func)
        found = sorted({place for at in places for place in self.reach(at) if self.names[place] == name})
        # What is handed back must be known for sure.
        if len(found) > 1 and any(self.saves[place] for place in found):
            return []
        for place in found:
            super().meets(place, func)
        return found

    def ended(self, at: int, kept: Kept) -> Policy:
        if self._done < len(self._planned.names):
            raise self._error
        self._align(kept)
        if not any(self._is_kept(*made) for made in self._made):
            raise self._error
        return self

    def _is_kept(self, place: int, tensor: weakref.ref[Tensor], storage: weakref.ref[Any]) -> bool:
        """Whether it is not planned, and there now, and no result of the region."""
        if self._is_planned[place] or storage() is None:
            return False
        found = tensor()
        return found is None or not found.requires_grad

    def _align(self, kept: Kept) -> None:
        """What is planned comes behind what makes the table, so from the end the two are told apart. An operator that is the
        same of the plan from both sides is that one however the others are taken."""
        left = len(self._planned.names)
        dropped: set[int] = set()
        for place in range(len(self.names) - 1, -1, -1):
            self._is_planned[place] = left > 0 and self._planned.names[left - 1] == self.names[place]
            left -= self._is_planned[place]
            if self._is_planned[place] and self._earliest[place] == left:
                continue
            if self.draws[place] or place in self._inside.outside:
                raise self._error
            if self.saves[place]:
                if self.changes[place]:
                    raise self._error
                dropped |= storages(tensor for tensor in kept.tensors(place) if tensor._version)
                del kept.values[place]
                self.saves[place] = False
        changed = [place for place, saved in enumerate(self.saves) if saved and self.changes[place]]
        if dropped and any(not self._inside.from_start or self._inside.written[place] & dropped for place in changed):
            # What is handed back as changed in place would be made anew, and not changed.
            raise self._error

    def mismatch(self, at: int, func: Any, *, again: bool = False, hint: str = "") -> Mismatch:
        return self._error
