"""Captures of models after `parallelize_module`, and after that and `fully_shard`."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic

fsdp = pytest.importorskip("torch.distributed.fsdp")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")
placements = pytest.importorskip("torch.distributed.tensor")

BATCH, SEQ, WIDTH, WORDS = 4, 64, 64, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def spread(model: Model, mesh: Any, local_output: bool = True) -> Model:
    shard, whole = placements.Shard(1), placements.Replicate()
    columns, rows, sequence = parallel.ColwiseParallel, parallel.RowwiseParallel, parallel.SequenceParallel
    for block in model.blocks:
        inside = {"norm": sequence(), "up": columns(input_layouts=shard), "down": rows(output_layouts=shard)}
        parallel.parallelize_module(block, mesh, inside)
    out = whole if local_output else placements.Shard(-1)
    head = columns(input_layouts=shard, output_layouts=out, use_local_output=local_output)
    outside = {"embedding": rows(input_layouts=whole, output_layouts=shard), "head": head}
    return parallel.parallelize_module(model, mesh, outside)


TOKENS = torch.zeros(BATCH, SEQ, dtype=torch.long)


def document(trace: rematic.Trace, tmp_path: pathlib.Path) -> dict[str, Any]:
    path = tmp_path / "step.rmt"
    trace.save(path)
    return json.loads(path.read_text())


def sent(made: dict[str, Any]) -> list[list[Any]]:
    return [made["collectives"][op["collective"]] for op in made["ops"] if "collective" in op]


def test_operators_are_those_of_the_parts(tmp_path: pathlib.Path) -> None:
    with rematic.cluster(8, 3, {"tp": 8}) as mesh:
        made = document(rematic.capture(spread(Model(), mesh), TOKENS, device="cuda"), tmp_path)
    # All run on the compute stream.
    assert made["place"] == [["tp", 8, 3]] and "streams" not in made
    names = {module["name"]: module for module in made["modules"]}
    shapes = {name: made["layouts"][layout][1] for name, _, layout in names["up"]["parameters"]}
    assert shapes == {"weight": [4 * WIDTH // 8, WIDTH], "bias": [4 * WIDTH // 8]}
    whole, part = BATCH * SEQ * WIDTH * 4, WORDS * BATCH * SEQ * 4
    # Per block one of each in forward and in backward; the head gathers its input and its output.
    assert sent(made).count(["all_gather", 8, "tp", whole]) >= 2 * 2 + 1
    assert sent(made).count(["reduce_scatter", 8, "tp", whole]) >= 2 * 2 + 1
    assert ["all_gather", 8, "tp", part] in sent(made)
    # An operator that saves is the one whose backward it is.
    for op in made["ops"]:
        if "differentiates" in op and made["names"][op["name"]] == "mm.default":
            assert made["names"][made["ops"][op["differentiates"]]["name"]] in ("addmm.default", "mm.default")


def test_less_of_everything_is_on_more_ranks() -> None:
    peaks = []
    for ranks in (1, 2, 8):
        with rematic.cluster(ranks, ranks - 1, {"tp": ranks}) as mesh:
            peaks.append(rematic.capture(spread(Model(), mesh), TOKENS, device="cuda").peak())
    assert peaks[0] > peaks[1] > peaks[2]


def test_both_together(tmp_path: pathlib.Path) -> None:
    with rematic.cluster(64, 13, {"dp": 8, "tp": 8}) as mesh:
        alone = rematic.capture(spread(Model(), mesh["tp"]), TOKENS, device="cuda")
        model = spread(Model(), mesh["tp"])
        for block in model.blocks:
            fsdp.fully_shard(block, mesh=mesh["dp"])
        fsdp.fully_shard(model, mesh=mesh["dp"])
        trace = rematic.capture(model, TOKENS, device="cuda")
    made = document(trace, tmp_path)
    assert made["place"] == [["dp", 8, 1], ["tp", 8, 5]]
    assert {axis for _, _, axis, _ in sent(made)} == {"dp", "tp"}
    assert made["streams"] == ["compute", "all_gather_copy_in", "all_gather", "reduce_scatter"]
    state, whole = (
        sum(size for size, category, birth, *_ in step["storages"] if category == "optimizer" and birth is None)
        for step in (made, document(alone, tmp_path))
    )
    assert state < whole / 7
    plan = rematic.plan(trace, trace.peak() - 1)
    assert plan.world_size == 64 and plan.peak < trace.peak()


def test_losses_of_parts() -> None:
    """Whole logits are never there."""

    def loss(output: Any) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), torch.zeros(BATCH * SEQ, dtype=torch.long, device=output.device))

    def step(model: nn.Module, optimizer: Any) -> None:
        with parallel.loss_parallel():
            loss(model(TOKENS)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def plain(model: nn.Module, optimizer: Any) -> None:
        loss(model(TOKENS)).backward()
        optimizer.step()
        optimizer.zero_grad()

    with rematic.cluster(8, 0, {"tp": 8}) as mesh:
        whole = rematic.capture_step(plain, spread(Model(), mesh), torch.optim.Adam, device="cuda")
        parts = rematic.capture_step(step, spread(Model(), mesh, local_output=False), torch.optim.Adam, device="cuda")
    assert parts.peak() < whole.peak()

    def widest(trace: rematic.Trace) -> int:
        shapes = [shape for op in trace.ops for _, (_, shape, _) in op.outputs]
        return max(shape[-1] for shape in shapes if shape[:-1] == [BATCH * SEQ])

    assert (widest(whole), widest(parts)) == (WORDS, WIDTH)


def test_what_torch_refuses_is_said() -> None:
    with rematic.cluster(8, 0, {"tp": 8}) as mesh:
        model = Model()
        parallel.parallelize_module(model, mesh, {"head": parallel.ColwiseParallel(output_layouts=placements.Replicate())})
        with pytest.raises(rematic.CaptureError, match=r"mixed torch.Tensor and DTensor(.|\n)*spread all parameters"):
            rematic.capture(model, TOKENS, device="cuda")
