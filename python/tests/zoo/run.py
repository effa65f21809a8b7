"""Runs the zoo, each model in a process of its own, and prints a table: `python -m zoo.run [NAME…]`."""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from . import from_diffusers, from_timm, from_torchvision, from_transformers
from .check import COLUMNS, Check
from .entry import Entry

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for library in (from_transformers, from_torchvision, from_timm, from_diffusers)
    for entry in library.ENTRIES
}
MOST_MEMORY = 8 << 30
# A process that gets no more than this share of a processor is given up.
MOST_WAITING = 20
Row = dict[str, Any]


def child(entry: Entry, timeout: float, pipe: Any) -> None:
    """Sends a verdict as soon as it is there, so that what comes later cannot take it away."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(timeout), int(timeout) + 5))
    # Libraries and the profiler write to these, past Python.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        for column, verdict in Check(entry).verdicts():
            pipe.send((column, verdict.passed, verdict.note))
    except Exception as error:
        pipe.send(("build", False, f"{type(error).__name__}: {error}"))


def row(entry: Entry, timeout: float) -> Row:
    """What a process of its own finds out about one model."""
    start = time.monotonic()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(entry, timeout, sender))
    process.start()
    sender.close()
    found: dict[str, tuple[bool, str]] = {}
    end = f"takes more than {MOST_WAITING * timeout:.0f} s"
    try:
        while receiver.poll(max(0.0, start + MOST_WAITING * timeout - time.monotonic())):
            column, passed, note = receiver.recv()
            found[column] = (passed, note)
    except EOFError:
        process.join()
        too_long = process.exitcode == -signal.SIGXCPU
        end = f"takes more than {timeout:.0f} s of the processor" if too_long else f"ended with {process.exitcode}"
    process.kill()
    process.join()
    if "build" in found:
        end = f"cannot be built: {found['build'][1]}"
    columns = {column: outcome(entry.exceptions, column, *found.get(column, (False, end))) for column in COLUMNS}
    return {"name": entry.name, "columns": columns}


def outcome(exceptions: Mapping[str, str], column: str, passed: bool, note: str) -> dict[str, str]:
    """One cell of the table: whether it is as the list says."""
    reason = exceptions.get(column)
    if reason is None:
        return {"outcome": "ok" if passed else "fails", "note": note}
    if passed:
        return {"outcome": "passes", "note": f"known as an exception ({reason}), and passes: take it off the list"}
    return {"outcome": "known", "note": reason, "found": note}


def table(rows: list[Row]) -> str:
    """The rows and a summary per column, and below them what did not pass."""
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'':{width}}  " + "  ".join(f"{column:>10}" for column in COLUMNS)]
    for row in rows:
        cells = [row["columns"][column]["outcome"] for column in COLUMNS]
        lines.append(f"{row['name']:{width}}  " + "  ".join(f"{cell:>10}" for cell in cells))
    lines.append(f"{'passed':{width}}  " + "  ".join(f"{text:>10}" for text in summary(rows).values()))
    notes = [
        f"{row['name']}, {column}, {cell['outcome']}: {cell['note']}"
        for row in rows
        for column, cell in row["columns"].items()
        if cell["outcome"] != "ok"
    ]
    return "\n".join([*lines, "", *notes])


def summary(rows: list[Row]) -> dict[str, str]:
    def passed(column: str) -> int:
        return sum(row["columns"][column]["outcome"] in ("ok", "passes") for row in rows)

    return {column: f"{passed(column)}/{len(rows)}" for column in COLUMNS}


def document(rows: list[Row]) -> str:
    columns = {column: {"meaning": COLUMNS[column], "passed": text} for column, text in summary(rows).items()}
    return json.dumps({"columns": columns, "models": rows}, indent=1) + "\n"


def chosen(patterns: list[str]) -> list[Entry]:
    for pattern in patterns:
        if not fnmatch.filter(ENTRIES, pattern):
            sys.exit(f"no model of the zoo is called `{pattern}`; --list shows their names")
    names = [name for name in ENTRIES if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    return [ENTRIES[name] for name in sorted(names)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/zoo", description="Compares promises with real steps, model by model.")
    parser.add_argument("names", nargs="*", help="names or patterns like 'timm/*'; all without")
    parser.add_argument("--list", action="store_true", help="only lists the names")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of the processor that a model may take")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the table as JSON")
    options = parser.parse_args()
    entries = chosen(options.names)
    if options.list:
        print("\n".join(entry.name for entry in entries))
        return 0
    torch.set_num_threads(1)
    # What is here already is of no concern to the collectors of the processes to come.
    gc.freeze()
    rows: list[Row] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for made in pool.map(lambda entry: row(entry, options.timeout), entries):
            rows.append(made)
            failing = [column for column, cell in made["columns"].items() if cell["outcome"] in ("fails", "passes")]
            print(f"{made['name']}: {', '.join(failing) or 'as expected'}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(document(rows))
    print(table(rows))
    unexpected = [cell for row in rows for cell in row["columns"].values() if cell["outcome"] in ("fails", "passes")]
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
