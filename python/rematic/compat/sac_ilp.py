"""Drop-in for `torch.distributed._tools.sac_ilp`: torch's planners.

The answers are optimal, where torch stops at a gap of 5 % or after a time, and come in milliseconds. Torch itself is not
needed: a graph is any object like its `Graph`, and statistics are any object like its `SACStats`.
"""

import logging
from enum import IntEnum
from typing import Any, Protocol

from rematic import _core

__all__ = ["SACDecision", "get_optimal_checkpointing_policy_per_module", "sac_milp"]

logger = logging.getLogger(__name__)


class _Graph(Protocol):
    nodes: list[Any]
    ad_matrix: Any


class _SACStats(Protocol):
    func_names: list[str]
    runtimes: list[float]
    memory: list[int]
    view_like_ops: list[int]
    rand_ops: list[int]
    saved_autograd_ops: list[int]
    inplace_ops: list[tuple[int, int]]
    force_store_random: bool


class SACDecision(IntEnum):
    """What is done with an operator's output."""

    RECOMPUTE = 0
    SAVE = 1


def sac_milp(
    graph: _Graph,
    memory_budget: float,
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
) -> tuple[dict[str, float], float, int]:
    """Chooses the modules to checkpoint, and how much of its memory each discards.

    The budget is in GiB. Returns the discarded share for each chosen module, the time of recomputation in milliseconds
    and the peak in bytes; `({}, 0, -1)` if the budget cannot be met. The graph is not changed.
    """
    names = {node["fqn"] for node in graph.nodes}
    for unit in [*(ac_units or []), *(fsdp_units or [])]:
        if unit not in names:
            logger.warning("no module of the graph is called %s", unit)
    matrix = graph.ad_matrix.tolist() if hasattr(graph.ad_matrix, "tolist") else graph.ad_matrix
    inside = [[inner for inner, is_inside in enumerate(row) if is_inside] for row in matrix]
    answer = _core.sac_milp(graph.nodes, inside, memory_budget, world_size, ac_units or [], fsdp_units or [])
    if answer is None:
        logger.error("no choice of modules meets a budget of %s GiB", memory_budget)
        return {}, 0, -1
    decisions, recompute_ms, peak = answer
    return {fqn: round(discard, 4) for fqn, discard in decisions}, round(recompute_ms, 2), peak


def get_optimal_checkpointing_policy_per_module(sac_stats: _SACStats, memory_budget: float) -> list[int]:
    """Decides for each operator of a module whether its output is saved (1) or recomputed (0).

    The budget is the share of the memory of all outputs that may be saved, from 0 to 1. Returns an empty list if what must
    be saved does not fit.
    """
    policy = _core.optimal_policy(sac_stats, memory_budget)
    if policy is None:
        logger.error("what must be saved does not fit %s of the module's memory", memory_budget)
        return []
    return policy
