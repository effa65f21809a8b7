"""Drop-in for `torch.distributed._tools.common_utils`."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["get_untyped_storages"]


def get_untyped_storages(t: Tensor) -> set[UntypedStorage]:
    """The storages of a tensor; of a tensor that is made of several, such as a `DTensor`, the storages of all of them."""
    if not is_traceable_wrapper_subclass(t):
        if hasattr(t, "untyped_storage"):
            return {t.untyped_storage()}
        said = f"Expected a tensor or a traceable wrapper-subclass of tensor, but got {type(t)}"
        warnings.warn(said, category=UserWarning, stacklevel=2)
        return set()
    storages: set[UntypedStorage] = set()
    for name in t.__tensor_flatten__()[0]:
        inner = getattr(t, name)
        if isinstance(inner, Tensor):
            storages |= get_untyped_storages(inner)
        elif not _is_custom_object(inner):
            raise AssertionError(f"expected Tensor or CustomClassBase, got {type(inner)}")
    return storages


def _is_custom_object(value: object) -> bool:
    """Whether it is an object of torch's that a wrapper may keep beside its tensors. Older versions have none."""
    base = getattr(getattr(torch, "_custom_class_base", None), "CustomClassBase", None)
    return base is not None and isinstance(value, base)
