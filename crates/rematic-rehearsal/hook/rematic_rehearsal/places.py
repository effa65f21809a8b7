"""Where the script is, in its own lines and modules, and what is in memory there."""

import os
import sys
import sysconfig
import threading
import traceback
import warnings
import weakref
from collections import deque

from rematic_rehearsal import report, steps, watching

_LIBRARIES = tuple({os.path.abspath(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")})
# Site packages lie inside of the standard library: the longer name is the better one.
_LIBRARIES = tuple(sorted(_LIBRARIES, key=len, reverse=True))
_STARTED = os.getcwd()
# Events of running out of memory that are kept whole.
_KEPT = 20
# Modules that were called from outside of any module: the models.
_models = []
# Sequence numbers of autograd before and after a module's forward, to find its backward again.
_calls = deque(maxlen=200_000)
_inside = threading.local()
_torch = None


def watch(torch):
    """Called after PyTorch is imported."""
    global _torch
    _torch = torch
    _watch_modules(torch)
    before = torch.cuda._lazy_init

    def initialized():
        first = not torch.cuda.is_initialized()
        before()
        if first and torch.cuda.is_initialized():
            _begin(torch)

    torch.cuda._lazy_init = initialized
    # PyTorch's C++ asks for it by name the first time that CUDA is used.


def _begin(torch):
    """CUDA is there: from now on memory is watched."""
    torch._C._cuda_attach_out_of_memory_observer(_ran_out)
    watching.begin(torch, short)


def _watch_modules(torch):
    number = torch._C._get_sequence_nr if hasattr(torch._C, "_get_sequence_nr") else torch.autograd._get_sequence_nr
    compiling = torch.compiler.is_compiling

    def entered(module, _inputs):
        if compiling():
            return
        stack = _inside.__dict__.setdefault("stack", [])
        if not stack and not any(known() is module for known in _models):
            _models.append(weakref.ref(module))
        stack.append((weakref.ref(module), number()))

    def left(module, _inputs, _output):
        if compiling():
            return
        stack = _inside.__dict__.setdefault("stack", [])
        while stack:
            entered, first = stack.pop()
            if entered() is module:
                _calls.append((first, number(), entered))
                return

    # `torch.compile` warns of hooks on all modules, which are these.
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    torch.nn.modules.module.register_module_forward_pre_hook(entered)
    torch.nn.modules.module.register_module_forward_hook(left, always_call=True)


def name_of(module):
    """A module's path in its model, or its class."""
    for known in _models:
        model = known()
        if model is None:
            continue
        for name, part in model.named_modules():
            if part is module:
                return f"{type(model).__name__}.{name}" if name else type(model).__name__
    return type(module).__name__


def _current_module():
    """The innermost module that is running, in forward or, by autograd's node, in backward."""
    node = _torch._C._current_autograd_node()
    stack = [entered() for entered, _ in _inside.__dict__.get("stack", ()) if entered() is not None]
    if stack:
        return name_of(stack[-1]), "backward" if node is not None else "forward"
    if node is None:
        return None, None
    try:
        number = node._sequence_nr()
    except (AttributeError, RuntimeError):
        return None, "backward"
    found = None
    for first, last, module in _calls:
        if first <= number < last and (found is None or last - first <= found[0]) and module() is not None:
            found = (last - first, module())
    return (name_of(found[1]) if found else None), "backward"


def is_own(file):
    """Whether a file is the user's, not a library's."""
    path = os.path.abspath(file)
    library = path.startswith(_LIBRARIES) or "site-packages" in path
    return not file.startswith("<") and not library and not watching.is_hidden(path)


def short(file):
    """A file's name as one would say it: in its library, or from where the script was started."""
    path = os.path.abspath(file)
    for place in (*_LIBRARIES, _STARTED):
        if path.startswith(place + os.sep):
            return os.path.relpath(path, place)
    return path


def _line(frames):
    """The innermost line of the user's own among frames from the outside in, else the innermost at all."""
    frames = [frame for frame in frames if not watching.is_hidden(os.path.abspath(frame.filename))]
    own = [frame for frame in frames if is_own(frame.filename)]
    chosen = own or frames
    if not chosen:
        return None
    frame = chosen[-1]
    return {"file": short(frame.filename), "line": frame.lineno, "function": frame.name, "text": frame.line or ""}


def of_traceback(trace):
    """The script's line of an error."""
    return _line(traceback.extract_tb(trace))


def here():
    """The script's line that is running. Backward runs on a thread of its own: then where the main one waits for it."""
    frames = traceback.extract_stack(sys._getframe(1))
    if not any(is_own(frame.filename) for frame in frames):
        main = sys._current_frames().get(threading.main_thread().ident)
        frames = traceback.extract_stack(main) if main is not None else frames
    return _line(frames)


def _ran_out(device, asked, total, free):
    """PyTorch is about to raise `OutOfMemoryError`."""
    try:
        module, phase = _current_module()
        events = report.said("out_of_memory", [])
        events.append({
            "line": here(), "module": module, "phase": phase, "steps": steps.done(), "device": device,
            "asked": asked, "total": total, "free": free,
            "allocated": _torch.cuda.memory_allocated(device), "reserved": _torch.cuda.memory_reserved(device),
            "there": watching.there(device),
        })
        watching.dump()
        report.write(out_of_memory=events[-_KEPT:], times_out_of_memory=report.said("times_out_of_memory", 0) + 1)
    except Exception as problem:  # The script's error is the one to see.
        print(f"rehearsal: cannot say where the memory went: {problem!r}", file=sys.stderr)


def finish():
    """The script is over."""
    if report.used():
        report.write(peak=watching.at_peak((report.said("memory") or {}).get("device", 0)))
        if not report.said("out_of_memory"):
            watching.dump()
