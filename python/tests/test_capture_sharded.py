"""Captures of models that FSDP2 has sharded: the step of one rank, as `Trace.fsdp` makes it of the whole model's."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic

fsdp = pytest.importorskip("torch.distributed.fsdp")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """An embedding, blocks in a list, and a head, which may be the embedding."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(101, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 101, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TOKENS = torch.zeros(8, 32, dtype=torch.long)


def shard(model: Model, mesh: Any, reshard: bool | None = None, **how: Any) -> Model:
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **how)
    fsdp.fully_shard(model, mesh=mesh, **how)
    return model


def captured(model: nn.Module, device: str = "cuda", **options: Any) -> rematic.Trace:
    return rematic.capture(model, TOKENS, device=device, **options)


def document(trace: rematic.Trace, tmp_path: pathlib.Path) -> dict[str, Any]:
    path = tmp_path / "step.rmt"
    trace.save(path)
    return json.loads(path.read_text())


@pytest.mark.parametrize(("device", "gpus", "rank"), [("cpu", 2, 1), ("cpu", 7, 6), ("cuda", 64, 0), ("cuda", 1024, 1023)])
def test_a_rank_takes_what_the_native_pass_says(device: str, gpus: int, rank: int) -> None:
    with rematic.cluster(gpus, rank) as mesh:
        sharded = captured(shard(Model(), mesh), device)
    native = captured(Model(), device).fsdp(gpus, rank=rank)
    assert sharded.peak() == native.peak()


def test_other_ways_to_shard_take_what_the_native_pass_says() -> None:
    whole, half = captured(Model()), captured(Model().bfloat16())
    mixed = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    tied = captured(Model(tied=True))
    with rematic.cluster(8, 5) as mesh:
        assert captured(shard(Model(), mesh, reshard=False)).peak() == whole.fsdp(8, rank=5, reshard=False).peak()
        assert captured(shard(Model(), mesh, mp_policy=mixed)).peak() == half.fsdp(8, rank=5, mixed=True).peak()
        assert captured(shard(Model(tied=True), mesh)).peak() == tied.fsdp(8, rank=5).peak()
        with torch.device("meta"):
            model = Model()
        assert captured(shard(model, mesh)).peak() == whole.fsdp(8, rank=5).peak(), "a model without memory"
    with rematic.cluster(8, 5, {"replicate": 2, "shard": 4}) as mesh:
        assert captured(shard(Model(), mesh)).peak() == whole.fsdp(4, replicate=2, rank=1).peak()


def test_what_is_sent_is_in_the_trace(tmp_path: pathlib.Path) -> None:
    with rematic.cluster(8, 5, {"replicate": 2, "shard": 4}) as mesh:
        made = document(captured(shard(Model(), mesh)), tmp_path)
    assert made["place"] == [["replicate", 2, 1], ["shard", 4, 1]]
    assert made["streams"] == ["compute", "all_gather_copy_in", "all_gather", "reduce_scatter", "all_reduce"]
    block = 4 * sum(4 * math.ceil(rows / 4) * rest for rows, rest in ((256, 64), (256, 1), (64, 256), (64, 1)))
    sent = [
        (made["collectives"][op["collective"]], made["streams"][op["stream"]]) for op in made["ops"] if "collective" in op
    ]
    assert sent.count((["all_gather", 4, "shard", block], "all_gather")) == 6
    assert sent.count((["reduce_scatter", 4, "shard", block], "reduce_scatter")) == 3
    assert sent.count((["all_reduce", 2, "replicate", block // 4], "all_reduce")) == 3
    assert len(sent) == 7 + 4 + 4
    events = [next(iter(event)) for event in made["events"]]
    weights = 3 * 4 + 2
    # Those of blocks come and go twice.
    assert events.count("restore") == events.count("release") == weights + 3 * 4
    assert sum("released" in storage for storage in made["storages"]) == weights


def test_a_model_and_its_optimizer_stay_as_they_are() -> None:
    with rematic.cluster(4, 1) as mesh:
        model = shard(Model(), mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        before = {name: (value, value.to_local().clone()) for name, value in model.named_parameters()}
        types = [type(module) for module in model.modules()]
        trace = captured(model, optimizer=optimizer)
        assert trace.peak() == captured(model, optimizer=torch.optim.AdamW).peak()
        assert [type(module) for module in model.modules()] == types
        assert not optimizer.state
        for name, value in model.named_parameters():
            was, numbers = before[name]
            assert value is was and value.grad is None and torch.equal(value.to_local(), numbers)
        assert all(state._is_root is None for state in (model._get_fsdp_state(), model.blocks[0]._get_fsdp_state()))


def test_steps_that_gather_gradients_are_captured() -> None:
    """Without synchronization whole gradients stay until the last micro-batch."""

    def accumulate(model: Any, optimizer: Any) -> None:
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            model(TOKENS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with rematic.cluster(8, 0) as mesh:
        once = captured(shard(Model(), mesh))
        trace = rematic.capture_step(accumulate, shard(Model(), mesh), torch.optim.Adam, device="cuda")
    names = [op.name for op in trace.ops]
    assert names.count("_reduce_scatter_base_.default") == 4
    assert names.count("_allgather_base_.default") > [op.name for op in once.ops].count("_allgather_base_.default")
    assert trace.peak() > once.peak()


def test_a_plan_for_a_captured_rank() -> None:
    with rematic.cluster(8, 3) as mesh:
        trace = captured(shard(Model(), mesh))
    plan = rematic.plan(trace, trace.peak() - 1)
    native = rematic.plan(captured(Model()).fsdp(8, rank=3), trace.peak() - 1)
    assert plan.world_size == 8 and plan.peak == native.peak

    # Sharding changes the class of the model, with which paths begin.
    inner, other = ([region.module.partition(".")[2] for region in one.regions] for one in (plan, native))
    assert inner == other


def offloaded(model: Model, mesh: Any) -> None:
    shard(model, mesh, offload_policy=fsdp.CPUOffloadPolicy(pin_memory=False))


def hooked(model: Model, mesh: Any) -> None:
    shard(model, mesh).set_all_reduce_hook(lambda tensor: None)


def twice(model: Model, mesh: Any) -> None:
    other = torch.distributed.init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("a", "b"))
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh)
    fsdp.fully_shard(model, mesh=other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (offloaded, r"keeps its shards on the CPU \(CPUOffloadPolicy\).*capture it without offload_policy"),
        (hooked, "has a hook for all-reduce"),
        (twice, "parameters lie on 2 meshes: .*make one mesh with all axes"),
    ],
)
def test_what_is_not_known_is_refused(change: Callable[[Model, Any], None], said: str) -> None:
    with rematic.cluster(4, 1) as mesh:
        model = Model()
        change(model, mesh)
        held = dict(model.named_parameters())
        with pytest.raises(rematic.RematicError, match=said):
            captured(model)
        assert all(value is held[name] for name, value in model.named_parameters())


def test_one_device_communicates_with_nobody() -> None:
    trace = rematic.capture(nn.Linear(8, 4), torch.randn(2, 8), device="cuda")
    assert "communication" not in str(rematic.plan(trace))
