"""What an operator does to the values of its arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rematic._model.collectives import COLLECTIVES
from rematic._model.trees import tensors_in

from .contents import RANDOM, Unknown

aten = torch.ops.aten

_ELSEWHERE = Unknown(3, "comes from other processes", "Leave this line out while the model is captured.")

# They change what a tensor is, and nothing in its storage.
_RESTRIDING = frozenset(
    ("as_strided_", "detach_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")
)
# What they make, nobody has written.
_BLANK = frozenset((
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.empty_permuted.default,
    aten.new_empty.default, aten.new_empty_strided.default,
))  # fmt: skip
# They write to arguments without saying so: running statistics. Whether they do, the flag at that position says.
_STATISTICS = {
    aten.native_batch_norm.default: ((3, 4), 5),
    aten.cudnn_batch_norm.default: ((3, 4), 5),
    aten.miopen_batch_norm.default: ((3, 4), 5),
    aten.batch_norm_update_stats.default: ((1, 2), None),
    aten.batch_norm_gather_stats.default: ((3, 4), None),
    aten.batch_norm_gather_stats_with_counts.default: ((3, 4), None),
}
_OVERWRITING = frozenset((aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.copy_.default))

_SCATTERING = frozenset((aten.scatter_.src, aten.scatter_.value))


def _second(args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs["fill_value"]


def _third(args: Any, kwargs: Any) -> Any:
    return args[2] if len(args) > 2 else kwargs["fill_value"]


# They take no more than the shape of their argument, whatever it holds.
_FILLING: dict[Any, Callable[[Any, Any], Any]] = {
    aten.zeros_like.default: lambda args, kwargs: 0,
    aten.ones_like.default: lambda args, kwargs: 1,
    aten.full_like.default: _second,
    aten.new_zeros.default: lambda args, kwargs: 0,
    aten.new_ones.default: lambda args, kwargs: 1,
    aten.new_full.default: _third,
}


class Effect:
    """The same for every call of an operator."""

    __slots__ = (
        "is_none", "leaves_blank", "filling", "overwrites", "unknown", "writes", "_positions", "_names", "_outs", "_flag",
        "_scatters",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self._positions: list[int] = []
        self._names: list[str] = []
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._names.append(argument.name)
                if not argument.kwarg_only:
                    self._positions.append(position)
        self._outs = [argument.name for argument in schema.arguments if argument.is_out]
        self._flag: int | None = None
        if func in _STATISTICS:
            positions, self._flag = _STATISTICS[func]
            self._positions.extend(positions)
        self.writes = bool(self._positions or self._names)
        restrides = func.namespace == "aten" and func._opname in _RESTRIDING
        returns = schema.returns
        views = bool(returns) and not self.writes and all(returned.alias_info is not None for returned in returns)
        # Whether no value comes to be.
        self.is_none = restrides or views
        self.leaves_blank = func in _BLANK
        self.filling = _FILLING.get(func)
        # Whether what lay in the first argument does not matter.
        self.overwrites = func in _OVERWRITING
        self._scatters = func in _SCATTERING
        # Why its results are not known, whatever its arguments are.
        self.unknown: Unknown | None = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.unknown = RANDOM
        elif func.namespace in COLLECTIVES:
            self.unknown = _ELSEWHERE
        elif func._opname in ("resize_", "resize_as_") or func in _STATISTICS:
            self.unknown = _UNFOLLOWED

    def filled(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """The arguments of a call that it writes and does not read."""
        if self.overwrites:
            return (args[0],)
        if self._scatters and len(args[2].shape) == 1 and args[2].shape == args[0].shape:
            # As many places as there are: a permutation is inverted, or what lies there now is garbage for the model too.
            return (args[0],)
        return tuple(kwargs[name] for name in self._outs if name in kwargs)

    def targets(self, args: Any, kwargs: Any) -> list[Tensor]:
        """The tensors that a call writes to."""
        if self._flag is not None and not args[self._flag]:
            return []
        found = [args[position] for position in self._positions if position < len(args)]
        found += [kwargs[name] for name in self._names if name in kwargs]
        return [tensor for tensor in tensors_in(found) if tensor.layout is torch.strided]


_UNFOLLOWED = Unknown(
    3,
    "was written by an operator that is not followed",
    "Leave this line out while the model is captured.",
)
