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
# Counts, orders, and what is written in place.
labels = torch.tensor([3, 1, 3, 0, 1, 3]).cuda()
assert labels.bincount(minlength=5).tolist() == [1, 2, 0, 3, 0]
assert torch.nn.functional.one_hot(labels, 4).sum(0).tolist() == [1, 2, 0, 3]
assert torch.histc(labels.float(), bins=4, min=0, max=3).int().tolist() == [1, 2, 0, 3]
assert [part.tolist() for part in labels.unique(return_counts=True)] == [[0, 1, 3], [1, 2, 3]]
assert labels.argsort(stable=True).tolist() == [3, 1, 4, 0, 2, 5] and labels.topk(1).values.tolist() == [3]
assert torch.repeat_interleave(labels[:2]).tolist() == [0, 0, 0, 1]
filled = torch.zeros(2, 3, dtype=torch.long, device="cuda")
filled[:, 1] = 7
filled[0, ::2] += 2
assert filled.tolist() == [[2, 7, 2], [0, 7, 0]]
filled.view(-1).scatter_add_(0, labels, torch.ones_like(labels))
assert filled.tolist() == [[3, 9, 2], [3, 7, 0]]
filled[filled == 3] = -1
assert filled.tolist() == [[-1, 9, 2], [-1, 7, 0]]
# Memory that another tensor has had says nothing.
del x, mask, positions
assert torch.empty(10, dtype=torch.long, device="cuda").tolist() == [0] * 10
# What only a kernel knows.
assert torch.randn(3, device="cuda").tolist() == [0, 0, 0]
# Zeros that a kernel counts into are not known any more.
drawn = torch.randint(0, 4, (9,), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
hits = torch.zeros(4, dtype=torch.long, device="cuda").scatter_add_(0, drawn, torch.ones_like(drawn))
assert hits.tolist() == [0] * 4
