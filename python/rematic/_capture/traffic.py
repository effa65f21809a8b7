"""What the recorder knows of other ranks: streams, collectives, and storages whose bytes go and come back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rematic._model.collectives import UNKNOWN, answer, group_of, kind_of, message

from .errors import CaptureError
from .ground import Ground
from .streams import Streams
from .twins import Twins


class Traffic(Twins):
    """The part of the recorder that is of use if a model is spread over ranks."""

    events: list[dict[str, Any] | None]
    _closed: bool

    def __init__(self) -> None:
        super().__init__()
        # The mesh of the captured model, if it is spread over one.
        self.ground: Ground | None = None
        self.streams = Streams()
        # Of what communicates outside of a mesh, no more is known than that it does.
        self.collectives: list[list[Any]] = []
        # Rows of storages that exist before the step without their bytes; and those that are so now.
        self.released_before: set[int] = set()
        self._released: set[int] = set()
        # Whether what runs gathers or reduces, beside the model's own operators; and its phase, if autograd does not tell.
        self._is_aside = False
        self._phase_aside: str | None = None

    # ---- streams ----

    @contextlib.contextmanager
    def aside(self, phase: str | None) -> Iterator[None]:
        """While it is entered, operators belong to no call of a module."""
        before = (self._is_aside, self._phase_aside)
        self._is_aside, self._phase_aside = True, phase or self._phase_aside
        try:
            yield
        finally:
            self._is_aside, self._phase_aside = before

    def hear(self, streams: Streams) -> None:
        """Operators run on these streams."""
        self.streams = streams
        streams.heard = self._waits

    def _waits(self, stream: int, on: int) -> None:
        if not self._closed:
            self.events.append({"wait": [stream, on]})

    # ---- storages without bytes ----

    def add_gathered(self, tensor: Tensor) -> None:
        """Memory that a weight is gathered into; it may be released now."""
        storage = tensor.untyped_storage()
        row = self.storage_before_step(tensor, "parameter")
        if storage.nbytes() == 0:
            self.storages[row][0] = tensor.numel() * tensor.element_size()
            self.released_before.add(row)
            self._released.add(row)

    @contextlib.contextmanager
    def resizing(self) -> Iterator[None]:
        """While it is entered, storages that are resized to nothing and back are noted."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            self._resized(storage, size)
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            # It is inherited.
            del torch.UntypedStorage.resize_

    def _resized(self, storage: torch.UntypedStorage, size: int) -> None:
        ref = self.watched.get(storage._cdata)
        if ref is None or self._closed or size == storage.nbytes():
            return
        row = ref.row
        if size == 0:
            self._released.add(row)
            self.events.append({"release": row})
        elif row in self._released:
            if size != self.storages[row][0]:
                raise CaptureError(
                    f"A storage of {self.storages[row][0]:,} bytes was resized to nothing, and then to {size:,} bytes; only one "
                    "that comes back as it was can be followed"
                )
            self._released.discard(row)
            self.events.append({"restore": row})

    # ---- collectives ----

    def answered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a collective in place gives, without other ranks."""
        return answer(func, args, kwargs)

    def collective(self, func: Any, args: Any, kwargs: Any, out: Any) -> int:
        """The row of the way in which an operator communicates."""
        row = self._way(func, args, kwargs, out)
        if row not in self.collectives:
            self.collectives.append(row)
        return self.collectives.index(row)

    def _way(self, func: Any, args: Any, kwargs: Any, out: Any) -> list[Any]:
        kind = kind_of(func)
        group = None if kind is None or self.ground is None else group_of(func, args, kwargs)
        along = None if group is None or self.ground is None else self.ground.along(group)
        if kind is None or along is None:
            return UNKNOWN
        return [kind, *along, message(kind, func, args, out)]
