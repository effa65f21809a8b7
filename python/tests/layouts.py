"""What an operator makes, forward and backward, for real and on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Made = tuple[str, list[Any]]


class Making(TorchDispatchMode):
    """Writes down the operators that run, with shapes, strides, types and storages of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        taken = {item.untyped_storage()._cdata for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)}
        self.made.append(
            (
                str(func),
                [
                    (tuple(item.shape), item.stride(), item.dtype, item.untyped_storage().nbytes(),
                     item.untyped_storage()._cdata in taken)
                    for item in tree_leaves(out)
                    if isinstance(item, Tensor)
                ],
            )
        )  # fmt: skip
        return out


def strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...] | None:
    """The strides of a layout, or None if it needs other dimensions."""
    rank = len(shape)
    if layout == "contiguous":
        return torch.empty(shape, device="meta").stride()
    if layout == "channels last" and rank in (4, 5):
        memory_format = torch.channels_last if rank == 4 else torch.channels_last_3d
        return torch.empty(shape, device="meta", memory_format=memory_format).stride()
    if layout == "transposed" and rank > 2:
        swapped = [shape[0], shape[2], shape[1], *shape[3:]]
        return torch.empty(swapped, device="meta").transpose(1, 2).stride()
    if layout == "sliced":
        return torch.empty([*shape[:-1], shape[-1] + 3], device="meta").stride()
    if layout == "expanded":
        return (0, *torch.empty(shape, device="meta").stride()[1:])
    return None


def tensor(shape: tuple[int, ...], layout: str, dtype: torch.dtype, device: str) -> Tensor | None:
    """A leaf of a layout."""
    chosen = strides(shape, layout)
    if chosen is None:
        return None
    made = torch.empty_strided(shape, chosen, dtype=dtype, device=device)
    if device != "meta":
        whole = made.untyped_storage().nbytes() // made.element_size()
        made.as_strided((whole,), (1,)).fill_(0.5)
    return made.requires_grad_()


def made(function: Callable[..., Any], inputs: list[Tensor], gradient: str) -> list[Made] | None:
    """The operators of a function and of its backward, from gradients of a layout."""
    with Making() as making:
        outputs = [item for item in tree_leaves(function(*inputs)) if isinstance(item, Tensor) and item.requires_grad]
        gradients = []
        for output in outputs:
            if gradient == "expanded":
                gradients.append(output.new_ones(()).expand(output.shape))
                continue
            chosen = strides(tuple(output.shape), gradient)
            if chosen is None:
                return None
            gradients.append(torch.empty_strided(output.shape, chosen, dtype=output.dtype, device=output.device).fill_(1))
        torch.autograd.backward(outputs, gradients)
    return making.made
