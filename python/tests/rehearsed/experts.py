"""A mixture of experts by hand. The choice is the router's, or one that was uploaded; how tokens find their expert varies."""

import sys

import torch
from torch import nn

SOURCE, WAY = sys.argv[1:]
DIM, EXPERTS, TOP, TOKENS = 256, 8, 2, 4096
PLANNED = torch.arange(TOKENS * TOP).reshape(TOKENS, TOP) % EXPERTS


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM)) for _ in range(EXPERTS)
        )
        self.register_buffer("planned", PLANNED.clone())

    def forward(self, x):
        weights, choice = self.router(x).softmax(-1).topk(TOP, -1)
        if SOURCE == "uploaded":
            choice = self.planned.clone()
        if WAY == "nonzero":
            return self.one_by_one(x, weights, choice)
        return self.in_order(x, choice.flatten())

    def one_by_one(self, x, weights, choice):
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = (choice == number).nonzero(as_tuple=True)
            if rows.numel():
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        return out

    def in_order(self, x, choice):
        counts = choice.bincount(minlength=EXPERTS)
        assert counts.tolist() == nn.functional.one_hot(choice, EXPERTS).sum(0).tolist()
        assert counts.tolist() == [TOKENS * TOP // EXPERTS] * EXPERTS
        order = choice.argsort() // TOP
        parts = x[order].split(counts.tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        return torch.zeros_like(x).index_add_(0, order, out)


net = Experts().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(4):
    net(torch.randn(TOKENS, DIM, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
