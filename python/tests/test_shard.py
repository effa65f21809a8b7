"""FSDP2 as a plan has it: which modules are sharded, which of them reshard, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import rematic

if TYPE_CHECKING:
    from collections.abc import Iterator


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = torch.relu(part(x))
        return x


class Model(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture
def ranks() -> Iterator[None]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    distributed.destroy_process_group()


def reshards(module: nn.Module) -> bool:
    return module._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info is not None


@pytest.mark.usefixtures("ranks")
def test_a_plan_of_a_captured_step_shards_its_model() -> None:
    trace = rematic.capture(Model(), torch.randn(64, 16), device="cuda").fsdp(8)
    plan = rematic.plan(trace, "1GiB")
    assert plan.facts["units"] == "5"
    model = Model()
    assert rematic.shard(model, plan, init_device_mesh("cpu", (8,))) is model
    assert [reshards(layer) for layer in model.layers] == [True] * 4
    assert model.layers[0].parts[0].weight.to_local().shape == (2, 16)
    assert not isinstance(model.layers[0].parts[0], distributed.fsdp.FSDPModule)


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [({"reshard": "no"}, [False] * 4), ({"gathered": "1"}, [True] * 3 + [False]), ({"gathered": "3"}, [True] + [False] * 3)],
)
def test_the_last_layers_stay_gathered_as_planned(facts: dict[str, str], expected: list[bool]) -> None:
    model = Model()
    plan = SimpleNamespace(facts={"fsdp": "8", "units": "5", "shards": "fp32", **facts})
    rematic.shard(model, plan, init_device_mesh("cpu", (8,)))
    assert [reshards(layer) for layer in model.layers] == expected
    policy = model.layers[0]._get_fsdp_state()._mp_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize(
    ("facts", "shape", "layers", "said"),
    [
        ({}, (8,), 4, "a step that FSDP2 does not shard; plan one with --fsdp"),
        ({"fsdp": "4"}, (8,), 4, "a mesh of 4 GPUs, and this one has 8; make one of that shape"),
        ({"fsdp": "4", "replicas": "2"}, (4, 2), 4, "a mesh of 2 × 4 GPUs, and this one has 4 × 2"),
        ({"fsdp": "8", "units": "5"}, (8,), 3, "for 4 sharded layers, and the model has 3: plan this model"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    facts: dict[str, str], shape: tuple[int, ...], layers: int, said: str
) -> None:
    model = Model(layers)
    with pytest.raises(rematic.PlanError, match=said):
        rematic.shard(model, SimpleNamespace(facts=facts), init_device_mesh("cpu", shape))
    assert not any(isinstance(module, distributed.fsdp.FSDPModule) for module in model.modules())
