"""A small network, compiled."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


net = torch.compile(nn.Sequential(Block(256), Block(256)).cuda())
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(4):
    loss = net(torch.randn(16, 512, 256, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
