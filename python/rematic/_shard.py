"""Shards a model with FSDP2 the way that a plan was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from rematic._core import Plan, PlanError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(model: nn.Module, plan: Plan, mesh: DeviceMesh) -> nn.Module:
    """Calls PyTorch's `fully_shard` on the layers and on the model, as the plan's step was sharded; returns the model.

    Which layers keep their weights between forward and backward, and whether shards are fp32, is as planned
    (`rematic plan … --fsdp N --reshard auto`, `Trace.fsdp`). `mesh` has one dimension, or two for replicas of the model,
    those of the replicas first. `rematic.apply(model, plan)` may come before or after it. If something does not fit, a
    `PlanError` says so, and nothing was changed.
    """
    facts = plan.facts
    if "fsdp" not in facts:
        raise PlanError("the plan is for a step that FSDP2 does not shard; plan one with --fsdp, or with Trace.fsdp")
    _check_mesh(mesh, int(facts["fsdp"]), int(facts.get("replicas", 1)))
    layers = _layers(model)
    units = int(facts.get("units", len(layers) + 1))
    if len(layers) + 1 != units:
        raise PlanError(
            f"the plan is for {units - 1} sharded layers, and the model has {len(layers)}: plan this model, or call "
            "fully_shard yourself"
        )
    policy = MixedPrecisionPolicy()
    if "shards" in facts:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kept = len(layers) if facts.get("reshard") == "no" else int(facts.get("gathered", 0))
    for index, layer in enumerate(layers):
        reshard = index < len(layers) - kept
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _check_mesh(mesh: DeviceMesh, ranks: int, replicas: int) -> None:
    shape = tuple(mesh.shape)
    wanted = (ranks,) if replicas == 1 else (replicas, ranks)
    if shape != wanted:
        raise PlanError(
            f"the plan is for a mesh of {' × '.join(map(str, wanted))} GPUs, and this one has "
            f"{' × '.join(map(str, shape))}; make one of that shape, or plan for this one"
        )


def _layers(model: nn.Module) -> list[nn.Module]:
    """The modules in lists which are not called themselves, the outermost ones, if they have parameters."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, nn.ModuleList):
            continue
        for layer in module:
            if id(layer) not in inside and next(layer.parameters(), None) is not None:
                found.append(layer)
                inside.update(id(part) for part in layer.modules())
    return found
