"""Train a tensor parallel model under a memory budget per device.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py             # two processes on the CPU, in seconds

The model is captured as it is spread, by every process for itself; its ranks take the same memory, so they make the same plan,
which matters: what a plan runs again communicates again, and all ranks must do so together.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F

import rematic


class Layer(nn.Module):
    """A feed-forward network with a residual."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, layers, dim, vocab):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.output = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def spread(model, mesh):
    """Widths are spread inside of layers, and the sequence between them."""
    inside = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, inside)
    outside = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, outside)


def main():
    parser = argparse.ArgumentParser(description="Train a tensor parallel model under a memory budget per device.")
    for name, default in {"layers": 4, "dim": 64, "vocab": 512, "seq": 128, "batch": 8, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=0.8, help="the most memory that a step may take, as a share of what it takes")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    # Every rank sees the same tokens, and begins with the same weights.
    torch.manual_seed(0)
    text = torch.randint(args.vocab, (args.batch, args.seq + 1))
    tokens, targets = text[:, :-1], text[:, 1:]
    model = spread(Model(args.layers, args.dim, args.vocab), mesh)

    def loss_of(logits):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    trace = rematic.capture(model, tokens, loss=loss_of, device="cpu")
    plan = rematic.plan(trace, int(args.share * trace.peak()))
    if dist.get_rank() == 0:
        print(plan)
    rematic.apply(model, plan)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        loss = loss_of(model(tokens))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.barrier()  # nobody leaves while another still waits for it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
