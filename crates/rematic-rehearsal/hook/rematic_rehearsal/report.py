"""What is told to the command that rehearses: one JSON file per process, written anew whenever there is more to say."""

import json
import os
import sys

_torch = None
_said = {}


def begin(torch):
    """PyTorch is there."""
    global _torch
    _torch = torch
    _keep_peaks(torch)
    write(torch=str(torch.__version__), cuda=torch.version.cuda)


def said(name, otherwise=None):
    """What was written under a name."""
    return _said.get(name, otherwise)


def used():
    """Whether the script has used CUDA."""
    return _torch is not None and _torch.cuda.is_initialized()


def write(**more):
    """Writes all that is known, and `more`, in a way that never leaves half a file."""
    _said.update(more)
    _said["program"] = sys.argv[:1] or [""]
    if used():
        _said["memory"] = _memory()
    directory = os.environ["REMATIC_REHEARSAL_REPORTS"]
    path = os.path.join(directory, f"{os.getpid()}.json")
    try:
        with open(path + ".new", "w") as file:
            json.dump(_said, file)
        os.replace(path + ".new", path)
    except OSError as problem:
        print(f"rehearsal: cannot write {path}: {problem}", file=sys.stderr)


# The highest counters of each device. A script may reset PyTorch's own.
_peaks = {}
_PEAKS = {"requested": "requested_bytes.all.peak", "allocated": "allocated_bytes.all.peak",
          "active": "active_bytes.all.peak", "reserved": "reserved_bytes.all.peak"}


def _keep_peaks(torch):
    """Looks at the peaks before a script resets them."""
    reset = torch._C._cuda_resetPeakMemoryStats
    reset_all = torch._C._cuda_resetAccumulatedMemoryStats

    def peaks_reset(device):
        _look(device)
        return reset(device)

    def accumulated_reset(device):
        kept = _look(device)
        result = reset_all(device)
        kept["retries before"] = kept["retries"]
        return result

    torch._C._cuda_resetPeakMemoryStats = peaks_reset
    torch._C._cuda_resetAccumulatedMemoryStats = accumulated_reset


def _look(device):
    """Keeps the highest that a device has had."""
    stats = _torch.cuda.memory_stats(device)
    kept = _peaks.setdefault(device, dict.fromkeys(_PEAKS, 0) | {"retries": 0, "retries before": 0})
    for name, key in _PEAKS.items():
        kept[name] = max(kept[name], stats.get(key, 0))
    # A request that fails has been tried again too: what is meant are those that a second attempt helped.
    helped = max(stats.get("num_alloc_retries", 0) - stats.get("num_ooms", 0), 0)
    kept["retries"] = kept["retries before"] + helped
    return kept


def _memory():
    """The counters of the device that reserved most."""
    best = None
    for device in range(_torch.cuda.device_count()):
        kept = _look(device)
        if best is None or kept["reserved"] > best["reserved"]:
            best = {name: kept[name] for name in (*_PEAKS, "retries")} | {"device": device}
    return best
