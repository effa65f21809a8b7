"""Warnings, at the line of whoever called the package."""

from __future__ import annotations

import os
import sys
import warnings

from rematic._core import RematicWarning

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(text: str) -> None:
    """Warns with a `RematicWarning` at the innermost line outside of the package."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(text, RematicWarning, stacklevel=level)
