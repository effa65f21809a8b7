"""Drop-in for `torch.distributed._tools.sac_estimator`: what a module's operators free and cost, and in which order they are
best recomputed."""

from __future__ import annotations

import itertools
import os
import re
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import SAC_IGNORED_OPS
from typing_extensions import Self

from rematic import _core
from rematic.compat._sac_data import (
    MSPS,
    STATS_HEADERS,
    TRADEOFF_HEADERS,
    SACGreedyOrderMeta,
    SACStats,
    SACTradeOffStats,
    print_table,
    save_graph,
    stats_rows,
    tradeoff_rows,
)
from rematic.compat.common_utils import get_untyped_storages
from rematic.compat.mod_tracker import ModTracker
from rematic.compat.runtime_estimator import BENCHMARK, COST_MODEL, RuntimeEstimator

__all__ = ["MSPS", "SACEstimator", "SACGreedyOrderMeta", "SACStats", "SACTradeOffStats"]

OPS_TO_ALWAYS_SKIP = SAC_IGNORED_OPS | {
    torch.ops.aten.lift_fresh.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
    torch.ops.aten.clone.default,
}
_PYTORCH_MIN_ALLOCATE = 512 if int(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", 0)) == 0 else 1

_VIEWS = set(
    """as_strided detach diagonal expand expand_as movedim narrow permute select squeeze transpose t real imag view_as_real
    view_as_complex unflatten unfold unsqueeze view view_as unbind split split_with_sizes vsplit hsplit tensor_split chunk
    swapaxes slice _reshape_alias _unsafe_view _conj alias as_strided_ detach_ squeeze_ swapaxes_ swapdims_ t_ transpose_
    unsqueeze_""".split()
)
_FLASH = "_scaled_dot_product_flash_attention"


class _Op(NamedTuple):
    """An operator that ran; `parent` is the first that made what it changes in place."""

    func: Any
    number: int
    millis: float
    bytes: int
    storages: frozenset[int]
    parent: int | None
    is_view: bool
    is_random: bool


class _Module:
    """A module with children: its operators."""

    def __init__(self, start: int, force_store_random: bool) -> None:
        self.start = start
        self.force_store_random = force_store_random
        self.ops: list[_Op] = []


class _Numbers:
    """A number for every storage, which no other has, also after it is gone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[UntypedStorage], int]] = {}
        self._next = 0

    def of(self, tensor: Tensor) -> set[int]:
        """The numbers of a tensor's storages."""
        return {self._number(storage) for storage in get_untyped_storages(tensor)}

    def _number(self, storage: UntypedStorage) -> int:
        known = self._known.get(storage._cdata)
        if known is not None and known[0]() is storage:
            return known[1]
        self._next += 1
        self._known[storage._cdata] = (weakref.ref(storage), self._next)
        return self._next


class SACEstimator(TorchDispatchMode):
    """What selective checkpointing of each module with children would free and cost, under `FakeTensorMode`.

        estimator = SACEstimator()
        with FakeTensorMode():
            ...
            with estimator("operator-level-cost-model"):
                model(batch)
            estimator.display_modulewise_sac_stats(depth=4, print_tabular=True)

    `gpu_type` is a name of torch's data sheet; without it, it is the GPU that is there.
    """

    def __init__(self, gpu_type: str | None = None) -> None:
        super().__init__()
        self.sac_mod_stats: dict[str, SACStats] = {}
        self.sac_mod_tradeoff_stats: dict[str, SACTradeOffStats] = {}
        self.sac_mod_greedy_order_meta: dict[str, SACGreedyOrderMeta] = {}
        self._mod_tracker = ModTracker()
        self._modules: dict[str, _Module] = {}
        self._leaf_modules: set[str] = set()
        self._count = 0
        # The operators that returned a storage, by its number.
        self._makers: dict[int, list[tuple[int, frozenset[int]]]] = {}
        self._numbers = _Numbers()
        self._saved: set[int] = set()
        self._saved_tensor_hook_ctx: Any = torch.autograd.graph.saved_tensors_hooks(self._pack_hook, lambda tensor: tensor)
        self._gpu_type = gpu_type
        self._estimate_runtime: Any = RuntimeEstimator._roofline_estimate

    def _pack_hook(self, tensor: Tensor) -> Tensor:
        self._saved |= self._numbers.of(tensor)
        return tensor

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        name = self._mod_tracker.get_known_fqn(module)
        if name is None:
            raise AssertionError
        if next(module.children(), None) is None:
            self._leaf_modules.add(name)
            return
        without_tensors = not any(isinstance(leaf, Tensor) for leaf in tree_leaves(inputs))
        self._modules[name] = _Module(self._count, without_tensors)

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        name = self._mod_tracker.get_known_fqn(module)
        if name is None:
            raise AssertionError
        if name not in self._leaf_modules:
            stats = self.sac_mod_stats[name] = self._stats(self._modules[name])
            self.sac_mod_greedy_order_meta[name] = _greedy_order(stats)

    def _stats(self, module: _Module) -> SACStats:
        ops = [op for op in module.ops if op.func not in OPS_TO_ALWAYS_SKIP]
        place = {op.number: number for number, op in enumerate(ops)}
        views = [number for number, op in enumerate(ops) if op.is_view]
        try:
            in_place = [(place[op.number], place[op.parent]) for op in ops if op.parent is not None]
        except KeyError as error:
            raise ValueError(
                f"The remapping of inplace ops failed since one of the inplace op parents"
                f" must have been present in {OPS_TO_ALWAYS_SKIP}"
            ) from error
        memory = [op.bytes for op in ops]
        # What the last operator that makes something returns is there in any case.
        last = len(ops) - 1
        passed = {*views, *(op for op, _ in in_place)}
        while last in passed:
            last -= 1
        if memory:
            memory[last] = 0
        return SACStats(
            func_names=[op.func._overloadpacket.__name__ for op in ops],
            runtimes=[op.millis for op in ops],
            memory=memory,
            view_like_ops=views,
            rand_ops=[number for number, op in enumerate(ops) if op.is_random],
            saved_autograd_ops=[number for number, op in enumerate(ops) if op.storages <= self._saved],
            inplace_ops=in_place,
            force_store_random=module.force_store_random,
        )

    def _parent(self, storages: frozenset[int], start: int) -> int:
        """The first operator from `start` on that returned all of these; the one that runs now if there is none."""
        if not storages:
            return min(start, self._count)
        made = min((self._makers.get(storage, []) for storage in storages), key=len)
        return next((number for number, returned in made if number >= start and storages <= returned), self._count)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, millis = self._estimate_runtime(func, args, kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        devices = {output.device for output in outputs if output.device.type == "cuda"}
        if len(devices) > 1:
            raise AssertionError(f"{func.__name__}'s output has more than 1 CUDA devices {devices}")
        name = func.overloadpacket.__name__
        is_view = name in _VIEWS
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if name == _FLASH:
            # Without dropout it draws nothing.
            is_random = (kwargs or {}).get("dropout_p", 0) != 0
        storages = frozenset().union(*map(self._numbers.of, outputs)) if outputs else frozenset()
        in_place = _is_in_place(name)
        op = _Op(func, self._count, millis, 0 if is_view else _bytes(outputs), storages, None, is_view, is_random)
        for module in self._mod_tracker.parents - self._leaf_modules - {"Global"}:
            active = self._modules.get(module)
            if active is None:
                raise AssertionError(f"Module {module} not found in AC Mod Stats")
            active.ops.append(op._replace(parent=self._parent(storages, active.start)) if in_place else op)
        for storage in storages:
            self._makers.setdefault(storage, []).append((self._count, storages))
        self._count += 1
        return result

    def display_sac_stats(self, sac_stats: SACStats, print_tabular: bool = False) -> None:
        """Prints the operators of a module."""
        print(
            f"Total Memory: {sum(sac_stats.memory)} B Total Runtime: {sum(sac_stats.runtimes)} ms"
            f" Store Random: {sac_stats.force_store_random}"
        )
        print_table(STATS_HEADERS, stats_rows(sac_stats), print_tabular)

    def display_sac_tradeoff_stats(
        self, greedy_order_meta: SACGreedyOrderMeta, sac_stats: SACStats, print_tabular: bool = False
    ) -> None:
        """Prints what is freed, at which time, when a module's operators are recomputed one group after the other."""
        print_table(TRADEOFF_HEADERS, tradeoff_rows(greedy_order_meta, sac_stats), print_tabular)

    def pwlf_sac_tradeoff_curve(self, n_segments: int = 2, save_tradeoff_graphs: bool = False) -> None:
        """Fits lines to every module's curve of discarded memory against recomputed time."""
        for name, stats in self.sac_mod_stats.items():
            found, shifted = _tradeoff(stats, self.sac_mod_greedy_order_meta[name], n_segments)
            self.sac_mod_tradeoff_stats[name] = found
            if save_tradeoff_graphs:
                save_graph(found, shifted, name)

    def display_modulewise_sac_stats(self, depth: int = 2, print_tabular: bool = False) -> None:
        """Prints both for every module, down to a depth of the hierarchy."""
        for name, stats in self.sac_mod_stats.items():
            if name.count(".") + 1 <= depth:
                print(f"Module: {name}")
                self.display_sac_stats(stats, print_tabular)
                print(f"AC Trade-off for Module: {name} MSPS = Memory/Runtime")
                self.display_sac_tradeoff_stats(self.sac_mod_greedy_order_meta[name], stats, print_tabular)

    def __call__(self, estimate_mode_type: str) -> Self:
        """Says how to estimate: "operator-level-cost-model" (roofline) or "operator-level-benchmark" (measured)."""
        if estimate_mode_type == BENCHMARK:
            self._estimate_runtime = RuntimeEstimator._benchmark_estimate
        elif estimate_mode_type == COST_MODEL:
            self._estimate_runtime = RuntimeEstimator._roofline_estimate
        else:
            raise NotImplementedError(f"estimate_mode_type {estimate_mode_type} not supported")
        return self

    def __enter__(self) -> Self:
        fake_mode = active_fake_mode()
        if not isinstance(fake_mode, FakeTensorMode):
            raise AssertionError("SAC Estimator should be called in FakeTensorMode")
        RuntimeEstimator._use(fake_mode, self._gpu_type)
        self._mod_tracker.clear_user_hooks()
        self._mod_tracker.register_user_hooks(pre_fw_hook=self._pre_fw_hook, post_fw_hook=self._post_fw_hook)
        self._mod_tracker.__enter__()
        self._saved_tensor_hook_ctx.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._saved_tensor_hook_ctx.__exit__()
        self._mod_tracker.__exit__(*args)
        super().__exit__(*args)


def _is_in_place(name: str) -> bool:
    if re.match("__.+__", name):
        return name.startswith("__i") and len(name) > 5
    return name.endswith("_")


def _bytes(outputs: list[Tensor]) -> int:
    """The bytes of the outputs' storages, each once; on a GPU in whole blocks."""
    sizes = {}
    for output in outputs:
        block = _PYTORCH_MIN_ALLOCATE if output.device.type == "cuda" else 1
        for storage in get_untyped_storages(output):
            sizes[storage._cdata] = -(-storage.nbytes() // block) * block
    return sum(sizes.values())


def _greedy_order(stats: SACStats) -> SACGreedyOrderMeta:
    recomputed, stored, in_place, random, candidates = _core.greedy_order(stats)
    groups = [
        MSPS({stats.func_names[op] for op in ops}, head, memory, runtime, msps)
        for head, ops, memory, runtime, msps in candidates
    ]
    place = {head: number for number, head in enumerate(_candidates(stats, stored))}
    groups.sort(key=lambda group: (-group.msps, place[group.op_idx]))
    return SACGreedyOrderMeta(recomputed, stored, in_place, random, groups)


def _candidates(stats: SACStats, stored: set[int]) -> set[int]:
    """What may be recomputed, in the order that decides between equals: that of a set which torch makes in these steps."""
    in_place = dict(stats.inplace_ops)
    candidates: set[int] = set()
    if stats.rand_ops and min(stats.rand_ops) not in stored:
        candidates.add(min(stats.rand_ops))
    candidates.update(set(dict.fromkeys(in_place.values())) - stored)
    rest = set(range(len(stats.memory))) - set(stats.view_like_ops) - stored - set(in_place) - set(stats.rand_ops)
    candidates.update(rest)
    return candidates


def _tradeoff(
    stats: SACStats, order: SACGreedyOrderMeta, n_segments: int
) -> tuple[SACTradeOffStats, list[tuple[float, float]]]:
    """The curve with its lines, and the points that they were fitted to."""

    def fixed(heads: set[int]) -> tuple[int, float]:
        ops = sorted({op for head in heads for op in order.group_of(head)})
        return sum(stats.memory[op] for op in ops), sum(stats.runtimes[op] for op in ops)

    groups = [(group.memory, group.runtime) for group in order.msps_meta]
    steps = [fixed(order.recomputed_ops), *groups, fixed(order.stored_ops)]
    memory, runtime = sum(stats.memory), sum(stats.runtimes)
    points, slopes, intercepts, breaks = _core.tradeoff_curve(steps, memory, runtime, n_segments)
    found = SACTradeOffStats(len(slopes), slopes, intercepts, breaks, OrderedDict(points), memory, runtime)
    return found, [(before[0], after[1]) for before, after in itertools.pairwise(points)]
