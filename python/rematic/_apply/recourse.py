"""A region that runs again and reads what its plan does not make again begins once more, and makes all of it.

A plan skips operators of which nothing in its step reads the results. What runs may read them all the same: code that looks at
memory, another version of an operator, a hook. Then what the first try has left with PyTorch is taken back, the region's
surroundings are put back once more, and everything that is not saved runs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint as checkpointing

from rematic._core import PlanError

from .call import STOP
from .hollow import UNREAD, Hollow

if TYPE_CHECKING:
    from .modes import Again

# What PyTorch notes of a region that it recomputes, by the backward for which it does.
_NOTES = ("recomp_counter", "recomputed", "weak_holders")


class Recomputation:
    """What PyTorch knows of the region that it recomputes now."""

    def __init__(self, frame: Any, backward: Any) -> None:
        self._frame = frame
        self._backward = backward

    @staticmethod
    def under_way() -> Recomputation | None:
        """The innermost one; None if this version of PyTorch notes other things."""
        called: Any = sys._getframe(1)
        while called is not None:
            code = called.f_code
            if code.co_name == "unpack_hook" and code.co_filename == checkpointing.__file__:
                known = called.f_locals
                frame = known.get("frame")
                is_known = "gid" in known and all(hasattr(frame, name) for name in _NOTES)
                return Recomputation(frame, known["gid"]) if is_known else None
            called = called.f_back
        return None

    def has_hollow(self) -> bool:
        """Whether autograd has saved something that was not made."""
        return any(isinstance(tensor, Hollow) for tensor in self._frame.recomputed[self._backward].values())

    def forget(self) -> None:
        """Nothing was recomputed yet."""
        self._frame.recomp_counter[self._backward] = 0
        self._frame.recomputed[self._backward].clear()
        for known in self._frame.weak_holders:
            holder = known()
            if holder is not None:
                holder.handles.pop(self._backward, None)


def repeated(again: Again, run: Callable[[], Any]) -> Any:
    """Runs a region again as its plan says, and once more if anything reads what the plan leaves out. An error of the first try
    may come of that too, whatever it says: then it does not come again."""
    if not again.skips:
        return run()
    known = Recomputation.under_way()
    try:
        out = run()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        is_over = is_stop(error)
        reader = _reader(again, known)
        if is_over and reader is None:
            raise
        if known is None or not again.begin_in_full():
            if is_over:
                raise PlanError(f"`{reader}` {UNREAD}") from None
            raise
        reader = reader or f"{type(error).__name__}: {error}"
        # They hold tensors.
        traceback.clear_frames(error.__traceback__)
    else:
        reader = _reader(again, known)
        if reader is None:
            return out
        if known is None or not again.begin_in_full():
            raise PlanError(f"`{reader}` {UNREAD}")
        del out
    known.forget()
    # It holds what the first try has cast.
    torch.clear_autocast_cache()
    return _in_full(again, reader, run)


def _reader(again: Again, known: Recomputation | None) -> str | None:
    """Who has read what was not made, if anybody has."""
    if again.readers:
        return again.readers[0]
    return "autograd" if known is not None and known.has_hollow() else None


def _in_full(again: Again, reader: str, run: Callable[[], Any]) -> Any:
    try:
        out = run()
    except Exception as error:
        if is_stop(error):
            _tell(again, reader)
        raise
    _tell(again, reader)
    return out


def _tell(again: Again, reader: str) -> None:
    again.tell(
        f"`{again.module}` was recomputed in full, as `{reader}` reads what the plan does not make again: no operator of the step that "
        "it was made for reads it there. Gradients are right, but the step may take more memory and time than the plan says; "
        "capture and plan the step as it runs"
    )


def is_stop(error: Exception) -> bool:
    """Whether all that was asked for is there."""
    return STOP is not None and isinstance(error, STOP)
