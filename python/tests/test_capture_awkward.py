"""What models do to autograd, against MemTracker operator by operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memtracker
from canonical import timeline
from rematic._capture.step import document as capture

Stats = Callable[..., dict[str, Any]]
WIDTH = 64


class Scaled(torch.autograd.Function):
    """Saves an input and its output, keeps a tensor on the context, and hands a saved tensor out as a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        out = x * scale
        ctx.save_for_backward(x, scale, out)
        ctx.kept = x + 1
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, scale, out = ctx.saved_tensors
        first = gradient * scale + ctx.kept
        del x, scale, out
        x, _scale, out = ctx.saved_tensors
        return out, first * x


class Normed(torch.autograd.Function):
    """Saves what it makes on the way, by other operators than its first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = centred.square().mean(-1, keepdim=True).rsqrt()
        out = centred * scale
        ctx.save_for_backward(x, centred, scale)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        x, centred, scale = ctx.saved_tensors
        return gradient * scale + centred * (gradient * x).mean()


class Norming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return Normed.apply(self.linear(x)).tanh()


class Changed(nn.Module):
    """Writes into tensors, views and copies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y[:, 0] = x[:, 1]
        y[:, 2:5].mul_(2)
        z = (y + 1).sigmoid_().clone()
        z /= z.sum(-1, keepdim=True)
        z.add_(y.detach().clamp_(min=0))
        return torch.where(z > 0, z, y.masked_fill_(y > 3, 1.0))


class Shared(nn.Module):
    """One layer twice, results that nobody uses, and a gradient that comes from several sides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1))
        self.scale = nn.Parameter(torch.ones(8, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layer(x)
        unused = self.layer(x).exp()
        first = self.layer(x)
        second, third = self.layer(first).chunk(2, dim=-1)
        del unused
        joined = torch.cat([second, third.relu(), torch.einsum("bi,bj->bi", second, third)], dim=-1)
        return joined.sum() * Scaled.apply(first, self.scale).mean() - target.norm()


class Hooked(nn.Module):
    """Gradients that hooks replace, and a gradient that is retained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.retain_grad()
        y.register_hook(lambda gradient: gradient * 2)
        return (y * y.softmax(-1)).logsumexp(-1)


class Saved(nn.Module):
    """Checkpoints of both kinds, one in the other."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.reentrant = reentrant

    def part(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=False).tanh() * x

    def forward(self, x: Tensor) -> Tensor:
        y = self.outer(x)
        return checkpoint(self.part, y, use_reentrant=self.reentrant, preserve_rng_state=False) + y


MODELS: dict[str, Callable[[], nn.Module]] = {
    "changed": Changed,
    "shared": Shared,
    "norming": Norming,
    "hooked": Hooked,
    "saved": lambda: Saved(False),
    "saved-reentrant": lambda: Saved(True),
    "attention": lambda: nn.TransformerEncoderLayer(WIDTH, 4, WIDTH),
    "weight-norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
}


def loss_of(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output[0]
    return output if output.dim() == 0 else output.square().mean()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_every_operator_equals_memtracker(name: str, device: str, stats: Stats) -> None:
    def build(place: str) -> Any:
        with torch.device(place):
            return MODELS[name](), (torch.zeros(8, WIDTH),), {}

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    is_real = device == "cpu"
    model, args, kwargs = build("cpu" if is_real else "meta")
    document = capture(model, *args, loss=loss_of, optimizer=optimizer, device=device, **kwargs)
    _, tracked = memtracker.track(build, device, loss_of, optimizer, with_modules=False, real=is_real)
    read = json.loads(document)
    assert [(op, total) for op, _, total in timeline(read, 1 if is_real else 512)] == tracked
    stats(document)
