"""Plans the memory of deep-learning training.

Give it a step and a memory budget; without a GPU it says which activations to drop and recompute:

    >>> import rematic
    >>> trace = rematic.Trace.model("seed-transformer")
    >>> plan = rematic.plan(trace, "1.6GiB", device="h100")
    >>> print(plan)  # doctest: +SKIP

Sizes are numbers of bytes or texts like "38GiB". What cannot be used raises a `RematicError`, which is a `ValueError`.
"""

from rematic._benchmark import benchmark
from rematic._core import (
    CostTable,
    Curve,
    CurvePoint,
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
    __version__,
    curve,
    plan,
    replay,
    signatures,
)

__all__ = [
    "CostTable",
    "Curve",
    "CurvePoint",
    "Infeasible",
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
    "__version__",
    "benchmark",
    "curve",
    "plan",
    "replay",
    "signatures",
]
