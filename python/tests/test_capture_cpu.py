"""What is captured for the CPU is what the CPU runs: the operators of a step, and how their outputs lie in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._capture.step import document as capture
from rematic._model.trees import tensors_in

BATCH, LENGTH, WIDTH = 3, 5, 6
Row = tuple[str, list[tuple[list[int], list[int]]]]


class Ran(TorchDispatchMode):
    """Notes the operators that run, with the extents and strides of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.detach.default:
            layouts = [(list(tensor.shape), list(tensor.stride())) for tensor in tensors_in(out)]
            self.rows.append((str(func).removeprefix("aten."), layouts))
        return out


class Over(nn.Module):
    """A layer over a linear one, and another on top."""

    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, WIDTH)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.run(self.layer, self.first(x)))


def transposed(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.transpose(1, 2)).transpose(1, 2)


def as_it_is(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


def image(layer: nn.Module, x: Tensor) -> Tensor:
    """Channels last."""
    return layer(x.unsqueeze(1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(1, 2)


def turned(layer: nn.Module, x: Tensor) -> Tensor:
    """In no order that has a name."""
    return layer(x.permute(1, 2, 0)).permute(2, 0, 1)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("run", [transposed, image, turned])
@pytest.mark.parametrize("kind", ["batch", "batch-without-weights", "group"])
def test_norms(kind: str, run: Callable[[nn.Module, Tensor], Tensor], trains: bool) -> None:
    batch_norm: type[nn.Module] = nn.BatchNorm2d if run is image else nn.BatchNorm1d
    layer = nn.GroupNorm(2, WIDTH) if kind == "group" else batch_norm(WIDTH, affine=kind == "batch")
    check(Over(run, layer.train(trains)))


def mask(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


ATTENTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "3d": lambda x: attention(x, x, x),
    "3d-causal": lambda x: attention(x, x, x, is_causal=True),
    "3d-scaled": lambda x: attention(x, x, x, scale=0.5),
    "3d-mask-of-2": lambda x: attention(x, x, x, mask(LENGTH, LENGTH)),
    "3d-mask-of-3": lambda x: attention(x, x, x, mask(BATCH, LENGTH, LENGTH)),
    "3d-mask-of-bools": lambda x: attention(x, x, x, mask(BATCH, LENGTH, LENGTH, dtype=torch.bool)),
    "3d-dropout": lambda x: attention(x, x, x, dropout_p=0.25),
    "3d-other-width": lambda x: attention(x, x, torch.cat([x, x], -1))[..., :WIDTH],
    "3d-not-dense": lambda x: attention(x.transpose(1, 2), x.transpose(1, 2), x.transpose(1, 2)).transpose(1, 2),
    "3d-one-head": lambda x: attention(x, x[:1], x[:1]),
    "4d-one-head": lambda x: attention(x[None], x[None, :1], x[None, :1])[0],
    "4d-mask-of-3": lambda x: attention(x[None], x[None], x[None], mask(BATCH, LENGTH, LENGTH))[0],
    "2d": lambda x: attention(x[0], x[0], x[0])[None],
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    check(Over(lambda layer, x: ATTENTIONS[name](layer(x)), nn.Identity()))


def check(model: nn.Module) -> None:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    document = json.loads(capture(model, x, device="cpu", optimizer=False))
    with Ran() as ran:
        model(x).sum().backward()
    assert captured(document) == ran.rows


def captured(document: dict[str, Any]) -> list[Row]:
    rows = []
    for op in document["ops"]:
        name = document["names"][op["name"]]
        if op["phase"] != "optimizer" and name != "detach.default":
            layouts = [document["layouts"][layout] for _, layout in op.get("outputs", ())]
            rows.append((name, [(shape, strides) for _, shape, strides in layouts]))
    return rows
