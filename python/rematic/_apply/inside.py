"""What a region makes, and what it changes in place that it has not made."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def storages(tensors: Iterable[Tensor]) -> set[int]:
    """Their addresses."""
    return {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}


class Inside:
    """One run of a region, watched from its beginning, or from some place on."""

    def __init__(self, *, from_start: bool) -> None:
        self.from_start = from_start
        self._made: set[int] = set()
        # What operators have changed in place, by position, and those that changed something else than the region made.
        self.written: dict[int, set[int]] = {}
        self.outside: dict[int, set[int]] = {}

    def note(self, given: Iterable[Tensor], made: Iterable[Tensor]) -> None:
        """An operator has run. A view is of what was there."""
        self._made |= storages(made) - storages(given)

    def note_change(self, at: int, written: Iterable[Tensor]) -> set[int]:
        """An operator is about to change these. Gives what of it the region has not made, as far as is known."""
        changed = self.written[at] = storages(written)
        outside = changed - self._made
        if outside:
            self.outside[at] = outside
        return outside
