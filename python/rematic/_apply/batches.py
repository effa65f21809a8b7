"""The batches that a plan is made for: the one that is given, and the variants of it that training meets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rematic._core import PlanError
from rematic._model.signature import Signature

MASK = "attention_mask"
PADDED, UNPADDED = "padded", "not padded"

# What a call of the model is given.
Call = tuple[tuple[Any, ...], dict[str, Any]]


def calls_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], variants: Any) -> dict[str, Call]:
    """The calls to capture, by the names of their variants; the given one is the first."""
    first: Call = (args, dict(kwargs))
    named = {"as given": first}
    for name, variant in _listed(variants):
        call = _merged(first, variant)
        name = name or _difference(model, first, call)
        while name in named:
            name += " too"
        named[name] = call
    with_masks: dict[str, Call] = {}
    for name, call in named.items():
        with_masks.update(_masked(name, call, alone=len(named) == 1))
    return with_masks


def _listed(variants: Any) -> Iterable[tuple[str, Any]]:
    if variants is None:
        return []
    if isinstance(variants, (list, tuple)):
        return [("", variant) for variant in variants]
    raise PlanError(
        f"variants= takes a list, not {type(variants).__name__}: for each further variant of the batch the arguments that differ, as "
        'variants=[{"attention_mask": None}, other_batch]'
    )


def _merged(first: Call, variant: Any) -> Call:
    """The first call with what a variant has otherwise: keywords, or positional arguments."""
    args, kwargs = first
    if isinstance(variant, Mapping):
        if not kwargs and len(args) == 1 and isinstance(args[0], Mapping):
            return ({**args[0], **variant},), {}
        return args, {**kwargs, **variant}
    if isinstance(variant, (list, tuple)):
        return (*variant, *args[len(variant) :]), kwargs
    if isinstance(variant, Tensor):
        return (variant, *args[1:]), kwargs
    raise PlanError(
        f"A variant of the batch is a dict of keywords, a tuple of positional arguments, or a tensor, not {type(variant).__name__}"
    )


def _difference(model: nn.Module, first: Call, call: Call) -> str:
    """What a variant has otherwise, in words."""
    was, now = (Signature.of(model, args, kwargs).given for args, kwargs in (first, call))
    words = [f"{name} {now.get(name, 'None')}" for name in dict.fromkeys([*now, *was]) if now.get(name) != was.get(name)]
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    return words[0] + more if words else "another batch"


def _masked(name: str, call: Call, *, alone: bool) -> dict[str, Call]:
    """A batch with a mask comes with padding and without, and models drop a mask that hides nothing."""
    args, kwargs = call
    mask = kwargs.get(MASK)
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.is_meta or mask.is_floating_point() or not mask.numel():
        return {name: call}
    hides = not bool(mask.bool().all())
    other = torch.ones_like(mask)
    if not hides and mask.shape[1] > 1:
        # One sequence is shorter by one.
        other[-1, -1] = 0
    elif not hides:
        return {name: call}
    names = (PADDED, UNPADDED) if hides else (UNPADDED, PADDED)
    own, derived = names if alone else (f"{name}, {words}" for words in names)
    return {own: call, derived: (args, {**kwargs, MASK: other})}
