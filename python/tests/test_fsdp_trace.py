"""`Trace.fsdp`: the step of one rank, and what it refuses."""

from __future__ import annotations

import pytest
import torch

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
