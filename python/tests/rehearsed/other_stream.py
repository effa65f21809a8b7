"""Outputs of layers go to the host on a stream of their own, which the allocator is told of."""

import torch

LAYERS = 6
copies = torch.cuda.Stream()
net = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(LAYERS)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = [torch.empty(4096, 1024, pin_memory=True) for _ in range(LAYERS)]
for _ in range(10):
    x = torch.randn(4096, 1024, device="cuda")
    for layer, host in zip(net, kept, strict=True):
        x = layer(x).relu()
        doubled = x.detach() * 2
        copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            host.copy_(doubled, non_blocking=True)
            doubled.record_stream(copies)
        del doubled
    loss = x.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.current_stream().wait_stream(copies)
    loss.item()
