"""On the meta device, operators lay out what they make as they do for real on the CPU, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layouts import Making, made, tensor
from rematic._capture.routing import as_on

Case = tuple[Callable[..., Any], list[tuple[int, ...]]]
LAYOUTS = {
    torch.float32: ["contiguous", "channels last", "transposed", "sliced", "expanded"],
    torch.bfloat16: ["channels last", "expanded"],
}
GRADIENTS = {torch.float32: ["contiguous", "channels last", "transposed"], torch.bfloat16: ["expanded"]}
IMAGE, SEQUENCE, VOLUME = (2, 8, 6, 6), (2, 8, 10), (2, 8, 4, 6, 8)


def convolution(name: str, kernel: tuple[int, ...], shape: tuple[int, ...], **options: Any) -> Case:
    return lambda x, w, b: getattr(F, name)(x, w, b, **options), [shape, kernel, (kernel[0],)]


def transposed(name: str, kernel: tuple[int, ...], shape: tuple[int, ...], **options: Any) -> Case:
    return lambda x, w, b: getattr(F, name)(x, w, b, **options), [shape, kernel, (kernel[1],)]


CONVOLUTIONS: dict[str, Case] = {
    "3x3": convolution("conv2d", (16, 8, 3, 3), IMAGE, padding=1),
    "3x3, one image": convolution("conv2d", (16, 8, 3, 3), (1, 8, 6, 6)),
    "strided": convolution("conv2d", (16, 8, 3, 3), IMAGE, stride=2),
    "dilated": convolution("conv2d", (16, 8, 3, 3), (1, 8, 6, 6), dilation=2),
    "grouped": convolution("conv2d", (16, 4, 3, 3), IMAGE, groups=2),
    "depthwise": convolution("conv2d", (8, 1, 3, 3), IMAGE, groups=8),
    "1d": convolution("conv1d", (16, 8, 3), SEQUENCE),
    "1d, depthwise": convolution("conv1d", (8, 1, 4), SEQUENCE, groups=8),
    "3d": convolution("conv3d", (16, 8, 3, 3, 3), VOLUME),
    "transposed": transposed("conv_transpose2d", (8, 16, 2, 2), IMAGE, stride=2),
    "transposed 1d": transposed("conv_transpose1d", (8, 16, 4), SEQUENCE, stride=2),
    "transposed 3d": transposed("conv_transpose3d", (8, 16, 2, 2, 2), VOLUME, stride=2),
}
NORMS: dict[str, Case] = {
    "batch": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [IMAGE, (8,), (8,)]),
    "batch 1d": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [SEQUENCE, (8,), (8,)]),
    "batch, evaluated": (lambda x, w: F.batch_norm(x, w.detach(), w.detach(), w, w), [IMAGE, (8,)]),
    "group": (lambda x, w, b: F.group_norm(x, 4, w, b), [IMAGE, (8,), (8,)]),
    "group 1d": (lambda x, w, b: F.group_norm(x, 4, w, b), [SEQUENCE, (8,), (8,)]),
    "instance": (lambda x: F.instance_norm(x), [IMAGE]),
    "layer": (lambda x, w, b: F.layer_norm(x, (10,), w, b), [SEQUENCE, (10,), (10,)]),
    "rms": (lambda x, w: F.rms_norm(x, (10,), w), [SEQUENCE, (10,)]),
}
IMAGES: dict[str, Case] = {
    name: (function, [IMAGE])
    for name, function in {
        "average pool": lambda x: F.avg_pool2d(x, 2),
        "maximum pool": lambda x: F.max_pool2d(x, 2),
        "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 1),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
        "pixel unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
        "reflection": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
        "replication": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
        "roll": lambda x: x.roll((1, 1), (2, 3)),
        "unfold": lambda x: F.unfold(x, 3),
        "flatten": lambda x: x.flatten(2).transpose(1, 2),
        "softmax": lambda x: x.softmax(1),
        "log-softmax": lambda x: x.log_softmax(1),
        "glu": lambda x: F.glu(x, 1),
        "cumulative sum": lambda x: x.cumsum(1),
        "mean": lambda x: x.mean((2, 3), keepdim=True),
        "squared error": lambda x: F.mse_loss(x, x.detach() * 2),
        "squared errors": lambda x: F.mse_loss(x, x.detach() * 2, reduction="none"),
        "linear": lambda x: F.linear(x, x.new_ones(4, 6)),
        "product": lambda x: x @ x.transpose(-1, -2),
        "concatenation": lambda x: torch.cat([x, x], 1),
        "index": lambda x: x[:, torch.zeros(3, dtype=torch.long, device=x.device)],
    }.items()
}
POINTWISE: dict[str, Case] = {
    function.__name__: (function, [IMAGE])
    for function in (
        F.gelu, F.silu, F.mish, F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.leaky_relu, F.elu, F.softplus,
        F.logsigmoid, F.dropout, torch.sigmoid, torch.tanh, torch.exp, torch.sqrt,
    )
}  # fmt: skip
PAIRS: dict[str, Case] = {
    function.__name__: (function, [IMAGE, IMAGE]) for function in (torch.add, torch.mul, torch.div, torch.maximum)
}


# Where the CPU has no bfloat16, PyTorch's own kernel makes the gradient of this weight in pieces, whose one channel has any stride.
UNDECIDED = ("depthwise", torch.bfloat16, "channels last", "contiguous", "expanded")


def plain_strides(call: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    """A call without the strides of dimensions of one element, which say nothing about where it lies."""
    name, tensors = call
    known = [tuple(stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True)) for shape, strides, *_ in tensors]
    return name, [(shape, strides, *rest) for (shape, _, *rest), strides in zip(tensors, known, strict=True)]


def variants(case: Case, weights: list[str], device: str) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """The case in all layouts, each with what runs it."""
    function, shapes = case
    for dtype, layouts in LAYOUTS.items():
        second = weights if len(shapes) > 1 and len(shapes[1]) > 2 else ["contiguous"]
        for first, other, gradient in itertools.product(layouts, second, GRADIENTS[dtype]):
            chosen = [first, other, *["contiguous"] * len(shapes)]
            inputs = [tensor(shape, layout, dtype, device) for shape, layout in zip(shapes, chosen, strict=False)]
            if all(item is not None for item in inputs):
                yield (dtype, first, other, gradient), lambda inputs=inputs, gradient=gradient: made(
                    function, inputs, gradient
                )


def compare(cases: dict[str, Case], weights: list[str]) -> None:
    real = {}
    for name, case in cases.items():
        for key, run in variants(case, weights, "cpu"):
            real[(name, *key)] = run()
    with as_on("cpu"):
        found = {(name, *key): run() for name, case in cases.items() for key, run in variants(case, weights, "meta")}
    assert len(real) > len(cases)
    for key, expected in real.items():
        if key == UNDECIDED and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            assert [plain_strides(call) for call in found[key]] == [plain_strides(call) for call in expected], key
        else:
            assert found[key] == expected, key


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    compare({name: CONVOLUTIONS[name]}, ["contiguous", "channels last"])


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    compare({name: NORMS[name]}, ["contiguous"])


@pytest.mark.parametrize("name", IMAGES)
def test_operators_on_images(name: str) -> None:
    compare({name: IMAGES[name]}, ["contiguous"])


def test_pointwise_operators() -> None:
    compare(POINTWISE, ["contiguous"])


def test_pairs_of_layouts() -> None:
    compare(PAIRS, LAYOUTS[torch.float32])


# ---- attention ----

FOUR, THREE = (2, 4, 8, 16), (4, 8, 16)
ATTENTION: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": ((FOUR, FOUR, FOUR), {}),
    "one head of keys and values": ((FOUR, (2, 1, 8, 16), (2, 1, 8, 16)), {}),
    "grouped": ((FOUR, (2, 2, 8, 16), (2, 2, 8, 16)), {"enable_gqa": True}),
    "one batch of keys and values": ((FOUR, (1, 4, 8, 16), (1, 4, 8, 16)), {}),
    "longer keys": ((FOUR, (2, 4, 12, 16), (2, 4, 12, 16)), {}),
    "wider values": ((FOUR, FOUR, (2, 4, 8, 24)), {}),
    "three dimensions": ((THREE, THREE, THREE), {}),
    "three dimensions, wider values": ((THREE, THREE, (4, 8, 24)), {}),
    "two dimensions": (((8, 16),) * 3, {}),
    "five dimensions": (((2, 3, 4, 8, 16),) * 3, {}),
}
MASKS = ["none", "causal", "boolean", "numbers", "learned", "per batch"]


def attention(name: str, mask: str, dropout: float, dtype: torch.dtype, trains: bool, device: str) -> Any:
    shapes, options = ATTENTION[name]
    inputs = [torch.full(shape, 0.1, dtype=dtype, device=device, requires_grad=trains) for shape in shapes]
    size = (shapes[0][-2], shapes[1][-2])
    given: Tensor | None = None
    if mask == "boolean":
        given = torch.ones(size, dtype=torch.bool, device=device)
    elif mask in ("numbers", "learned"):
        given = torch.ones(size, dtype=dtype, device=device, requires_grad=mask == "learned")
    elif mask == "per batch":
        if len(shapes[0]) != 4:
            return None
        given = torch.ones((shapes[0][0], 1, *size), dtype=torch.bool, device=device)
    with Making() as making:
        out = F.scaled_dot_product_attention(
            *inputs, attn_mask=given, dropout_p=dropout, is_causal=mask == "causal", **options
        )
        if out.requires_grad:
            out.sum().backward()
    return making.made


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_the_kernel_that_the_cpu_chooses(name: str) -> None:
    cases = list(itertools.product(MASKS, (0.0, 0.1), (torch.float32, torch.bfloat16), (True, False)))
    real = [attention(name, *case, "cpu") for case in cases]
    with as_on("cpu"):
        found = [attention(name, *case, "meta") for case in cases]
    for case, expected, captured in zip(cases, real, found, strict=True):
        assert captured == expected, case
