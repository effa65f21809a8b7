"""Steps of models that are sharded or tensor parallel on the fake GPU, against captures of the same models.

    run parallel.py REMATIC [NAME...]     REMATIC is the command; a line for each step, and under plans for five budgets

Models are built without memory and spread, then their parts are made; the third step is measured. Captures are of the same models
without memory, in a cluster that is not there.
"""
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from real import peaks, three_steps, without_values
from sharded import compare, put_on, ready

import models

LLAMA, SEED = "llama-3-8b.json", "seed"


def tensor_parallel(module: torch.nn.Module, mesh) -> None:
    """As PyTorch's own tests do: sequence parallel between the layers, heads and widths spread inside."""
    type(module).parallelize(module, mesh, use_seq_parallel=True, local_output_for_attn=True)


def fully(module: torch.nn.Module, mesh, **how) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in getattr(module, "model", module).layers:
        fully_shard(layer, mesh=mesh, **how)
    fully_shard(module, mesh=mesh, **{name: value for name, value in how.items() if name != "reshard_after_forward"})


def both(module: torch.nn.Module, mesh) -> None:
    tensor_parallel(module, mesh["tp"])
    fully(module, mesh["dp"])


def mixed(module: torch.nn.Module, mesh) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    fully(module, mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def kept(module: torch.nn.Module, mesh) -> None:
    fully(module, mesh, reshard_after_forward=False)


# The model's config or the seed model, tokens, layers, type, axes, rank, and how it is spread.
CASES: dict[str, tuple[str, int, int, torch.dtype, dict[str, int], int, Callable]] = {
    "seed-tp": (SEED, 1024, 4, torch.float32, {"tp": 8}, 0, tensor_parallel),
    "seed-both": (SEED, 1024, 4, torch.float32, {"dp": 8, "tp": 8}, 13, both),
    "seed-both-bf16": (SEED, 2048, 8, torch.bfloat16, {"dp": 64, "tp": 4}, 255, both),
    "small": (LLAMA, 2048, 2, torch.bfloat16, {"dp": 8}, 0, fully),
    "8": (LLAMA, 8192, 32, torch.bfloat16, {"dp": 8}, 0, fully),
    "1024": (LLAMA, 8192, 32, torch.bfloat16, {"dp": 1024}, 1023, fully),
    "kept": (LLAMA, 8192, 32, torch.bfloat16, {"dp": 8}, 0, kept),
    "mixed": (LLAMA, 8192, 32, torch.float32, {"dp": 64}, 5, mixed),
    "hsdp": (LLAMA, 8192, 32, torch.bfloat16, {"replicate": 2, "shard": 4}, 7, fully),
}


def model_of(name: str) -> models.Model:
    config, length, layers, dtype, *_ = CASES[name]
    if config == SEED:
        return models.seed(layers, 1024, 16, 32000, 4, length, dtype)
    return models.decoder(config, 1, length, dtype, "adamw", num_hidden_layers=layers)


def spread(name: str, mesh) -> torch.nn.Module:
    *_, how = CASES[name]
    module = models.built(model_of(name), "meta")
    how(module, mesh)
    return module


def train(name: str, plan: str | None = None, _late: bool = True) -> dict[str, int]:
    """Three steps; the counters of the third."""
    import rematic

    without_values()
    *_, axes, rank, _ = CASES[name]
    with rematic.cluster(_gpus(axes), rank, axes) as mesh:
        module = spread(name, mesh)
        module.to_empty(device="cuda")
        if plan is not None:
            put_on(module, plan)
        return peaks(three_steps(model_of(name), module))


def capture(name: str, path: str) -> None:
    """What is predicted of the same step."""
    import rematic

    *_, axes, rank, _ = CASES[name]
    model = model_of(name)
    with rematic.cluster(_gpus(axes), rank, axes) as mesh:
        batch = model.batch()
        # The seed model takes its tokens by position.
        given = [batch.pop("tokens")] if "tokens" in batch else []
        optimizer = models.OPTIMIZERS[model.optimizer]
        trace = rematic.capture(spread(name, mesh), *given, loss=models.loss, optimizer=optimizer, device="cuda", **batch)
    trace.save(path)


def _gpus(axes: dict[str, int]) -> int:
    gpus = 1
    for size in axes.values():
        gpus *= size
    return gpus


def captured(name: str, path: str) -> None:
    """In a process without the GPU that is not there."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([sys.executable, __file__, "--capture", name, path], check=True, env=environment)


def main(command: str, names: list[str]) -> None:
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as place:
            step = f"{place}/step.rmt"
            captured(name, step)
            ready(model_of(name))
            compare(command, name, [step], partial(train, name), lates=(True,))


if __name__ == "__main__":
    if sys.argv[1] == "--capture":
        capture(*sys.argv[2:])
    else:
        main(sys.argv[1], sys.argv[2:])
