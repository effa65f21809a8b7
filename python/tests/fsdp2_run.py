"""What one of several processes does for `test_fsdp2`: trains the same model sharded without a plan and with plans that are
applied before and after sharding, and prints losses and peaks as JSON, one line per process.

    torchrun --standalone --nproc-per-node 2 fsdp2_run.py
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

import rematic
from rematic._model.trees import tensors_in

# Large enough in batch and length that activations, not the buffers of sharding, make the peak.
BATCH, SEQ, DIM, VOCAB, LAYERS = 8, 128, 64, 512, 4
STEPS = 6
MARK = "one step"


def build() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_layers": LAYERS, "n_heads": 4, "vocab_size": VOCAB, "max_seq_len": SEQ, "dim": DIM}
    return Transformer(ModelArgs(**sizes, dropout_p=0.1))


def loss_of(output: Tensor) -> Tensor:
    return output.float().square().mean()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train(model: nn.Module, tokens: Tensor) -> tuple[list[float], list[int]]:
    """The loss of each step, and the bytes that are held when it begins."""
    optimizer = adam(model.parameters())
    # Each process draws its own numbers in dropout.
    torch.manual_seed(dist.get_rank())
    losses, held = [], []
    output = loss = None
    for _ in range(STEPS):
        state = [list(values.values()) for values in optimizer.state.values()]
        held.append(resident(list(model.parameters()), list(model.buffers()), state, tokens, output, loss))
        with record_function(MARK):
            output = model(tokens)
            loss = loss_of(output)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, held


def resident(*values: Any) -> int:
    """Bytes of this process's storages among some values."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors_in(values)]
    storages = [tensor.untyped_storage() for tensor in local]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def peak(events: list[Any], held: list[int]) -> int:
    """The most bytes that the allocator has given out at one time in a step, once the optimizer has its state.

    What gloo has sent may be freed by a thread of its own, which the profiler does not see: what is in use is known
    where a step begins, can seem too much inside, never too little, and the step where the least is missed counts.
    """
    moves = sorted((event.start_ns(), n, event.nbytes()) for n, event in enumerate(events) if event.name() == "[memory]")
    steps = sorted(event.start_ns() for event in events if event.name() == MARK)
    seen = [sum(size for time, _, size in moves if time < start) for start in steps]
    assert seen[0] == held[0], "before anything is sent, the two ways to count agree"
    assert all(more >= less for more, less in zip(seen, held, strict=True))
    found = []
    for step in range(1, STEPS):
        ends = steps[step + 1] if step + 1 < STEPS else math.inf
        total = most = held[step]
        for time, _, size in moves:
            if steps[step] <= time < ends:
                total += size
                most = max(most, total)
        found.append(most)
    return min(found)


def run(tokens: Tensor, mesh: DeviceMesh, plan: rematic.Plan | None, first: str) -> dict[str, Any]:
    """Losses, final weights and peak of one training run, in which `first` comes first: sharding, or the plan."""
    gc.collect()
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiled:
        batch = tokens.clone()
        model = build()
        if plan is not None and first == "plan":
            rematic.apply(model, plan)
        shard(model, mesh)
        if plan is not None and first == "sharding":
            rematic.apply(model, plan)
        losses, held = train(model, batch)
    local = [parameter.to_local().detach() for parameter in model.parameters()]
    weights = [hashlib.sha256(weight.numpy().tobytes()).hexdigest() for weight in local]
    return {"losses": losses, "weights": weights, "peak": peak(profiled.profiler.kineto_results.events(), held)}


def refused(tokens: Tensor, mesh: DeviceMesh, plan: rematic.Plan) -> str:
    """What is said of a plan for layers when their parts are sharded by themselves."""
    model = build()
    for layer in model.layers:
        for part in layer.children():
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    rematic.apply(model, plan)
    try:
        model(tokens)
    except rematic.PlanError as error:
        return str(error)
    return "nothing"


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(dist.get_rank()))
    whole = rematic.capture(build(), tokens, loss=loss_of, optimizer=adam, device="cpu")
    trace = whole.fsdp(dist.get_world_size(), rank=dist.get_rank())
    answer: dict[str, Any] = {"rank": dist.get_rank(), "plain": run(tokens, mesh, None, "")}
    try:
        rematic.plan(trace, 1)
    except rematic.Infeasible as infeasible:
        least = infeasible.least_budget
    budgets = {"75 %": trace.peak() * 3 // 4, "half": trace.peak() // 2, "the least": least}
    for name, budget in budgets.items():
        plan = rematic.plan(trace, max(least, budget))
        answer[name] = {
            "baseline": plan.baseline_peak,
            "promise": plan.peak,
            "regions": len(plan.regions),
            "plan first": run(tokens, mesh, plan, "plan"),
            "sharding first": run(tokens, mesh, plan, "sharding"),
        }
    answer["parts"] = refused(tokens, mesh, plan)
    # In one write: the other process prints into the same pipe.
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
