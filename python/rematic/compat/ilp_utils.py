"""Drop-in for `torch.distributed._tools.ilp_utils`: the tree of modules that `sac_milp` plans with."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypedDict, cast

from rematic.compat._snapshots import _MemRefType, _ModState

if TYPE_CHECKING:
    import torch

    from rematic.compat.mem_tracker import MemTracker
    from rematic.compat.runtime_estimator import RuntimeEstimator
    from rematic.compat.sac_estimator import SACEstimator


class ModOrder(TypedDict):
    """The modules in the order in which their forwards and backwards begin and end."""

    fw_pre_order: list[str]
    bw_pre_order: list[str]
    fw_post_order: list[str]
    bw_post_order: list[str]


class ModRuntime(TypedDict):
    """A module's time in milliseconds."""

    fw: float
    bw: float


class ModStats(TypedDict):
    """A module's memory in bytes, its time in milliseconds, and what checkpointing it would free and cost."""

    fqn: str
    param_per_module: int
    grad_per_module: int
    grad_total: int
    act_fw_per_module: int
    act_bw_per_module: int
    act_grad_per_module: int
    act_total: int
    input_per_module: int
    output_per_module: int
    fw_runtime_per_module: float
    bw_runtime_per_module: float
    is_leaf: bool
    sac_runtime: float
    sac_memory: int
    n_segments: int
    slopes: list[float]
    intercepts: list[float]
    breakpoints: list[float]
    tradeoff_curve: OrderedDict[float, float]


class ModuleInfo(TypedDict):
    """All that is known of a model's modules."""

    mod_order: ModOrder
    mod_stats: list[ModStats]


def aggregate_stats(
    model: torch.nn.Module,
    mem_tracker: MemTracker,
    runtime_estimator: RuntimeEstimator,
    sac_estimator: SACEstimator,
    dev: torch.device,
) -> ModuleInfo:
    """Joins what the three say of a model that ran on a device."""
    sac_estimator.pwlf_sac_tradeoff_curve()
    runtimes = runtime_estimator.mod_runtimes
    order: ModOrder = {
        "fw_pre_order": list(runtime_estimator.mod_fw_pre_order),
        "bw_pre_order": list(runtime_estimator.mod_bw_pre_order),
        "fw_post_order": list(runtime_estimator.mod_fw_post_order),
        "bw_post_order": list(runtime_estimator.mod_bw_post_order),
    }
    info: ModuleInfo = {"mod_order": order, "mod_stats": []}
    for module in model.modules():
        memory = mem_tracker.memory_tracking.get(module)
        if memory is not None:
            fqn = memory.mod_fqn
            info["mod_stats"].append(
                cast(
                    ModStats,
                    {
                        "fqn": fqn,
                        **_memory(memory, dev),
                        "fw_runtime_per_module": runtimes[fqn]["fw"],
                        "bw_runtime_per_module": runtimes[fqn]["bw"],
                        **_tradeoff(sac_estimator.sac_mod_tradeoff_stats.get(fqn)),
                    },
                )
            )
    return info


def _memory(stats: Any, dev: torch.device) -> dict[str, int]:
    snapshots = stats.snapshots
    at = lambda state, kind: snapshots[state][-1][dev][kind]
    activations = lambda state: at(state, _MemRefType.ACT)
    temporary = lambda state: at(state, _MemRefType.TEMP)
    kept = activations(_ModState.POST_FW) - activations(_ModState.PRE_FW) - stats.output_mem
    return {
        "param_per_module": stats.parameter_mem,
        "grad_per_module": stats.parameter_mem,
        "grad_total": at(_ModState.PRE_BW, _MemRefType.GRAD),
        "act_fw_per_module": max(0, kept),
        "act_bw_per_module": max(0, activations(_ModState.PEAK_BW)),
        "act_grad_per_module": temporary(_ModState.PEAK_BW) - temporary(_ModState.PRE_BW),
        "act_total": activations(_ModState.POST_FW),
        "input_per_module": stats.input_mem,
        "output_per_module": stats.output_mem,
    }


