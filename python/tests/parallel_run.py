"""What one of several processes does for `test_parallel`: captures a model that is spread over them, trains it without a plan and
with plans, and prints losses and peaks as JSON, one line per process.

    torchrun --standalone --nproc-per-node 4 parallel_run.py both     or fsdp, tp
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed._tensor.common_dtensor import Transformer
from torch.utils._python_dispatch import TorchDispatchMode

import rematic
from fsdp2_run import BATCH, MARK, SEQ, VOCAB, adam, build, loss_of, shard, train
from rematic._model.storages import StorageRef
from rematic._model.trees import tensors_in
from rematic._model.wrapped import has_wrapped

AXES = {"fsdp": ("dp",), "tp": ("tp",), "both": ("dp", "tp")}


def spread(mesh: DeviceMesh) -> nn.Module:
    """The model, tensor parallel along one axis and sharded along the other."""
    model = build()
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        Transformer.parallelize(model, mesh["tp"], use_seq_parallel=True, local_output_for_attn=True)
    if "dp" in names:
        shard(model, mesh["dp"])
    return model


class Meter(TorchDispatchMode):
    """Counts the bytes of what operators make, as long as it is there, whichever thread lets go of it last: what gloo has sent is
    held by a thread of its own, whose memory the profiler does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        # The most in each step.
        self.most: list[int] = []
        self._refs: dict[int, StorageRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if has_wrapped(types):
            return NotImplemented
        if func.namespace == "profiler" and isinstance(args[0], str) and args[0] == MARK:
            self.most.append(self.now)
        # By that, what Python made of a number is seen first.
        given = () if func is torch.ops.aten.lift_fresh.default else (args, kwargs)
        for tensor in tensors_in(given):
            # What was there before counts as it changes.
            self._note(tensor.untyped_storage(), 0)
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if tensor.device.type == "cpu" and not has_wrapped([type(tensor)]):
                self._note(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        return out

    def _note(self, storage: torch.UntypedStorage, size: int) -> None:
        if storage._cdata in self._refs:
            return
        ref = StorageRef(storage, self._gone)
        ref.address, ref.row = storage._cdata, size
        self._refs[ref.address] = ref
        self._count(ref.row)

    def _gone(self, ref: StorageRef) -> None:
        del self._refs[ref.address]
        self._count(-ref.row)

    def _count(self, size: int) -> None:
        self.now += size
        if self.most:
            self.most[-1] = max(self.most[-1], self.now)

    @contextlib.contextmanager
    def resizing(self) -> Iterator[None]:
        """While it is entered, storages that are resized are counted as they are."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            change = size - storage.nbytes()
            out = original(storage, size)
            self._note(storage, 0)
            self._refs[storage._cdata].row += change
            self._count(change)
            return out

        with mock.patch.object(torch.UntypedStorage, "resize_", resize):
            yield


def run(tokens: Tensor, mesh: DeviceMesh, plan: rematic.Plan | None) -> dict[str, Any]:
    """Losses, final weights and peak of one training run."""
    model, batch = spread(mesh), tokens.clone()
    if plan is not None:
        rematic.apply(model, plan)
    gc.collect()
    meter = Meter()
    with meter.resizing(), meter:
        losses, held = train(model, batch)
    parameters = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    weights = [parameter.double().square().sum().item() for parameter in parameters]
    # In the first step, the optimizer makes its state. What a thread of gloo's holds a moment longer is not there in all.
    return {"losses": losses, "weights": weights, "peak": held[0] + min(meter.most[1:])}


def refused(mesh: DeviceMesh, plan: rematic.Plan) -> str:
    """What is said of a plan for another layout."""
    model = spread(mesh)
    forwards = [module.__dict__.get("forward") for module in model.modules()]
    try:
        rematic.apply(model, plan)
    except rematic.PlanError as error:
        assert [module.__dict__.get("forward") for module in model.modules()] == forwards
        return str(error)
    return "nothing"


def main(kind: str) -> None:
    dist.init_process_group("gloo")
    axes, gpus = AXES[kind], dist.get_world_size()
    shape = (gpus,) if len(axes) == 1 else (gpus // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
    # Ranks along the tensor parallel axis see the same tokens.
    seed = mesh["dp"].get_local_rank() if "dp" in axes else 0
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(seed))
    trace = rematic.capture(spread(mesh), tokens, loss=loss_of, optimizer=adam, device="cpu")
    answer: dict[str, Any] = {"rank": dist.get_rank(), "plain": run(tokens, mesh, None)}
    try:
        rematic.plan(trace, 1)
    except rematic.Infeasible as infeasible:
        least = infeasible.least_budget
    budgets = {"75 %": trace.peak() * 3 // 4, "half": trace.peak() // 2, "the least": least}
    made: dict[int, dict[str, Any]] = {}
    for name, budget in budgets.items():
        plan = rematic.plan(trace, max(least, budget))
        promise = {"baseline": plan.baseline_peak, "promise": plan.peak, "regions": len(plan.regions)}
        # What cannot be had is the least for both.
        made[plan.budget] = made.get(plan.budget) or {**promise, **run(tokens, mesh, plan)}
        answer[name] = made[plan.budget]
    if kind != "both":
        whole = rematic.capture(build(), tokens, loss=loss_of, optimizer=adam, device="cpu")
        other = whole.fsdp(2 * gpus)
        answer["other layout"] = refused(mesh, rematic.plan(other, other.peak() * 9 // 10))
    # In one write: the other process prints into the same pipe.
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
