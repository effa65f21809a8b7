"""Plans the memory of deep-learning training.

Give it a step and a memory budget; without a GPU it says which activations to drop and recompute:

    >>> import rematic
    >>> trace = rematic.Trace.model("seed-transformer")
    >>> plan = rematic.plan(trace, "1.6GiB", device="h100")
    >>> print(plan)  # doctest: +SKIP

With PyTorch, one line makes a model fit:

    >>> plan = rematic.auto(model, batch, budget="38GiB")  # doctest: +SKIP

Sizes are numbers of bytes or texts like "38GiB". What cannot be used raises a `RematicError`, which is a `ValueError`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rematic._apply.errors import AuditError, Mismatch
from rematic._benchmark import benchmark
from rematic._core import (
    CostTable,
    Curve,
    CurvePoint,
    Explanation,
    Fit,
    Infeasible,
    Module,
    Op,
    Plan,
    PlanError,
    Region,
    RematicError,
    RematicWarning,
    Replay,
    Signature,
    Trace,
    TraceError,
    Variant,
    __version__,
    curve,
    explain,
    plan,
    replay,
    report,
    signatures,
)
from rematic._fit import fit

if TYPE_CHECKING:
    from rematic._apply.wrapping import apply, remove
    from rematic._auto import auto
    from rematic._capture.errors import CaptureError, UnknownValue
    from rematic._capture.step import capture, capture_step
    from rematic._cluster import cluster
    from rematic._loss.function import chunked_loss
    from rematic._shard import shard

# What needs PyTorch is imported when it is first asked for.
_WITH_TORCH = {
    "apply": "rematic._apply.wrapping",
    "auto": "rematic._auto",
    "CaptureError": "rematic._capture.errors",
    "UnknownValue": "rematic._capture.errors",
    "capture": "rematic._capture.step",
    "capture_step": "rematic._capture.step",
    "chunked_loss": "rematic._loss.function",
    "cluster": "rematic._cluster",
    "remove": "rematic._apply.wrapping",
    "shard": "rematic._shard",
}

__all__ = [
    "AuditError",
    "CaptureError",
    "CostTable",
    "Curve",
    "CurvePoint",
    "Explanation",
    "Fit",
    "Infeasible",
    "Mismatch",
    "Module",
    "Op",
    "Plan",
    "PlanError",
    "Region",
    "RematicError",
    "RematicWarning",
    "Replay",
    "Signature",
    "Trace",
    "TraceError",
    "UnknownValue",
    "Variant",
    "__version__",
    "apply",
    "auto",
    "benchmark",
    "capture",
    "capture_step",
    "chunked_loss",
    "cluster",
    "curve",
    "explain",
    "fit",
    "plan",
    "remove",
    "replay",
    "report",
    "shard",
    "signatures",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_WITH_TORCH[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"rematic.{name} needs PyTorch; pip install torch", name="torch") from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """What there is, also what is not imported yet, and not what this file itself imports."""
    return sorted(__all__)
