"""Drop-in replacements for `torch.distributed._tools`: its modules under the same names, with the same public names.

A script changes its imports: `from rematic.compat.mem_tracker import MemTracker`. Arguments, results, tables and units are
torch's, and so are the answers, also where torch is wrong; docs/compat.md lists where. What torch's package has at its top is
here too, and so are the planners, which need no torch: a graph is any object like torch's `Graph`, and statistics are any
object like its `SACStats`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rematic.compat.sac_ilp import SACDecision, get_optimal_checkpointing_policy_per_module, sac_milp

if TYPE_CHECKING:
    from rematic.compat.fsdp2_mem_tracker import FSDPMemTracker
    from rematic.compat.mem_tracker import MemTracker
    from rematic.compat.mod_tracker import ModTracker
    from rematic.compat.runtime_estimator import RuntimeEstimator
    from rematic.compat.sac_estimator import MSPS, SACEstimator, SACGreedyOrderMeta, SACStats, SACTradeOffStats

# What needs PyTorch is imported when it is first asked for.
_WITH_TORCH = {
    "FSDPMemTracker": "fsdp2_mem_tracker",
    "MSPS": "sac_estimator",
    "MemTracker": "mem_tracker",
    "ModTracker": "mod_tracker",
    "RuntimeEstimator": "runtime_estimator",
    "SACEstimator": "sac_estimator",
    "SACGreedyOrderMeta": "sac_estimator",
    "SACStats": "sac_estimator",
    "SACTradeOffStats": "sac_estimator",
}

__all__ = [
    "MSPS",
    "FSDPMemTracker",
    "MemTracker",
    "ModTracker",
    "RuntimeEstimator",
    "SACDecision",
    "SACEstimator",
    "SACGreedyOrderMeta",
    "SACStats",
    "SACTradeOffStats",
    "get_optimal_checkpointing_policy_per_module",
    "sac_milp",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"rematic.compat.{_WITH_TORCH[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"rematic.compat.{name} needs PyTorch; pip install torch", name="torch") from error
    value = globals()[name] = getattr(module, name)
    return value
