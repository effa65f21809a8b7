"""Values on the device: those that were uploaded, and integers that follow from them."""

import torch

x = torch.tensor([[1, 2, 0], [4, 0, 0]]).cuda()
mask = x != 0
assert mask.tolist() == [[True, True, False], [True, False, False]]
assert not mask.all().item() and mask.any().item()
assert mask.sum(1).tolist() == [2, 1]
assert mask.nonzero().tolist() == [[0, 0], [0, 1], [1, 0]]
assert x[mask].shape == (3,)
positions = torch.arange(5, device="cuda")
assert positions.tolist() == [0, 1, 2, 3, 4] and (positions + 1).tolist() == [1, 2, 3, 4, 5]
positions += 3
assert positions[None].expand(2, 5).contiguous().tolist() == [[3, 4, 5, 6, 7]] * 2
assert torch.ones(2, 3, dtype=torch.long).cuda().to(torch.bool).all().item()
assert torch.where(mask, x, -100).tolist() == [[1, 2, -100], [4, -100, -100]]
assert x.clone().cpu().tolist() == x.tolist() and x.t().clone().tolist() == [[1, 4], [2, 0], [0, 0]]
# Arithmetic with numbers keeps its types.
loss = torch.ones((), device="cuda")
assert (loss * 2).dtype == torch.float32 and (2 + x).dtype == torch.int64 and (x.to(torch.int32) * 2).dtype == torch.int32
assert (x * 0.5).dtype == torch.float32 and (x.bool() + 1).dtype == torch.int64
# Memory that another tensor has had says nothing.
del x, mask, positions
assert torch.empty(10, dtype=torch.long, device="cuda").tolist() == [0] * 10
# What only a kernel knows.
assert torch.randn(3, device="cuda").tolist() == [0, 0, 0]
