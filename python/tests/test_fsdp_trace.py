"""`Trace.fsdp`: the step of one rank, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rematic


def step(**options: object) -> rematic.Trace:
    return rematic.Trace.model("gpt2", layers=4, batch=16, seq=256, **options)  # type: ignore[arg-type]


def test_a_rank_has_its_shards_and_buffers() -> None:
    whole = step()
    ranks = [whole.fsdp(8, rank=rank) for rank in (0, 7)]
    names = [op.name for op in ranks[0].ops]
    # Four layers, gathered twice, and the model once.
    assert names.count("_allgather_base_.default") == 9 and names.count("_reduce_scatter_base_.default") == 5
    assert ranks[1].peak() < ranks[0].peak() < whole.peak()
    assert whole.fsdp(8, reshard=False).peak() > ranks[0].peak()
    half = step(dtype=torch.bfloat16)
    assert half.fsdp(8, mixed=True).peak() > half.fsdp(8).peak()


def test_a_plan_is_for_that_rank() -> None:
    rank = step().fsdp(4)
    plan = rematic.plan(rank, int(0.9 * rank.peak()))
    assert plan.world_size == 4 and plan.peak <= 0.9 * rank.peak()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 1}, "at least 2 ranks"),
        ({"gpus": 0}, "at least 2 ranks"),
        ({"gpus": 4, "rank": 4}, "no such rank"),
        ({"gpus": 4, "replicate": 0}, "at least one replica"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(rematic.RematicError, match=f"fsdp: .*{said}"):
        step().fsdp(**options)


def test_a_rank_is_not_sharded_again() -> None:
    with pytest.raises(rematic.RematicError, match="one rank of several already"):
        step().fsdp(2).fsdp(2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


class Model(nn.Module):
    """Blocks in a list, each run as often as said."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 8)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            for _ in range(self.times):
                x = block(x)
        return self.head(x)


def captured(model: nn.Module) -> rematic.Trace:
    return rematic.capture(model, torch.randn(16, 64), device="cuda")


def count(trace: rematic.Trace, name: str) -> int:
    return [op.name for op in trace.ops].count(name)


def test_a_layer_that_runs_twice_is_gathered_as_pytorch_gathers_it() -> None:
    """Six times in forward and six in backward, and the model once."""
    assert count(captured(Model(2)).fsdp(4), "_allgather_base_.default") == 13
    assert count(captured(Model()).fsdp(4), "_allgather_base_.default") == 7


def test_what_is_left_at_the_end_is_reduced_from_the_outside_in() -> None:
    """The first block's input needs no gradient, so it reduces when backward is over, after the model's own."""
    rank = captured(Model()).fsdp(4)
    packed = [sum(math.prod(shape) for _, (_, shape, _) in op.inputs) for op in rank.ops if op.name == "_chunk_cat.out"]
    block, head = 64 * 64 + 64, 64 * 8 + 8
    assert packed == [block, block, head, block]


def test_shards_of_several_types_are_gathered_as_bytes() -> None:
    model = Model()
    for block in model.blocks:
        block.register_parameter("frozen", nn.Parameter(torch.zeros(512, 4, dtype=torch.bfloat16), requires_grad=False))
    gathered = [op.outputs[0][1] for op in captured(model).fsdp(4).ops if op.name == "all_gather_copy_in.default"]
    assert ("u8", [4 * (64 * 64 + 64) + 2 * 512 * 4], [1]) in gathered


def scalar(model: Model) -> None:
    model.blocks[0].register_parameter("scale", nn.Parameter(torch.ones(())))


def shared(model: Model) -> None:
    model.blocks[1].linear.weight = model.blocks[0].linear.weight


def transposed(model: Model) -> None:
    model.blocks[0].linear.weight = nn.Parameter(torch.randn(64, 64).t())


@pytest.mark.parametrize(
    ("change", "said"), [(scalar, "has no dimensions"), (shared, "shared with a module"), (transposed, "row by row")]
)
def test_what_pytorch_refuses_is_refused(change: Callable[[Model], None], said: str) -> None:
    model = Model()
    change(model)
    with pytest.raises(rematic.RematicError, match=said):
        captured(model).fsdp(4)


def test_mixed_precision_is_for_steps_in_half_types() -> None:
    with pytest.raises(rematic.RematicError, match="computes in fp32"):
        captured(Model()).fsdp(4, mixed=True)


class Either(nn.Module):
    """Two layers, the second of which is left out if its caller says so."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, inputs: Tensor, both: bool) -> Tensor:
        hidden = self.always(inputs)
        return (self.sometimes(hidden) if both else hidden).sum()


def test_micro_batches_with_gradients_of_other_parameters_are_refused() -> None:
    def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for both in (True, False):
            model(torch.ones(8, 64), both).backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = rematic.capture_step(accumulated, Either(), torch.optim.SGD, device="cuda")
    with pytest.raises(rematic.RematicError, match="micro-batches of the step do not have gradients of the same parameters; capture the"):
        trace.fsdp(2)
