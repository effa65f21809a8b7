"""What a captured step leaves in caches outside of the model, where a real step would find tensors without data."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rematic._model.trees import tensors_in
from rematic._warning import warn

LEFT = (
    "the captured step has left {} without data where it outlives the step ({}); a real step would find it there: empty that "
    "before the model runs, or keep it on a module of the model, of which a copy is captured"
)


Kept = list["weakref.ref[torch.UntypedStorage]"]


def clear(kept: Kept) -> None:
    """Takes tensors with these storages out of caches of functions and out of dicts. Those that are left stay listed."""
    kept[:] = [ref for ref in kept if ref() is not None]
    if not kept:
        return
    gc.collect()
    addresses = _addresses(kept)
    if not addresses:
        return
    for item in gc.get_objects():
        if type(item) is functools._lru_cache_wrapper:
            if any(_is_among(tensor, addresses) for tensor in _results(item)):
                item.cache_clear()
    item = None
    left = _tensors(addresses)
    for tensor in left:
        for holder in gc.get_referrers(tensor):
            if type(holder) is dict and _owner(holder) is None:
                for key, value in list(holder.items()):
                    if value is tensor:
                        del holder[key]


def warn_of(kept: Kept) -> None:
    """Says of what is left where it is."""
    addresses = _addresses(kept)
    left = _tensors(addresses) if addresses else []
    for tensor in left:
        for holder in gc.get_referrers(tensor):
            if holder is not left and not isinstance(holder, types.FrameType):
                owner = _owner(holder) if isinstance(holder, dict) else None
                where = type(holder).__name__ if owner is None else owner
                warn(LEFT.format(f"a tensor of shape {tuple(tensor.shape)}", where))


def _addresses(kept: Kept) -> set[int]:
    return {storage._cdata for ref in kept if (storage := ref()) is not None}


def _tensors(addresses: set[int]) -> list[Tensor]:
    return [item for item in gc.get_objects() if isinstance(item, Tensor) and _is_among(item, addresses)]


def _is_among(tensor: Tensor, addresses: set[int]) -> bool:
    return tensor.is_meta and tensor.layout is torch.strided and tensor.untyped_storage()._cdata in addresses


def _results(cached: Any) -> Iterator[Tensor]:
    """The tensors that a cache of a function holds."""
    for held in gc.get_referents(cached):
        # With a limit on their number it leads to results itself, and otherwise by a dict of them.
        if held is not getattr(cached, "__dict__", None):
            yield from tensors_in(held)


def _owner(attributes: dict[str, Any]) -> str | None:
    """Whose attributes these are, if they are."""
    for holder in gc.get_referrers(attributes):
        if getattr(holder, "__dict__", None) is attributes:
            return getattr(holder, "__name__", None) or type(holder).__name__
    return None
