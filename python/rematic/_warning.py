"""Warnings, at the line of whoever called the package."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

from rematic._core import RematicWarning

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(text: str) -> None:
    """Warns with a `RematicWarning` at the innermost line outside of the package and of torch, which may have called it."""
    torch = sys.modules.get("torch")
    others = [contextlib.__file__, *(torch.__path__ if torch is not None else ())]
    skipped = (_PACKAGE, *others)
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
        level += 1
    warnings.warn(text, RematicWarning, stacklevel=level)
