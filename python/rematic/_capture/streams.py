"""Streams of a device that is not there. What asks for them runs as on CUDA, and says so which stream runs what."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias


class Stream:
    """A queue of kernels."""

    def __init__(self, streams: Streams, number: int) -> None:
        self._streams = streams
        self.number = number
        # What torch asks a stream for.
        self.stream_id = number
        self.device_index = 0
        self.device_type = 0

    def wait_stream(self, other: Stream) -> None:
        """What is queued from now on begins after all that was queued on the other so far."""
        self._streams.noted(self.number, other.number)

    def wait_event(self, event: Event) -> None:
        """The same for the stream that the event was recorded on."""
        if event.stream is not None:
            self.wait_stream(event.stream)

    def record_event(self, event: Event | None = None) -> Event:
        """An event behind all that was queued so far."""
        made = Event(self._streams) if event is None else event
        made.stream = self
        return made

    def synchronize(self) -> None:
        """The host waits, which takes no memory."""

    def query(self) -> bool:
        """Whether all that was queued has run."""
        return True


class Event:
    """A place in a stream."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        """It stands behind all that was queued so far."""
        self.stream = self._streams.current_stream() if stream is None else stream

    def wait(self, stream: Stream | None = None) -> None:
        """The stream waits for it."""
        (self._streams.current_stream() if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        """The host waits, which takes no memory."""

    def query(self) -> bool:
        """Whether it has happened."""
        return True


# The names are methods' below.
_Stream: TypeAlias = Stream
_Event: TypeAlias = Event


class Streams:
    """The streams of one device, as `torch.cuda` has them. The first is the compute stream."""

    def __init__(self) -> None:
        self.all = [_Stream(self, 0)]
        self._current = self.all[0]
        # What hears of a stream that waits for another.
        self.heard: Callable[[int, int], None] | None = None

    @property
    def current(self) -> int:
        """The number of the stream on which operators run."""
        return self._current.number

    def noted(self, stream: int, on: int) -> None:
        """A stream waits for another."""
        if self.heard is not None and stream != on:
            self.heard(stream, on)

    # ---- what torch asks a device's module for ----

    def Stream(self, *_: Any, **__: Any) -> _Stream:
        """A new one."""
        self.all.append(_Stream(self, len(self.all)))
        return self.all[-1]

    def Event(self, *_: Any, **__: Any) -> _Event:
        """A new one."""
        return _Event(self)

    def current_stream(self, *_: Any) -> _Stream:
        """The one on which operators run."""
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """While it is entered, operators run on this one."""
        outer, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = outer

    def current_device(self) -> int:
        """There is one."""
        return 0


def with_streams(ops: list[dict[str, Any]], events: list[dict[str, Any]], names: dict[int, str]) -> list[str]:
    """Numbers the streams on which operators run anew, and leaves out what waits for or on others. Gives their names."""
    used = sorted({0} | {op["stream"] for op in ops if "stream" in op})
    numbers = {number: new for new, number in enumerate(used)}
    for op in ops:
        if "stream" in op:
            op["stream"] = numbers[op["stream"]]
    for event in events:
        if "wait" in event:
            stream, on = event["wait"]
            if stream in numbers and on in numbers:
                event["wait"] = [numbers[stream], numbers[on]]
            else:
                event.clear()
    return ["compute", *(names.get(number, f"stream {number}") for number in used[1:])]
