"""Steps under FSDP2 on the fake GPU, against what we predict for them.

    run sharded.py REMATIC [NAME...]     REMATIC is the command; a line for each step, then each under plans for five budgets, put on
                                         before and after the model is sharded

The model is built without memory and sharded, then its shards are made, as for one that no single device holds. The third step is
measured.
"""
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from real import in_child, made_once, peaks, three_steps, without_values

import models

SEED = ["seed-transformer"]
GPT2 = ["gpt2", "--batch", "4", "--seq", "512"]
LLAMA = ["llama-3-8b", "--batch", "1", "--seq", "8192", "--optimizer", "adamw"]
# What is asked of the command, beside the model: GPUs, groups, rank, reshard, mixed.
CASES = {
    "seed": (SEED, 2, 1, 0, True, False),
    "seed-kept": (SEED, 8, 1, 0, False, False),
    "seed-last": (SEED, 3, 1, 2, True, False),
    "gpt2": (GPT2, 8, 1, 0, True, False),
    "gpt2-last": (GPT2, 8, 1, 7, True, False),
    "gpt2-hsdp": (GPT2, 4, 2, 3, True, False),
    "llama": (LLAMA, 8, 1, 0, True, False),
    "llama-64": (LLAMA, 64, 1, 0, True, False),
    "llama-1024-last": (LLAMA, 1024, 1, 1023, True, False),
    "llama-kept": (LLAMA, 8, 1, 0, False, False),
    "llama-hsdp": (LLAMA, 4, 2, 0, True, False),
    "llama-mixed": (LLAMA, 8, 1, 0, True, True),
    "llama-64-mixed-kept": (LLAMA, 64, 1, 0, False, True),
}
# Of the plain step's peak; 0 is the least budget there is.
SHARES = (0.9, 0.75, 0.6, 0.5, 0.0)


def model_of(name: str, mixed: bool) -> models.Model:
    if name == "seed-transformer":
        return models.MODELS["seed"]()
    dtype = torch.float32 if mixed or name == "gpt2" else torch.bfloat16
    batch, length = (4, 512) if name == "gpt2" else (1, 8192)
    return models.decoder(f"{name}.json", batch, length, dtype, "adam" if name == "gpt2" else "adamw")


def shard(module: torch.nn.Module, gpus: int, groups: int, rank: int, reshard: bool, mixed: bool) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=gpus * groups, store=FakeStore())
    shape, names = ((groups, gpus), ("replicate", "shard")) if groups > 1 else ((gpus,), ("shard",))
    mesh = dist.init_device_mesh("cuda", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    body = getattr(module, getattr(module, "base_model_prefix", ""), module)
    for layer in getattr(body, "layers", None) or body.h:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(module, mesh=mesh, mp_policy=policy)


def train(name: str, how: tuple, plan: str | None = None, late: bool = True) -> dict[str, int]:
    """Three steps; the counters of the third. A plan is put on after sharding, or before."""
    without_values()
    model = model_of(name, how[-1])
    module = models.built(model, "meta")
    if plan is not None and not late:
        put_on(module, plan)
    shard(module, *how)
    module.to_empty(device="cuda")
    if plan is not None and late:
        put_on(module, plan)
    return peaks(three_steps(model, module))


def put_on(module: torch.nn.Module, plan: str) -> None:
    import rematic

    # Nothing is computed on the fake GPU, so there are no numbers to compare.
    rematic.apply(module, rematic.Plan.load(plan), audit=0)


def asked(command: str, *arguments: str) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([command, *arguments, "--json"], capture_output=True, text=True, env=environment)
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def line(what: str, promised: int, memory: dict[str, int], real: dict[str, int]) -> None:
    if "allocated" not in real:
        print(f"{what}: {real}", flush=True)
        return
    parts = [f"promised {promised:,} of {real['requested']:,} ({promised / real['requested'] - 1:+.3%})"]
    for kind in ("allocated", "reserved"):
        ours = memory[f"{kind}_bytes"]
        parts.append(f"{kind} {ours:,} of {real[kind]:,} ({ours / real[kind] - 1:+.3%})")
    print(f"{what}: {'; '.join(parts)}", flush=True)


def ready(model: models.Model) -> None:
    """Imports all that a step needs once, before the processes part."""
    for name in ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.testing._internal.distributed.fake_pg", "rematic"):
        importlib.import_module(name)
    made_once(model)


def compare(command: str, what: str, step: list[str], train: Callable[..., dict[str, int]], lates=(True, False)) -> None:
    """A line for the plain step, and for each plan and moment to put it on. `train` takes the plan's file, and whether it is late."""
    with tempfile.TemporaryDirectory() as place:
        # More room than the step takes, so that nothing has to be released.
        question = [*step, "--device-file", roomy(place), "--device", "roomy"]
        plain = asked(command, "stats", *question)
        line(what, plain["peak"]["total"], plain["memory"], in_child(train))
        least = asked(command, "plan", *question, "--budget", "1MiB").get("least_budget_bytes", 0)
        for share in SHARES:
            budget, file = max(least, int(share * plain["peak"]["total"])), f"{place}/plan.json"
            found = asked(command, "plan", *question, "--budget", str(budget), "-o", file)
            if "peak_bytes" not in found:
                print(json.dumps(found)[:300], flush=True)
                continue
            for late in lates:
                when = "after" if late else "before"
                real = in_child(partial(train, file, late))
                line(f"  planned for {budget:,}, {when}", found["peak_bytes"], found["memory"], real)


def main(command: str, *names: str) -> None:
    for name in names or CASES:
        (model, *options), *how = CASES[name]
        gpus, groups, rank, reshard, mixed = how
        spread = ["--fsdp", str(gpus), "--replicate", str(groups), "--fsdp-rank", str(rank % gpus)]
        spread += ["--reshard", "yes" if reshard else "no"] + (["--precision", "mixed"] if mixed else [])
        ready(model_of(model, mixed))
        compare(command, f"{model} {' '.join(spread)}", [model, *options, *spread], partial(train, model, tuple(how)))


def roomy(place: str) -> str:
    path = f"{place}/devices.toml"
    with open(path, "w") as file:
        file.write(
            '[[device]]\nname = "roomy"\nproduct = "an H100 with more memory"\ntflops = { f32 = 67, bf16 = 989 }\nmemory_gb = 100000\n'
            "capability = 90\nprocessors = 132\ndram_gb_per_s = 3350\nlink_gb_per_s = 450\npcie = 5\n"
        )
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
