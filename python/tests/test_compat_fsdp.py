"""Our drop-in for torch's FSDPMemTracker, and our steps under FSDP2, against torch's own: one rank of several, on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable import checkpoint
from torch.distributed._tools import fsdp2_mem_tracker as theirs
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import rematic
from rematic.compat import fsdp2_mem_tracker as ours

RANKS = 4
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 192), nn.Linear(192, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """With rows that four ranks cannot share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    dist.destroy_process_group()


def plain(snapshot: Any) -> dict[str, int]:
    return {getattr(kind, "value", kind): size for kind, size in snapshot[CPU].items()}


def sharded(reshard: bool, mixed: bool, again: bool) -> nn.Module:
    model = Model()
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    for block in model.blocks:
        if again:
            checkpoint(block)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def tracked(tools: ModuleType, reshard: bool, mixed: bool = False, again: bool = False) -> dict[str, Any]:
    """All that a tracker says of the third step."""
    model = sharded(reshard, mixed, again)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    batch = torch.randn(32, 64)
    tracker = tools.FSDPMemTracker(model, optimizer)
    tracker.track_inputs((batch,))
    methods = [part._get_fsdp_state()._fsdp_param_group.pre_backward for part in model.blocks]  # type: ignore[operator]
    for step in range(3):
        with tracker:
            output = model(batch)
            output.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if step < 2:
            tracker.reset_mod_stats()
    after = [part._get_fsdp_state()._fsdp_param_group.pre_backward for part in model.blocks]  # type: ignore[operator]
    assert methods == after, "what was wrapped is as it was"
    return {
        "peak": plain(tracker.get_tracker_snapshot("peak")),
        "current": plain(tracker.get_tracker_snapshot()),
        "modules": {
            stats.mod_fqn: (
                dict(stats.local_peak),
                {state.value: [plain(one) for one in taken] for state, taken in stats.snapshots.items()},
            )
            for stats in tracker.memory_tracking.values()
        },
    }


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize(("mixed", "again"), [(False, False), (True, True)])
def test_memory_under_fsdp2_is_torchs(reshard: bool, mixed: bool, again: bool) -> None:
    said = tracked(ours, reshard, mixed, again)
    assert said == tracked(theirs, reshard, mixed, again)
    assert len(said["modules"]) == 4 and said["peak"]["Unsharded Param"] > 0


@pytest.mark.parametrize("reshard", [True, False])
def test_a_captured_step_under_fsdp2_peaks_where_torchs_tracker_says(reshard: bool) -> None:
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    trace = rematic.capture(Model(), torch.randn(32, 64), device="cpu", loss=torch.sum, optimizer=optimizer)
    rank = trace.fsdp(RANKS, reshard=reshard)
    peak = tracked(theirs, reshard)["peak"]
    assert rank.peak() == peak["Total"]
    categories = rank.categories()
    assert categories["parameter"] == peak["Sharded Param"] + peak["Unsharded Param"]
    assert categories["optimizer"] == peak["OptState"]
    assert categories["activation"] == peak["Activation"]
    assert categories["other"] == peak["Inputs"] + peak["All Gather"]
    gradients = peak["Sharded Grad"] + peak["Unsharded Grad"] + peak["Temp"] + peak["Reduce Scatter"]
    assert categories["gradient"] + categories["temp"] == gradients
