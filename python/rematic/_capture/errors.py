"""What goes wrong in a capture, told with the module, the operator and the line."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import traceback
import types

import torch

from rematic._core import RematicError

_LIBRARIES = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.abspath(contextlib.__file__),
)


class CaptureError(RematicError):
    """A model cannot be captured. The message says where, why, and what to do."""


class UnknownValue(CaptureError):
    """A model looks at the value of a tensor that has none here."""

    def __init__(self, text: str, remedy: str = "", *, is_told_by_run: bool = False) -> None:
        super().__init__(f"{text}\n{remedy}" if remedy else text)
        self.text = text
        self.remedy = remedy
        # Whether a real run of the step would tell it.
        self.is_told_by_run = is_told_by_run

    def saying(self, text: str | None = None, remedy: str | None = None) -> UnknownValue:
        """The same in other words."""
        return UnknownValue(
            self.text if text is None else text,
            self.remedy if remedy is None else remedy,
            is_told_by_run=self.is_told_by_run,
        )


def current_line() -> str | None:
    """The innermost line outside torch and this package that runs now, as `file:line: code`."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES):
            return f"{name}:{frame.f_lineno}: {linecache.getline(name, frame.f_lineno).strip()}"
        frame = frame.f_back
    return None


def user_line(error: BaseException) -> str | None:
    """The innermost line outside torch and this package that led to the error, as `file:line: code`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not os.path.abspath(frame.filename).startswith(_LIBRARIES):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return None


def let_go_of_frames(error: BaseException | None) -> None:
    """Of an error that is not raised any more, and of those that led to it: frames hold tensors."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
