"""Reads of values that nobody computed: how many, and in which lines of the script."""

import ctypes
import os

from rematic_rehearsal import places, report

# Reads whose line is looked up, and lines that are told.
_LOOKED_UP = 2000
_LINES = 10
_lines = {}
_left = _LOOKED_UP
# What C calls must not be collected.
_listener = None
_runtime = None


def runtime():
    """The runtime's own functions."""
    global _runtime
    if _runtime is None:
        _runtime = ctypes.CDLL(os.environ["REMATIC_REHEARSAL_RUNTIME"])
        for name in ("rematic_unknown_reads", "rematic_known_reads"):
            getattr(_runtime, name).restype = ctypes.c_uint64
        _runtime.rematic_peek.restype = ctypes.c_bool
    return _runtime


def check():
    """Ends the script if the runtime is not there: nothing would be known of a GPU."""
    if hasattr(ctypes.CDLL(None), "rematic_listen"):
        return
    path = os.environ["REMATIC_REHEARSAL_RUNTIME"]
    try:
        ctypes.CDLL(path)
        reason = "LD_PRELOAD was changed on the way to Python"
    except OSError as problem:
        reason = str(problem)
    report.write(unloaded=reason)
    raise SystemExit("rehearsal: the runtime was not loaded")


def watch():
    """Called after PyTorch is imported."""
    global _listener
    _listener = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(_read)
    runtime().rematic_listen(_listener)


def _read(size):
    global _left
    if _left <= 0:
        return
    _left -= 1
    line = places.here()
    if line is not None:
        key = (line["file"], line["line"])
        entry = _lines.setdefault(key, {**line, "reads": 0, "bytes": 0})
        entry["reads"] += 1
        entry["bytes"] += size


def finish():
    """The script is over."""
    global _left
    _left = 0
    if _listener is None:
        return
    runtime().rematic_listen(None)
    lines = sorted(_lines.values(), key=lambda entry: (-entry["reads"], entry["file"], entry["line"]))
    counts = {"unknown": runtime().rematic_unknown_reads(), "known": runtime().rematic_known_reads()}
    report.write(reads={**counts, "lines": lines[:_LINES]})