def _tradeoff(stats: Any) -> dict[str, Any]:
    """A module without children has none."""
    return {
        "is_leaf": stats is None,
        "sac_runtime": stats.sac_runtime if stats else 0,
        "sac_memory": stats.sac_memory if stats else 0,
        "n_segments": stats.n_segments if stats else 0,
        "slopes": list(stats.slopes) if stats else [],
        "intercepts": list(stats.intercepts) if stats else [],
        "breakpoints": list(stats.fit_breaks) if stats else [],
        "tradeoff_curve": OrderedDict(stats.tradeoff_curve) if stats else OrderedDict(),
    }


class Node(ModStats):
    """A module in the tree: its place, and its place in the order in which forwards end."""

    index: int
    pos_fw_post_order: int


class Graph:
    """The tree of modules; `ad_matrix[i][j]` is 1 if module `j` is module `i` or lies inside it."""

    def __init__(self, n: int) -> None:
        import numpy as np

        self.nodes: list[Node] = []
        self.name2node: dict[str, Node] = {}
        self.ad_matrix = np.zeros((n, n))
        self.fw_post_order: list[str] = []

    def add_node(self, node: Node) -> None:
        """Adds a module."""
        self.nodes.append(node)
        self.name2node[node["fqn"]] = node


def parse_module_info(module_info: ModuleInfo) -> Graph:
    """Makes the tree of modules.

    As torch does, it sorts the modules of `module_info` by the order in which forwards begin, and makes the tree of them as
    they were before.
    """
    stats = module_info["mod_stats"]
    began = module_info["mod_order"]["fw_pre_order"]
    if len(stats) != len(began):
        raise AssertionError(
            f"{len(stats)} modules have memory and {len(began)} forwards ran; they must be of one step in which every module "
            "runs once"
        )
    place: dict[str, int] = {}
    for number, name in enumerate(began):
        place.setdefault(name, number)
    graph = Graph(len(stats))
    graph.fw_post_order = module_info["mod_order"]["fw_post_order"]
    module_info["mod_stats"] = sorted(stats, key=lambda one: place[one["fqn"]])
    ended: dict[str, int] = {}
    for number, name in enumerate(graph.fw_post_order):
        ended.setdefault(name, number)
    for index, one in enumerate(stats):
        node = cast(Node, one)
        node["index"] = index
        node["pos_fw_post_order"] = ended[node["fqn"]]
        graph.add_node(node)
    for outer, ancestor in enumerate(graph.nodes):
        for inner in range(outer, len(graph.nodes)):
            if not is_self_or_submodule(graph.nodes[inner]["fqn"], ancestor["fqn"]):
                break
            graph.ad_matrix[outer][inner] = 1
    return graph


def is_self_or_submodule(name_descendant: str, name_ancestor: str) -> bool:
    """Whether a module is another, or lies inside it."""
    return name_descendant == name_ancestor or is_submodule(name_descendant, name_ancestor)


def is_submodule(name_descendant: str, name_ancestor: str) -> bool:
    """Whether a module lies inside another: its name has the other's in it, anywhere, as torch has it."""
    return name_ancestor + "." in name_descendant


def display_bytes(b: int, unit: str = "MiB") -> str:
    """A size in KiB, MiB or GiB; in any other unit, bytes."""
    sizes = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    return f"{b / sizes[unit]:.2f} {unit}" if unit in sizes else f"{b:.2f} bytes"


def get_peak_memory_runtime_baseline(graph: Graph) -> tuple[int, float]:
    """The peak in bytes, without optimizer state, and the time of computing in milliseconds, with nothing checkpointed."""
    root = graph.nodes[0]
    above = (node["grad_total"] + node["act_grad_per_module"] + node["act_total"] for node in graph.nodes)
    peak = max(0, *(root["param_per_module"] + size for size in above))
    return peak, root["fw_runtime_per_module"] + root["bw_runtime_per_module"]
