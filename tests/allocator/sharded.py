"""Steps under FSDP2 on the fake GPU, against what we predict for them.

    run sharded.py REMATIC     REMATIC is the command; a line for each step, then each under plans for 75 %, 50 % and the least budget

The model is built without memory and sharded, then its shards are made, as for one that no single device holds. The third step is
measured.
"""
import json
import os
import subprocess
import sys
import tempfile
from functools import partial

import torch
from real import in_child, peaks, three_steps, without_values

import models

SEED = ["seed-transformer"]
GPT2 = ["gpt2", "--batch", "4", "--seq", "512"]
LLAMA = ["llama-3-8b", "--batch", "1", "--seq", "8192", "--optimizer", "adamw"]
# What is asked of the command, beside the model: GPUs, groups, rank, reshard, mixed.
CASES = [
    (SEED, 2, 1, 0, True, False),
    (SEED, 8, 1, 0, False, False),
    (SEED, 3, 1, 2, True, False),
    (GPT2, 8, 1, 0, True, False),
    (GPT2, 8, 1, 7, True, False),
    (GPT2, 4, 2, 3, True, False),
    (LLAMA, 8, 1, 0, True, False),
    (LLAMA, 64, 1, 0, True, False),
    (LLAMA, 1024, 1, 1023, True, False),
    (LLAMA, 8, 1, 0, False, False),
    (LLAMA, 4, 2, 0, True, False),
    (LLAMA, 8, 1, 0, True, True),
    (LLAMA, 64, 1, 0, False, True),
]


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


def train(name: str, how: tuple, plan: str | None) -> dict[str, int]:
    """Three steps; the counters of the third."""
    without_values()
    model = model_of(name, how[-1])
    module = models.built(model, "meta")
    shard(module, *how)
    module.to_empty(device="cuda")
    if plan is not None:
        import rematic

        # Nothing is computed on the fake GPU, so there are no numbers to compare.
        rematic.apply(module, rematic.Plan.load(plan), audit=0)
    return peaks(three_steps(model, module))


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


def main(command: str) -> None:
    for (name, *options), *how in CASES:
        gpus, groups, rank, reshard, mixed = how
        spread = ["--fsdp", str(gpus), "--replicate", str(groups), "--fsdp-rank", str(rank % gpus)]
        spread += ["--reshard", "yes" if reshard else "no"] + (["--precision", "mixed"] if mixed else [])
        # More room than the step takes, so that nothing has to be released.
        step = [name, *options, *spread, "--device-file", "ROOMY", "--device", "roomy"]
        with tempfile.TemporaryDirectory() as place:
            step = [part.replace("ROOMY", roomy(place)) for part in step]
            plain = asked(command, "stats", *step)
            what = f"{name} {' '.join(spread)}"
            line(what, plain["peak"]["total"], plain["memory"], in_child(partial(train, name, tuple(how), None)))
            least = asked(command, "plan", *step, "--budget", "1MiB").get("least_budget_bytes", 0)
            for share in (0.75, 0.5, 0.0):
                budget = max(least, int(share * plain["peak"]["total"]))
                file = f"{place}/plan.json"
                found = asked(command, "plan", *step, "--budget", str(budget), "-o", file)
                real = in_child(partial(train, name, tuple(how), file))
                line(f"  planned for {budget:,}", found["peak_bytes"], found["memory"], real)


def roomy(place: str) -> str:
    path = f"{place}/devices.toml"
    with open(path, "w") as file:
        file.write(
            '[[device]]\nname = "roomy"\nproduct = "an H100 with more memory"\ntflops = { f32 = 67, bf16 = 989 }\nmemory_gb = 100000\n'
            "capability = 90\nprocessors = 132\ndram_gb_per_s = 3350\nlink_gb_per_s = 450\npcie = 5\n"
        )
    return path


if __name__ == "__main__":
    main(sys.argv[1])
