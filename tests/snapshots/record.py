"""Records one memory snapshot on the fake GPU, and what torch's own counters said at that moment.

    run record.py NAME DIR

writes DIR/NAME.pickle and DIR/NAME.json. Folders of this machine are replaced in the stacks; nothing else is.
"""
import json
import pickle
import sys
import sysconfig
from pathlib import Path

import torch
import train

HOME = [
    (str(Path(torch.__file__).parent.parent), "/home/user/venv/lib/python3/site-packages"),
    (sysconfig.get_path("stdlib"), "/usr/lib/python3"),
    (str(Path(__file__).parent), "/home/user/project"),
]


def begin(**options):
    torch.cuda.memory._record_memory_history(**({"stacks": "python"} | options))


def recorded_late():
    def before():
        begin()
        torch.cuda.reset_peak_memory_stats()

    train.train(steps=3, before=before)


def runs_out(run):
    def scenario():
        begin()
        run()

    return scenario


SCENARIOS = {
    "step": (lambda: (begin(), train.train())),
    "all-stacks": (lambda: (begin(stacks="all"), train.train(steps=1, batch=1, length=64))),
    "no-stacks": (lambda: (begin(context=None), train.train())),
    "expandable": (lambda: (begin(), train.train())),
    "divisions": (lambda: (begin(context=None), train.train(batch=7))),
    "streams": (lambda: (begin(), train.copies())),
    "pools": (lambda: (begin(), train.pools())),
    "two-gpus": (lambda: (begin(), train.two_devices())),
    "late": recorded_late,
    "truncated": (lambda: (begin(max_entries=1000), train.train(steps=3))),
    "runs-out": runs_out(lambda: train.train(batch=16)),
    "runs-out-truncated": (lambda: (begin(max_entries=150), train.train(steps=1, batch=16))),
    "runs-out-later": runs_out(lambda: train.train(batch=16)),
    "fragments": runs_out(train.fragments),
    "state": (lambda: (torch.cuda.memory._record_memory_history("state", stacks="python"), train.copies())),
}


def counters():
    stats = torch.cuda.memory_stats()
    names = {"allocated": "allocated_bytes", "active": "active_bytes", "reserved": "reserved_bytes", "requested": "requested_bytes"}
    answer = {f"{ours}_{when}": stats[f"{name}.all.{when}"] for ours, name in names.items() for when in ("peak", "current")}
    free, total = torch.cuda.mem_get_info()
    return answer | {"retries": stats["num_alloc_retries"], "ooms": stats["num_ooms"], "free": free, "total": total}


def moved(snapshot):
    """The snapshot without folders of this machine. Stacks that are shared stay shared."""
    texts = {}

    def text(name):
        if name not in texts:
            texts[name] = name
            for here, there in HOME:
                texts[name] = texts[name].replace(here, there)
            if texts[name].startswith("/root"):
                texts[name] = "/usr/lib/" + Path(name).name
        return texts[name]

    seen = set()
    holders = [entry for trace in snapshot["device_traces"] for entry in trace]
    holders += [block for segment in snapshot["segments"] for block in segment["blocks"]] + snapshot["segments"]
    for holder in holders:
        for frame in holder.get("frames", []):
            if id(frame) not in seen:
                seen.add(id(frame))
                frame["filename"] = text(frame["filename"])
    return snapshot


def main():
    name, place = sys.argv[1], Path(sys.argv[2])
    kept = []

    def observe(*_):
        # In the middle of the request that fails, as torch's documentation has it.
        if not kept and name != "runs-out-later":
            kept.extend([counters(), torch.cuda.memory._snapshot()])

    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(observe)
    result = message = None
    try:
        result = SCENARIOS[name]()
    except torch.OutOfMemoryError as error:
        message = str(error)
    if not kept:
        kept.extend([counters(), torch.cuda.memory._snapshot()])
    del result
    answer, snapshot = kept
    answer["message"] = message
    answer["entries"] = [len(trace) for trace in snapshot["device_traces"]]
    place.joinpath(f"{name}.json").write_text(json.dumps(answer, indent=1) + "\n")
    place.joinpath(f"{name}.pickle").write_bytes(pickle.dumps(moved(snapshot), protocol=5 if name == "step" else 4))
    for protocol in range(4) if name == "streams" else ():
        place.joinpath(f"{name}-{protocol}.pickle").write_bytes(pickle.dumps(snapshot, protocol=protocol))
    print(name, {key: value for key, value in answer.items() if key != "message"})


if __name__ == "__main__":
    main()
