"""How long a call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

# Seconds that a series of calls lasts at least: shorter ones drown in what a clock itself takes.
SHORTEST_SERIES = 0.5e-3
LONGEST_SERIES = 1000

Clock = Callable[[Callable[[], Any], int], float]


def clock_of(device: torch.device) -> Clock:
    """What times a series of calls on a device, in seconds."""

    def on_host(run: Callable[[], Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            run()
        return time.perf_counter() - start

    def on_gpu(run: Callable[[], Any], count: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            start.record()
            for _ in range(count):
                run()
            end.record()
            torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    return on_gpu if device.type == "cuda" else on_host


def measure(run: Callable[[], Any], clock: Clock, repeats: int, seconds: float) -> float:
    """The median time of a call in milliseconds. The first call has been made, and was not measured."""
    once = clock(run, 1)
    count = min(max(round(SHORTEST_SERIES / max(once, 1e-9)), 1), LONGEST_SERIES)
    samples: list[float] = []
    spent = 0.0
    while len(samples) < repeats and (not samples or spent < seconds):
        series = clock(run, count)
        spent += series
        samples.append(series / count)
    return statistics.median(samples) * 1e3
