"""Train a small GPT, written by hand, under a memory budget.

    python examples/nanogpt.py                      # small, on the CPU, in seconds
    python examples/nanogpt.py --budget 30MiB       # tighter: more is recomputed
    python examples/nanogpt.py --layers 12 --dim 768 --heads 12 --vocab 50304 --seq 1024 --batch 8 --device cuda \\
        --budget 8GiB

The only line that Rematic needs is the one with `rematic.auto`. The training loop stays as it was.
"""

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional as F

import rematic


class Block(nn.Module):
    """Attention and a feed-forward network, each added to what comes in."""

    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens and targets in, the loss out."""

    def __init__(self, layers, dim, heads, vocab, seq, dropout=0.1):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        self.head.weight = self.tokens.weight  # tied, as in GPT-2

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description="Train a small GPT under a memory budget.")
    for name, default in {"layers": 4, "dim": 128, "heads": 4, "vocab": 1024, "seq": 128, "batch": 8, "steps": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--budget", default="40MiB", help="the most memory that a step may take")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT(args.layers, args.dim, args.heads, args.vocab, args.seq).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Something that can be learned: every token is the one before, plus one.
    starts = torch.randint(args.vocab, (args.batch, 1))
    text = ((starts + torch.arange(args.seq + 1)) % args.vocab).to(args.device)
    tokens, targets = text[:, :-1], text[:, 1:]

    # Captures one step (nothing runs for real), plans it, and makes the model follow the plan. On a machine with a GPU,
    # device=None means that one; without a budget, all of its memory.
    device = "cpu" if args.device == "cpu" else None
    plan = rematic.auto(model, tokens, targets, budget=args.budget, device=device, optimizer=optimizer)
    print(plan)

    def train_step():
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    for step in range(args.steps):
        print(f"step {step}: loss {train_step():.4f}")
    real = real_peak(train_step, [*model.parameters(), *optimizer_state(optimizer), text])
    print(f"peak: {real / 2**20:.1f} MiB, as promised {plan.peak / 2**20:.1f}; {plan.baseline_peak / 2**20:.1f} without a plan")


def optimizer_state(optimizer):
    return [value for values in optimizer.state.values() for value in values.values()]


def real_peak(step, held):
    """The most memory that a step really takes. `held` is what there is when it begins."""
    if torch.cuda.is_available() and held[0].is_cuda:
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated()
    # The CPU has no such counter; the profiler sees every allocation.
    with torch.profiler.profile(profile_memory=True) as profiled:
        step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    used = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return sum(tensor.nbytes for tensor in held) + max(used)


if __name__ == "__main__":
    main()
