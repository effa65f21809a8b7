"""Takes 15 GB."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(1024) for _ in range(8)))

    def forward(self, x):
        return self.blocks(x)


with torch.device("cuda"):
    net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    x = torch.randn(64, 1024, 1024, device="cuda")
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
