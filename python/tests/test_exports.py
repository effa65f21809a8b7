"""What `rematic report` writes for other programs, read by Python's own readers."""

from __future__ import annotations

import csv
import json
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import rematic
from conftest import SMALL

NAMES = ["plain", 'a"b,c\r\n<script>alert(1)</script>\\ é', "=1+1", "line\nbreak,"]


def options() -> list[str]:
    return [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize("name", NAMES)
def test_both_files_have_the_peak_of_the_plan(
    name: str, command: str, native: Callable[..., dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    document = native("seed-transformer", *options())
    document["origin"]["model"] = name
    for module in document["modules"]:
        if module["name"] == "feed_forward":
            module["name"] = name
    document["names"] = [f"{name}.default" if op == "gelu.default" else op for op in document["names"]]
    step, page, trace, table = (tmp_path / file for file in ("step.rmt", "page.html", "trace.json", "table.csv"))
    step.write_text(json.dumps(document))
    plan = rematic.plan(rematic.Trace.load(step), int(0.8 * rematic.Trace.load(step).peak()), device="h100")
    words = [command, "report", str(step), "--budget", str(plan.budget), "-o", str(page)]
    said = subprocess.run([*words, "--chrome-trace", str(trace), "--csv", str(table)], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"{page}: ")
    assert said.stdout.endswith(
        f"\n{trace}: the step for Perfetto and chrome://tracing\n{table}: a row for every operator that runs\n"
    )

    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert max(int(row["total_bytes"]) for row in rows) == plan.peak
    assert sum(float(row["time_ms"]) for row in rows if row["again"] == "true") == pytest.approx(plan.recompute_ms)
    # What a spreadsheet would take for a formula is marked as text.
    mark = "'" if name.startswith("=") else ""
    assert f"{mark}{name}.default" in {row["op"] for row in rows}
    assert f"Transformer.layers.1.{name}.w1" in {row["module"] for row in rows}

    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    # What a viewer shows: of several samples of one moment the last, and only those that last.
    for name in ("memory", "memory in all"):
        samples = {event["ts"]: event["args"] for event in events if event["ph"] == "C" and event["name"] == name}
        assert list(samples) == sorted(samples)
        assert len(samples) == sum(event["ph"] == "C" and event["name"] == name for event in events)
        assert max(sum(args.values()) for args in list(samples.values())[:-1]) == plan.peak
    operators = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in operators] == [row["op"].removeprefix(mark) for row in rows]
    assert [event["args"].get("module", "") for event in operators] == [row["module"] for row in rows]
