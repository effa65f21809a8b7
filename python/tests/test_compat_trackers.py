"""Our drop-ins for torch's trackers and estimators against torch's own, on the same steps."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import fake_collectives as their_collectives
from torch.distributed._tools import ilp_utils as their_ilp
from torch.distributed._tools import mem_tracker as their_memory
from torch.distributed._tools import mod_tracker as their_modules
from torch.distributed._tools import runtime_estimator as their_runtime
from torch.distributed._tools import sac_estimator as their_sac
from torch.distributed._tools.common_utils import get_untyped_storages as their_storages
from torch.utils.checkpoint import checkpoint

from rematic import compat
from rematic.compat import (
    fake_collectives,
    ilp_utils,
    mem_tracker,
    mod_tracker,
    runtime_estimator,
    sac_estimator,
)
from rematic.compat.common_utils import get_untyped_storages

COST_MODEL = "operator-level-cost-model"


class Block(nn.Module):
    """Random, in place, a view, and a module that may run twice."""

    def __init__(self, width: int, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(0.1)
        self.down = nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) * self.scale
        x = self.down(self.dropout(self.up(x).relu_()))
        return (self.norm(x) if self.twice else x).view(x.shape)


class Model(nn.Module):
    def __init__(self, again: bool = False, twice: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList(Block(24, twice) for _ in range(3))
        self.head = nn.Linear(24, 50, bias=False)
        self.again = again

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


def plain(snapshot: dict[Any, dict[Any, int]]) -> dict[str, dict[str, int]]:
    return {str(dev): {getattr(key, "value", key): size for key, size in row.items()} for dev, row in snapshot.items()}


def printed(what: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        what()
    return said.getvalue()


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """What lies in cycles dies when torch's collector runs, which is another moment in each run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def tracked(tools: ModuleType, device: str, again: bool) -> tuple[Any, nn.Module, list[Any]]:
    """Two steps under a tracker, and what it says in between."""
    with torch.device(device):
        model = Model(again)
        tokens = torch.zeros(4, 8, dtype=torch.long)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    optimizer._accelerator_graph_capture_health_check = lambda: None  # type: ignore[attr-defined]
    tracker = tools.MemTracker()
    tracker.track_external(model, optimizer, tokens, None)
    said = []
    with tracker:
        for step in range(2):
            output = model(tokens)
            said.append(plain(tracker.get_tracker_snapshot()))
            output.sum().backward()
            said.append(plain(tracker.get_tracker_snapshot()))
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    said += [plain(tracker.get_tracker_snapshot()), plain(tracker.get_tracker_snapshot("peak"))]
    return tracker, model, said


def statistics(tracker: Any) -> dict[str, Any]:
    return {
        stats.mod_fqn: (
            stats.parameter_mem,
            stats.buffer_mem,
            stats.input_mem,
            stats.output_mem,
            {str(device): size for device, size in stats.local_peak.items()},
            {state.value: [plain(one) for one in taken] for state, taken in stats.snapshots.items()},
        )
        for stats in tracker.memory_tracking.values()
    }


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("again", [False, True])
def test_memory_is_torchs_at_every_moment(device: str, again: bool) -> None:
    torch.manual_seed(0)
    theirs, their_model, they_said = tracked(their_memory, device, again)
    ours, our_model, we_said = tracked(mem_tracker, device, again)
    assert we_said == they_said
    assert statistics(ours) == statistics(theirs) and len(statistics(ours)) == 18
    states = {state.value for stats in ours.memory_tracking.values() for state in stats.snapshots}
    assert ("Pre-Forward-AC" in states) == again
    for show in (
        lambda tracker: tracker.display_snapshot("peak"),
        lambda tracker: tracker.display_snapshot("current", units="KiB"),
        lambda tracker: tracker.display_modulewise_snapshots(depth=3, units="KiB"),
    ):
        texts = [printed(partial(show, tracker)) for tracker in (ours, theirs)]
        assert texts[0] == texts[1] and "Activation" in texts[0]
    assert their_model is not our_model


def test_what_was_reset_keeps_what_it_said() -> None:
    with torch.device("meta"):
        model = Model()
        tokens = torch.zeros(4, 8, dtype=torch.long)
    with compat.MemTracker() as tracker:
        model(tokens)
        stats = tracker.memory_tracking[model]
        before = copy.deepcopy(stats)
        tracker.reset_mod_stats()
        assert len(tracker.memory_tracking) == 0
        model(tokens)
    assert stats.snapshots == before.snapshots and stats.local_peak == before.local_peak


