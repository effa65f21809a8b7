"""What is in memory: PyTorch's own records of it, by the line that asked for it."""

import os
import tempfile

from rematic_rehearsal import report

# Records that are kept; a step has some thousands.
_RECORDS = 400_000
# Lines that are told.
_LINES = 12
_torch = None
_package = ""
_short = str


def begin(torch, short):
    """PyTorch records who allocates from now on. A script that records by itself goes on to do so."""
    global _torch, _package, _short
    _torch, _short = torch, short
    _package = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=_RECORDS)


def dump():
    """PyTorch's own snapshot, if one is asked for."""
    path = os.environ.get("REMATIC_REHEARSAL_SNAPSHOT")
    if not path or _torch is None:
        return
    try:
        _torch.cuda.memory._dump_snapshot(path)
        report.write(snapshot={"problem": None})
    except OSError as problem:
        report.write(snapshot={"problem": problem.strerror or str(problem)})


# Where this lies, and where Inductor writes the code that it generates: nobody's own lines.
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INDUCTORS = os.path.join(tempfile.gettempdir(), "torchinductor_")


def is_hidden(path):
    """Whether a line of this file says nothing to the user, who did not write it: their own line called it."""
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    places = (_HERE, _INDUCTORS, os.path.abspath(generated) + os.sep) if generated else (_HERE, _INDUCTORS)
    return path.startswith(places)


def _place(frames):
    """The innermost line that is not PyTorch's own, nor generated."""
    for frame in frames:
        file = frame["filename"]
        if not file.startswith((_package, "<")) and not is_hidden(file):
            return (_short(file), frame["line"], frame["name"])
    return None


def _grouped(blocks):
    """Pairs of bytes and place, as the largest lines and the rest."""
    sums = {}
    for size, place in blocks:
        entry = sums.setdefault(place, [0, 0])
        entry[0] += size
        entry[1] += 1
    # The largest first; of equal ones, by name.
    order = sorted(sums.items(), key=lambda item: (-item[1][0], str(item[0])))
    told = []
    for place, (size, count) in order[:_LINES]:
        file, line, function = place or (None, None, None)
        told.append({"file": file, "line": line, "function": function, "bytes": size, "blocks": count})
    rest = order[_LINES:]
    if rest:
        size, count = sum(entry[0] for _, entry in rest), sum(entry[1] for _, entry in rest)
        told.append({"file": "", "line": None, "function": None, "bytes": size, "blocks": count})
    return told


def there(device):
    """What is in memory now, by line."""
    snapshot = _torch.cuda.memory._snapshot()
    blocks = (
        (block["size"], _place(block.get("frames", ())))
        for segment in snapshot["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    return _grouped(blocks)


def at_peak(device):
    """What was in memory when most was, by line, from the records."""
    snapshot = _torch.cuda.memory._snapshot()
    traces = snapshot.get("device_traces", [])
    trace = traces[device] if device < len(traces) else []
    asked = [event for event in trace if event["action"] in ("alloc", "free_completed")]
    # Run backward from what is there now to what was there when the records begin.
    live = {
        block["address"]: (block.get("requested_size", block["size"]), _place(block.get("frames", ())))
        for segment in snapshot["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"].startswith("active")
    }
    for event in reversed(asked):
        if event["action"] == "alloc":
            live.pop(event["addr"], None)
        else:
            live[event["addr"]] = (event["size"], None)
    # And forward to the peak.
    highest = total = sum(size for size, _ in live.values())
    when = -1
    for index, event in enumerate(asked):
        total += event["size"] if event["action"] == "alloc" else -event["size"]
        if total > highest:
            highest, when = total, index
    for event in asked[: when + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = (event["size"], _place(event.get("frames", ())))
        else:
            live.pop(event["addr"], None)
    return _grouped(live.values())
