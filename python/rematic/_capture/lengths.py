"""Lengths of sequences: small tensors that kernels read on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .values import Values

aten: Any = torch.ops.aten

PACK = aten._pack_padded_sequence.default
# Operators whose kernels look at lengths, and where these are among the arguments.
LENGTHS: dict[Any, tuple[int, ...]] = {
    PACK: (1,),
    aten._ctc_loss.Tensor: (2, 3),
    aten._use_cudnn_ctc_loss.Tensor: (2, 3),
}


def with_lengths(values: Values, func: Any, args: Any) -> Any:
    """The arguments of such an operator, with its lengths on the CPU."""
    positions = LENGTHS[func]
    return tuple(
        values.need(item, func) if position in positions and isinstance(item, Tensor) and item.is_meta else item
        for position, item in enumerate(args)
    )
