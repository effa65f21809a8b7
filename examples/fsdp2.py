"""Train a sharded model (FSDP2) under a memory budget per device.

    torchrun --nproc-per-node 2 examples/fsdp2.py                       # two processes on the CPU, in seconds
    torchrun --nproc-per-node 8 examples/fsdp2.py --device h100 --layers 32 --dim 4096 --heads 32 --vocab 32000 \\
        --seq 4096 --batch 2 --budget 60GiB

The model is captured as it is before sharding; `Trace.fsdp` then gives the step of one rank, with its shards and all buffers of
FSDP2. The first rank has the most rows, so its plan is right for all. The budget is for one device.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import rematic


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual."""

    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True, bias=False)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.1))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    """Tokens and targets in, the loss out."""

    def __init__(self, layers, dim, heads, vocab):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description="Train a sharded model under a memory budget per device.")
    for name, default in {"layers": 4, "dim": 64, "heads": 4, "vocab": 512, "seq": 128, "batch": 4, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu", help='"cpu", or a name of `rematic devices` for this machine\'s GPUs')
    parser.add_argument("--budget", default="9MiB", help="the most memory that a step may take on one device")
    args = parser.parse_args()

    kind = "cpu" if args.device == "cpu" else "cuda"
    dist.init_process_group("gloo" if kind == "cpu" else "nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if kind == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    mesh = init_device_mesh(kind, (world_size,))

    # 1. Build the model without memory, and plan before it is sharded.
    with torch.device("meta"):
        model = Transformer(args.layers, args.dim, args.heads, args.vocab)
    text = torch.randint(args.vocab, (args.batch, args.seq + 1), generator=torch.Generator().manual_seed(rank))
    tokens, targets = text[:, :-1], text[:, 1:]
    trace = rematic.capture(model, tokens, targets, device=kind)
    if world_size > 1:
        trace = trace.fsdp(world_size)
    options = {} if kind == "cpu" else {"device": args.device}
    plan = rematic.plan(trace, args.budget, **options)
    if rank == 0:
        print(plan)

    # 2. Shard as usual. What the plan checkpoints must be sharded whole, or lie inside of what is sharded.
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=kind)
    torch.manual_seed(rank)
    for parameter in model.parameters():
        shard = parameter.to_local()
        nn.init.normal_(shard, std=0.02) if shard.dim() > 1 else nn.init.ones_(shard)

    # 3. Apply the plan; doing that before sharding works as well.
    rematic.apply(model, plan)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tokens, targets = tokens.to(kind), targets.to(kind)
    for step in range(args.steps):
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean.item():.4f}")
    dist.barrier()  # nobody leaves while another still waits for it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
