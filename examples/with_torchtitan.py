"""An epoch of torchtitan's Llama, sharded by its own parallelize function, under a memory budget.

    python examples/with_torchtitan.py               # one rank on the CPU, in seconds
    torchrun --nproc-per-node 2 examples/with_torchtitan.py

torchtitan's own Trainer needs a GPU; the loop here does what it does. With the Trainer, the two lines with `spec` are all.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.tools import utils

from rematic.integrations.torchtitan import parallelize

SEQUENCE = 256
utils.device_type = parallel_dims.device_type = "cpu"


def train(budget):
    """Trains with a plan for the budget, or without one; returns the model, and the plan."""
    spec = model_registry("debugmodel", attn_backend="varlen")
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # varlen attention needs a GPU
        layer.attention.rope.max_seq_len = SEQUENCE
    if budget is not None:
        spec.parallelize_fn = parallelize(spec.parallelize_fn, budget=budget)

    training = TrainingConfig(local_batch_size=2, seq_len=SEQUENCE, mixed_precision_param="float32", disable_cuda_graphs=True)
    parallelism = ParallelismConfig(spmd_backend="partial_dtensor")
    dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    dims.build_mesh()
    with torch.device("meta"):
        model = spec.model.build()
    model = spec.parallelize_fn(
        model, parallel_dims=dims, training=training, parallelism=parallelism, compile_config=CompileConfig(),
        ac_config=None, dump_folder=".",
    )  # fmt: skip
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights()
    model.train()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(2048, (4, 2, SEQUENCE + 1), generator=torch.Generator().manual_seed(dist.get_rank()))
    positions = torch.arange(SEQUENCE).expand(2, SEQUENCE).contiguous()
    for batch in tokens:
        optimizer.zero_grad()
        inputs, labels = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        loss = cross_entropy_loss(model(inputs, positions=positions), labels) / labels.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_norm, foreach=True)
        optimizer.step()
    return model, getattr(spec.parallelize_fn, "plan", None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="140MiB", help="what a step may take")
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    _, plan = train(parser.parse_args().budget)
    if dist.get_rank() == 0:
        print(plan)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
