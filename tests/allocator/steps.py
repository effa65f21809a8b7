"""Real training steps on the fake GPU, as requests, and what torch's allocator does with them.

    run steps.py OUT CAPACITY SETTINGS -- seed
    run steps.py OUT CAPACITY SETTINGS -- hf --config gpt2.json --batch 4 --seq 512

The arguments after `--` are those of `step.py` beside the fake GPU (`FAKEGPU_STEP` says where), which trains three
steps. The history of its allocator from the first request on is turned into requests; a second process sends them to
the allocator again, one by one, and must see the same history. What it sees is the recording.
"""
import functools
import itertools
import json
import os
import runpy
import sys

import recording
import torch


def train(arguments):
    """The history of the allocator from the start of the process on, with the places where the cache was emptied."""
    empty, emptied = torch.cuda.empty_cache, []
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=10**7, context=None)
    # The script begins its own recording with the third step, which would clear this one.
    torch.cuda.memory._record_memory_history = lambda *_, **__: None

    def empty_cache():
        emptied.append(len(recording.history()))
        empty()

    torch.cuda.empty_cache = empty_cache
    if "--plan" in arguments:
        import rematic

        # Nothing is computed on the fake GPU, so there are no numbers to compare.
        rematic.apply = functools.partial(rematic.apply, audit=0)
    sys.argv = ["step.py", *arguments]
    try:
        runpy.run_path(os.environ["FAKEGPU_STEP"], run_name="__main__")
    except torch.OutOfMemoryError as error:
        print("out of memory:", str(error).split(". ")[1])
    return recording.history(), emptied


def requests(entries, emptied):
    """The calls that lead to a history. A block that is not free at once was used on another stream."""
    streams = {stream: number for number, stream in enumerate(sorted({entry["stream"] for entry in entries}))}
    calls, blocks, asked = [], {}, 0
    for at, entry in enumerate(entries):
        calls += [("e",)] * emptied.count(at)
        stream = streams[entry["stream"]]
        if entry["action"] in ("alloc", "oom"):
            calls.append(("a", entry["size"], stream))
            if entry["action"] == "alloc":
                blocks[entry["addr"]] = asked
            asked += 1
        elif entry["action"] == "free_requested":
            block = blocks.pop(entry["addr"])
            following = entries[at + 1] if at + 1 < len(entries) else None
            if following is None or following["action"] != "free_completed" or following["addr"] != entry["addr"]:
                calls.append(("r", block, (stream + 1) % 5))
            calls.append(("f", block))
    return calls


def outline(entries):
    """A history without what differs between processes: addresses count from the first, streams are numbered."""
    base = next((entry["addr"] for entry in entries if entry["action"] in recording.GROWS), 0)
    streams = {stream: number for number, stream in enumerate(sorted({entry["stream"] for entry in entries}))}
    return [
        (entry["action"], entry["size"], streams[entry["stream"]], entry.get("addr", base) - base) for entry in entries
    ]


def in_child(function):
    """What a function returns in a process of its own, which uses the device for the first time."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            json.dump(function(), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text)


def main():
    out, total, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    arguments = sys.argv[sys.argv.index("--") + 1:]
    os.environ["FAKEGPU_BYTES"] = str(total)

    def run():
        torch._C._accelerator_setAllocatorSettings(settings)
        entries, emptied = train(arguments)
        return requests(entries, emptied), outline(entries)

    calls, trained = in_child(run)

    def send():
        text, entries = recording.record(settings, total, lambda _: map(tuple, calls))
        return text, outline(entries)

    text, again = in_child(send)
    for number, (here, there) in enumerate(itertools.zip_longest(again, trained)):
        assert here == there, f"event {number} is {there} in training and {here} when its requests are sent again"
    with open(out, "w") as file:
        file.write(text)
    print(f"{out}: {len(calls)} calls, {len(trained)} events")


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert not torch.cuda.is_initialized()
    main()
