"""Who wrote a storage last: for steps that torch refuses in backward, where it does not look if hooks save."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .errors import CaptureError, current_line
from .operators import FORWARD
from .references import Saved

if TYPE_CHECKING:
    from .recorder import Recorder


class Writers:
    """The last writes of a step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # The full names of the modules.
        self.paths: list[str] = []
        self._last: dict[int, tuple[int, str | None]] = {}

    def note(self, rows: Iterable[int]) -> None:
        """The operator that is recorded next has written these storages."""
        line = current_line() if self._recorder.phase() is FORWARD else None
        for row in rows:
            self._last[row] = (len(self._recorder.ops), line)

    def check(self, saved: Saved) -> None:
        """Refuses a saved tensor that was written since."""
        if not saved.writes_since:
            return
        dtype, shape, _ = saved.layout
        by = ""
        if saved.row in self._last:
            op, line = self._last[saved.row]
            by = f": {self._text(op)} has written it since" + (f"\n  at {line}" if line else "")
        reader = self._text(saved.op) if saved.op >= 0 else "an operator"
        raise CaptureError(
            f"Backward needs a {str(dtype).removeprefix('torch.')} tensor of shape {tuple(shape)} as it was when {reader} "
            f"saved it, but it was changed in place{by}\nTorch refuses this step too (\"modified by an inplace operation\"): "
            "write to a copy, or do without the in-place operation."
        )

    def _text(self, op: int) -> str:
        row = self._recorder.ops[op]
        name = f"`{self._recorder.names[row['name']]}`"
        if "call" not in row or not self.paths:
            return name
        return f"{name} in module `{self.paths[self._recorder.calls[row['call']]['module']]}`"
