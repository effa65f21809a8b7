"""What a step has made and leaves behind."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from rematic._model.storages import StorageRef

from .references import FreshRef

if TYPE_CHECKING:
    from .recorder import Recorder


def made(recorder: Recorder) -> list[weakref.ref[torch.UntypedStorage]]:
    """The storages that the step has made, as far as they are there."""
    refs = recorder.watched.values()
    return [ref for ref in refs if type(ref) is StorageRef and recorder.storages[ref.row][2] is not None]


def left(recorder: Recorder) -> set[int]:
    """The storages that the step has made and leaves, but for what it has made for its optimizer."""
    held = set().union(*recorder.unreleased().values())
    return {
        row
        for row, (_, category, birth, *_) in enumerate(recorder.storages)
        if birth is not None and category in ("activation", "temp") and (recorder.is_alive(row) or row in held)
    }


def inherit(recorder: Recorder, earlier: Recorder) -> None:
    """What an earlier step has made and somebody still holds is there before this one."""
    rows: dict[int, int] = {}
    for ref in list(earlier.watched.values()):
        storage = ref()
        if storage is None or type(ref) is FreshRef or ref.address in recorder.watched:
            continue
        _, category, birth, *_ = earlier.storages[ref.row]
        if birth is None:
            continue
        if ref.row not in rows:
            rows[ref.row] = recorder.add_storage(storage, category, None)
        else:
            recorder.watch(StorageRef(storage, recorder.forget), storage, rows[ref.row])
