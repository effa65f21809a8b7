"""How the loss is computed: what may be asked for, and the steps that are captured for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast, get_args

from rematic._core import PlanError, RematicError, Trace

from .function import CHUNKS
from .head import Chunked, head_in

LossKind: TypeAlias = Literal["plain", "chunked", "auto"]


def function_and_kind(loss: Any, kind: LossKind | None) -> tuple[Any, LossKind]:
    """The function that gives the loss, if there is one, and how its cross-entropy is computed."""
    words = get_args(LossKind)
    if isinstance(loss, str):
        if kind is not None:
            raise PlanError(f"loss={loss!r} and loss_kind={kind!r} say the same thing; give one of the two")
        loss, kind = None, cast(LossKind, loss)
    if kind is not None and kind not in words:
        raise PlanError(f"the kind of loss is {kind!r}; give plain, chunked or auto, or a function as loss")
    return loss, kind or "plain"


def of_kind(kind: LossKind, captured: Callable[[Chunked | None], Trace]) -> Trace:
    """The step with its loss as it is, or in chunks, or the first with the other beside it."""
    plain = captured(None)
    if kind == "plain":
        return plain
    try:
        chunked = captured(Chunked(head_in(plain), CHUNKS))
    except RematicError as error:
        if kind == "chunked":
            raise
        return plain.beside(None, str(error))
    return chunked if kind == "chunked" else plain.beside(chunked)