def test_a_frozen_parameter_is_counted() -> None:
    """Torch's own fails on it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    with compat.MemTracker() as tracker:
        model(torch.ones(3, 4)).sum().backward()
    row = tracker.get_tracker_snapshot()[torch.device("cpu")]
    assert (row["Parameter"], row["Gradient"]) == (4 * (16 + 4 + 8 + 2), 4 * (4 + 8 + 2))


def test_a_storage_that_is_resized_counts_what_it_has() -> None:
    with compat.MemTracker() as tracker:
        kept = torch.ones(1000)
        storage = kept.untyped_storage()
        storage.resize_(0)
        assert tracker.get_tracker_snapshot() == {}
        storage.resize_(4000)
        assert tracker.get_tracker_snapshot()[torch.device("cpu")]["Activation"] == 4000
    assert torch.UntypedStorage.resize_ is tracker._orig_resize


def test_mistakes_are_worded_as_torchs() -> None:
    tracker = compat.MemTracker()
    with pytest.raises(TypeError, match="Object of type <class 'int'> is not supported for tracking"):
        tracker.track_external(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Invalid type highest"):
        tracker.get_tracker_snapshot("highest")
    kept = torch.ones(3)
    tracker.track_external(kept)
    with pytest.raises(ValueError, match="Unsupported unit: MB. Supported units are: B, KiB, MiB, GiB"):
        tracker.display_snapshot(units="MB")
    model = nn.Linear(2, 2)
    with tracker, pytest.raises(NotImplementedError, match="multiple iterative calls.*reset_mod_stats"):
        model(torch.ones(2))
        model(torch.ones(2))
    assert printed(lambda: compat.MemTracker().display_snapshot()) == "No memory tracked.\n"
    with pytest.raises(AssertionError, match="FSDPMemTracker only supports FSDP modules"):
        compat.FSDPMemTracker(model)
    with pytest.raises(AttributeError, match="no attribute 'MemoryTracker'"):
        compat.MemoryTracker  # noqa: B018


def followed(tools: ModuleType) -> list[Any]:
    model, tracker, seen = Model(again=True), tools.ModTracker(), []

    def hook(name: str) -> Callable[..., None]:
        return lambda module, *_: seen.append((name, tracker.get_known_fqn(module), sorted(tracker.parents), tracker.is_bw))

    tracker.register_user_hooks(hook("pre_fw"), hook("post_fw"), hook("pre_bw"), hook("post_bw"))
    with pytest.raises(AssertionError, match="Only one pre_fw_hook can be registered at a time"):
        tracker.register_user_hooks(pre_fw_hook=print)
    with tracker:
        for _ in range(2):
            model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
    assert tracker.parents == {"Global"} and not tracker.is_bw
    return seen


def test_modules_run_when_torch_says_so() -> None:
    ours = followed(mod_tracker)
    assert ours == followed(their_modules)
    assert {name for name, *_ in ours} == {"pre_fw", "post_fw", "pre_bw", "post_bw"}


@contextlib.contextmanager
def as_with_gpu() -> Iterator[None]:
    """The estimators read a data sheet, and ask first whether there is a GPU."""
    healthy = mock.patch.object(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda self: None)
    with mock.patch("torch.accelerator.is_available", lambda: True), healthy, FakeTensorMode():
        yield


def estimated(memory: ModuleType, runtime: ModuleType, sac: ModuleType, ilp: ModuleType) -> dict[str, Any]:
    """All that the tools say of a step, on the CPU's operators with an A100's figures."""
    with as_with_gpu():
        model = Model(twice=False)
        tokens = torch.zeros(4, 8, dtype=torch.long)
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)

        def step() -> None:
            model(tokens).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        tracker = memory.MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        times = runtime.RuntimeEstimator(gpu_type="NVIDIA A100")
        with contextlib.redirect_stdout(io.StringIO()) as said, times(COST_MODEL):
            step()
        estimator = sac.SACEstimator(gpu_type="NVIDIA A100")
        with estimator(COST_MODEL):
            model(tokens)
        info = ilp.aggregate_stats(model, tracker, times, estimator, torch.device("cpu"))
        graph = ilp.parse_module_info(info)
        return {
            "printed": said.getvalue(),
            "total": times.total_runtime,
            "runtimes": {name: dict(millis) for name, millis in times.mod_runtimes.items()},
            "order": info["mod_order"],
            "sorted": [stats["fqn"] for stats in info["mod_stats"]],
            "sac": {name: vars(stats) for name, stats in estimator.sac_mod_stats.items()},
            "greedy": {name: vars(meta) for name, meta in estimator.sac_mod_greedy_order_meta.items()},
            "tables": sorted(printed(lambda: estimator.display_modulewise_sac_stats(3)).splitlines()),
            "nodes": [dict(node) for node in graph.nodes],
            "tree": graph.ad_matrix.tolist(),
            "baseline": ilp.get_peak_memory_runtime_baseline(graph),
        }


def test_time_and_trade_offs_are_torchs() -> None:
    pytest.importorskip("pwlf")
    ours = estimated(mem_tracker, runtime_estimator, sac_estimator, ilp_utils)
    # Sets of names are printed in an order that changes from run to run.
    sorted_names = lambda lines: ["".join(sorted(line)) for line in lines]
    our_tables = sorted_names(ours.pop("tables"))
    # Torch knows storages by their addresses, which are used again: now and then it takes a result for one that autograd has saved.
    for _ in range(3):
        theirs = estimated(their_memory, their_runtime, their_sac, their_ilp)
        their_tables = sorted_names(theirs.pop("tables"))
        if our_tables == their_tables:
            break
    assert our_tables == their_tables
    their_nodes, our_nodes = theirs.pop("nodes"), ours.pop("nodes")
    for name in theirs:
        assert ours[name] == theirs[name], name
    assert theirs["total"] > 0 and len(theirs["sac"]) == 4
    # Torch's lines are fitted at random, up to the sixth digit or so.
    for their_node, our_node in zip(their_nodes, our_nodes):
        for fitted in ("slopes", "intercepts", "breakpoints"):
            assert our_node.pop(fitted) == pytest.approx(their_node.pop(fitted), abs=1e-2), our_node["fqn"]
        assert our_node == their_node


def test_estimators_refuse_what_torchs_refuse() -> None:
    for estimator in (compat.RuntimeEstimator(), compat.SACEstimator()):
        with pytest.raises(NotImplementedError, match="estimate_mode_type guess not supported"):
            estimator("guess")
        with pytest.raises(AssertionError, match="FakeTensorMode"), estimator(COST_MODEL):
            pass
    with as_with_gpu(), contextlib.redirect_stdout(io.StringIO()):
        matrix = torch.ones(2, 2)
        with pytest.raises(ValueError, match="gpu_type 'NVIDIA Z9'"), compat.RuntimeEstimator("NVIDIA Z9")(COST_MODEL):
            matrix @ matrix


def test_collectives_are_torchs() -> None:
    for name in ("non_functional_collectives", "functional_collectives", "sync_ops", "collective_ops"):
        assert getattr(fake_collectives, name) == getattr(their_collectives, name), name
    sets = {name: value for name, value in vars(their_collectives.CollectiveOp).items() if isinstance(value, set)}
    assert len(sets) == 13
    for name, value in sets.items():
        assert getattr(fake_collectives.CollectiveOp, name) == value, name
    tensors = [torch.ones(4), [torch.ones(2)]]
    assert fake_collectives.CollectiveOp.sum_tensors(tensors) == 24
    with pytest.raises(TypeError, match="Func aten.mm.default not found"):
        fake_collectives.CollectiveOp.get_process_group(torch.ops.aten.mm.default, ())
    with pytest.raises(TypeError, match="Unknown function: c10d.barrier.default"):
        fake_collectives.CollectiveOp.get_comm_tensor_size(torch.ops.c10d.barrier.default, None, (), {})


def test_storages_are_torchs() -> None:
    whole = torch.ones(6)
    assert get_untyped_storages(whole[2:]) == their_storages(whole[2:])
    with pytest.warns(UserWarning, match="Expected a tensor"):
        assert get_untyped_storages(3) == set()  # type: ignore[arg-type]


def test_names_of_both() -> None:
    """Everything public that torch's modules have, ours have too."""
    pairs = [
        (their_memory, mem_tracker),
        (their_modules, mod_tracker),
        (their_runtime, runtime_estimator),
        (their_sac, sac_estimator),
    ]
    for theirs, ours in pairs:
        for name in theirs.__all__:
            public = {member for member in vars(getattr(theirs, name)) if not member.startswith("_")}
            assert public <= set(dir(getattr(ours, name))), (name, public - set(dir(getattr(ours, name))))
            assert getattr(ours, name).__module__.startswith("rematic.compat")
    for name, value in vars(their_ilp).items():
        if getattr(value, "__module__", None) == their_ilp.__name__:
            assert getattr(ilp_utils, name).__module__ == ilp_utils.__name__, name
    assert ilp_utils.is_submodule("M.a.b", "M.a") and not ilp_utils.is_submodule("M.a", "M.a")
    assert [ilp_utils.display_bytes(3 * 2**19, unit) for unit in ("MiB", "KiB", "B")] == [
        their_ilp.display_bytes(3 * 2**19, unit) for unit in ("MiB", "KiB", "B")
    ]
