"""Measured costs."""

from __future__ import annotations

from typing import Any

from rematic._core import CostTable, Trace

__all__ = ["benchmark"]


def benchmark(
    trace: Trace,
    device: Any = None,
    *,
    progress: bool = True,
    repeats: int = 20,
    seconds: float = 0.2,
    causal: bool = False,
) -> CostTable:
    """Runs each distinct operator of a step on a device, and notes the median of its times. Needs torch.

    `device` is "cpu", "cuda" or a torch.device; by default CUDA where there is a GPU and the step was not captured for the CPU. An
    operator runs `repeats` times after a warm-up, but not for longer than `seconds`. `causal` says whether attention
    without a mask is measured with the causal one. A bar on a terminal shows the progress, unless `progress` is False.

    A trace knows tensors, but no other arguments: those are found from the layouts of what an operator reads and returns.
    Operators for which that fails, that do not run on the device, or that do not fit its memory are left out, with a
    warning that names them; in plans, the physical rule covers them.
    """
    # Only this part of the package needs torch.
    from .run import run

    return run(trace, device, progress, repeats, seconds, causal)
