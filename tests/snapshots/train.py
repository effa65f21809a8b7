"""A small script as users write them: a transformer, its loss, its optimizer."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, dim=1)
        scores = q @ k.transpose(-2, -1) / 8
        weights = scores.softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, width=256, heads=4, layers=3, words=4096):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train(steps=2, batch=4, length=256, before=lambda: None):
    """Trains; `before` is called once the model is there."""
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    before()
    for _ in range(steps):
        tokens = torch.zeros(batch, length, dtype=torch.long, device="cuda")
        value = loss(model(tokens), tokens)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()


def fragments(pieces=6):
    """Leaves a small tensor in each large segment: most of the device is free when it runs out."""
    def empty(megabytes):
        return torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda")

    whole = [empty(128) for _ in range(pieces)]
    del whole
    kept, dropped = [], []
    for _ in range(pieces):
        kept.append(empty(12))
        dropped.append(empty(116))
    del dropped
    return empty(200), kept


def copies():
    """A copy on a second stream, whose source is dropped before that stream is done."""
    side = torch.cuda.Stream()
    for _ in range(4):
        source = torch.empty(24 << 20, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            copy = source.clone()
        source.record_stream(side)
        del source
    torch.cuda.empty_cache()
    return torch.empty(5 << 20, dtype=torch.uint8, device="cuda"), copy


def pools():
    """Some memory from a pool of its own, some from the common one."""
    pool = torch.cuda.MemPool()
    kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda")]
    with torch.cuda.use_mem_pool(pool):
        kept += [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (4, 30, 1)]
        del kept[1]
    kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
    return pool, kept


def two_devices():
    """A little on one GPU, more on the next."""
    small = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:0")
    return small, [torch.empty(30 << 20, dtype=torch.uint8, device="cuda:1") for _ in range(3)]
