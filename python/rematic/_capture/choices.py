"""Questions about numbers that cannot be known. Choices among them are assumed to be made as often as the others; and a model
that asks whether they are finite gets the answer of a run in which nothing goes wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .contents import ASSUMED, CHOSEN, Operation

if TYPE_CHECKING:
    from .values import Values

BALANCED = "routing assumed balanced"
FINITE = "numbers that depend on weights are taken as finite"

aten = torch.ops.aten


def _spread(shape: torch.Size, dim: int, extent: int) -> Tensor:
    """Indices below `extent` along `dim`, each used as often as the others."""
    dim %= max(len(shape), 1)
    chosen = shape[dim] if shape else 1
    rows = shape.numel() // max(chosen, 1)
    flat = torch.arange(rows * chosen).remainder(max(extent, 1)).view(rows, chosen)
    others = [size for axis, size in enumerate(shape) if axis != dim]
    return flat.view(*others, chosen).movedim(-1, dim) if shape else flat.view(())


def _assume(values: Values, indices: Tensor, choosers: int, extent: int, spread: Callable[[], Tensor]) -> None:
    """Many that choose among few, as tokens among experts, spread evenly: a plan should hold for other batches too. Where few
    choose among many, as queries among keys, no choice is like another."""
    assumed = ASSUMED if choosers >= extent else CHOSEN
    operation = Operation(spread, (), {}, assume=lambda: values.assumptions.add(BALANCED), assumed=assumed)
    values.hold(indices.untyped_storage(), operation.makes(0, indices))


def _choose_topk(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    _choose(values, args[0], out[1], dim)


def _choose_max(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    source, indices = args[0], out[-1]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is not None and indices.dim() == source.dim():
        _choose(values, source, indices, dim)
    elif dim is not None:
        shape, extent = indices.shape, source.size(dim)
        _assume(values, indices, shape.numel(), extent, lambda: torch.arange(shape.numel()).remainder(extent).view(shape))


def _choose(values: Values, source: Tensor, indices: Tensor, dim: int) -> None:
    shape, extent = indices.shape, source.size(dim) if source.dim() else 1
    choosers = source.numel() // max(extent, 1)
    _assume(values, indices, choosers, extent, lambda: _spread(shape, dim, extent))


def _is_same(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    """`x == x` asks whether x is a number."""
    if len(args) > 1 and args[0] is args[1]:
        _answer(values, out[0], True)


def _is_other(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    if len(args) > 1 and args[0] is args[1]:
        _answer(values, out[0], False)


def _is_infinite(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(args[1], float) and math.isinf(args[1]):
        _answer(values, out[0], False)


def _is_not_infinite(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(args[1], float) and math.isinf(args[1]):
        _answer(values, out[0], True)


def _is_no_number(values: Values, args: Any, kwargs: Any, out: Any) -> None:
    _answer(values, out[0], False)


def _answer(values: Values, out: Tensor, answer: bool) -> None:
    shape = out.shape
    operation = Operation(
        lambda: torch.full(shape, answer), (), {}, assume=lambda: values.assumptions.add(FINITE)
    )
    values.hold(out.untyped_storage(), operation.makes(0, out))


CHOICES: dict[Any, Callable[[Values, Any, Any, Any], None]] = {
    aten.topk.default: _choose_topk,
    aten.argmax.default: _choose_max,
    aten.max.dim: _choose_max,
    aten.eq.Tensor: _is_same,
    aten.ne.Tensor: _is_other,
    aten.eq.Scalar: _is_infinite,
    aten.ne.Scalar: _is_not_infinite,
    aten.isnan.default: _is_no_number,
    aten.isinf.default: _is_no_number,
}
