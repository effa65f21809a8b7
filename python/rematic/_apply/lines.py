"""The user's own line, for warnings."""

from __future__ import annotations

import contextlib
import os
import sys

import torch

_LIBRARIES = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.abspath(contextlib.__file__),
)


def outside() -> int:
    """The `stacklevel` with which the caller's warning points at the innermost line outside torch and this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_LIBRARIES):
        frame = frame.f_back
        level += 1
    return level
