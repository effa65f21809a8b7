"""Plans on models that are sharded with FSDP2, in one process."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer
from plans import Runs, Stack, X, check_equal, results, saving, whole


@pytest.fixture
def mesh(tmp_path: pathlib.Path) -> Iterator[Any]:
    """A mesh of one device."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def sharded(model: Stack, mesh: Any) -> Stack:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("saved", [(), ("addmm.default",)])
def test_fully_sharded_models_follow_the_plan(mesh: Any, saved: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = saving(whole(model, X), *saved)
    plain, before, after = sharded(copy.deepcopy(model), mesh), copy.deepcopy(model), sharded(copy.deepcopy(model), mesh)
    rematic.apply(before, plan)
    rematic.apply(after, plan)

    def locally(tensors: list[Any]) -> list[Tensor]:
        return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]

    expected = locally(results(plain, X, passes=2))
    runs = Runs(monkeypatch, Layer)
    for model in (sharded(before, mesh), after):
        check_equal(locally(results(model, X, passes=2)), expected)
    assert runs.count == 2 * 2 * 6


def test_modules_that_are_sharded_inside_a_region(mesh: Any) -> None:
    model = nn.Sequential(Stack(), nn.Linear(4, 4))
    plan = whole(model, X, only="0")
    sharded(model[0], mesh)
    rematic.apply(model, plan)
    with pytest.raises(rematic.Mismatch, match=r"Inside it `layers.0` is sharded by itself"):
        model(X)
