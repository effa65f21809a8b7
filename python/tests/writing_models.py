"""Small models that change memory in place: inside a region, after it has returned, and before it runs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models import Build

WIDTH, ROWS = 32, 64


def wide(dropout: float = 0.0) -> nn.Sequential:
    """Something to recompute."""
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Dropout(dropout), nn.Linear(2 * WIDTH, WIDTH))


class Writing(nn.Module):
    """A layer; what it changes is said by its subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.a = wide()
        self.b = wide(0.1)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Residual(Writing):
    """The caller adds to what a region returned."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y += x
        return y + self.b(y)


class Convolved(nn.Module):
    """The same with batch norm, whose other outputs nobody changes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))
        self.b = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(True), nn.Linear(WIDTH, WIDTH))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y += x
        return self.relu(y + self.b(y))


class ThroughView(Writing):
    """A view of what a region returned is changed, and before that one inside."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(x).view(-1)
        y[: WIDTH * 4].mul_(2)
        return torch.sin(y.view_as(x)) + self.a(x)


class Filled(nn.Module):
    """Makes memory, writes parts of it, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = wide(), wide()

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(x.shape)
        out[:, ::2] = self.a(x)[:, ::2]
        out[:, 1::2] = torch.tanh(self.b(x))[:, 1::2]
        return out


class Collected(nn.Module):
    """The caller goes on writing to what a region has made."""

    def __init__(self) -> None:
        super().__init__()
        self.filled, self.after = Filled(), wide()

    def forward(self, x: Tensor) -> Tensor:
        out = self.filled(x)
        out[0] = 1.0
        return x + self.after(out)


class ActivatedFirst(nn.Module):
    """A region that changes its own argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.before = wide()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.before(x) * 2)


class ArgumentChanged(Writing):
    """What a region was given is changed after it has returned. Only what does not need it may have read it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = self.a(y.sum(0, keepdim=True).expand_as(y)) + 0
        gate = Shifted.apply_to(y)
        y.add_(1)
        return self.b(y) + gate + z


class Shifted(nn.Module):
    """Reads its argument without saving it for backward."""

    @staticmethod
    def apply_to(y: Tensor) -> Tensor:
        return torch.tanh((y + 3) * 0.5)


class Shifting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, y: Tensor) -> Tensor:
        return self.inner(y + 3)


class GivenAway(nn.Module):
    """The caller changes a region's argument."""

    def __init__(self) -> None:
        super().__init__()
        self.shifting, self.a = Shifting(), wide()

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = self.shifting(y)
        y.mul_(3)
        return self.a(y) + z


class Counting(nn.Module):
    """Reads a buffer, then changes it; and the next call reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = wide(0.1)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x - self.mean)
        with torch.no_grad():
            self.mean.lerp_(y.mean(0).float(), 0.1)
            self.count += 1
        return torch.tanh(y + self.mean) + x


class Shared(nn.Module):
    """One layer called several times, which changes its buffers each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Counting()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        return x


class Board(nn.Module):
    """Layers write to one memory that their caller has made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(wide() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        board = x.new_zeros(3, *x.shape)
        for n, layer in enumerate(self.layers):
            x = x + layer(x)
            board[n] = x
        return board.square().mean(0) + x


class Cloned(nn.Module):
    """A copy is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = wide(), wide()

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, :4] += self.a(x)[:, :4]
        z = y.exp()
        y = y.clone()
        y.mul_(0.5).sigmoid_()
        return self.b(y) + z.clamp(max=2)


class Early(nn.Module):
    """Returns from the middle; what comes behind it does not run."""

    def __init__(self, stop: bool) -> None:
        super().__init__()
        self.a, self.b, self.stop = wide(), wide(), stop

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y.relu_()
        if self.stop:
            return y
        return self.b(y).add_(x)


class Masked(nn.Module):
    """Fills in place by a mask, draws into memory, and scatters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = wide(), wide()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.a(x) * 2
        scores.masked_fill_(x > 1, -1.0)
        noise = torch.empty_like(x).uniform_()
        noise.add_(0.5)
        out = torch.softmax(scores, -1) * noise
        out = out.index_add(0, torch.arange(4), self.b(x)[:4])
        return out.scatter_add(1, torch.zeros(len(x), 1, dtype=torch.long), x[:, :1])


class Cast(nn.Module):
    """Runs another under autocast."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(*args, **kwargs)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "convolved": Convolved,
    "through-view": ThroughView,
    "collected": Collected,
    "activated-first": ActivatedFirst,
    "argument-changed": ArgumentChanged,
    "given-away": GivenAway,
    "counting": Counting,
    "shared": Shared,
    "board": Board,
    "cloned": Cloned,
    "early": lambda: nn.Sequential(Early(True), Early(False)),
    "masked": Masked,
}


def stacked(layer: Callable[[], nn.Module], cast: bool = False) -> Callable[[str], Build]:
    def build(device: str) -> Build:
        with torch.device(device):
            model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(layer() for _ in range(3)), nn.Linear(WIDTH, WIDTH))
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
        return (Cast(model) if cast else model).train(), (x,), {}

    return build


WRITING: dict[str, Callable[[str], Build]] = {
    **{name: stacked(layer) for name, layer in LAYERS.items()},
    **{f"{name}-autocast": stacked(layer, cast=True) for name, layer in LAYERS.items()},
}
