"""A bar on a terminal."""

from __future__ import annotations

import sys
from typing import Any

WIDTH = 30
NAME_WIDTH = 40


class Progress:
    """How far something is, on standard error; nothing where that is no terminal."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._shown = shown and sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def show(self, done: int, name: str) -> None:
        """Shows how many are done, and what comes now."""
        if self._shown:
            filled = WIDTH * done // max(self._total, 1)
            bar = "#" * filled + "-" * (WIDTH - filled)
            line = f"\r{bar} {done} of {self._total} operators, {name[:NAME_WIDTH]:{NAME_WIDTH}}"
            print(line, end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: Any) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
