"""Follow a plan while a checkpointed module runs, for the first time and again.

Both modes see every operator, check that it is the one that the plan has at this place, and act on its decision: in
forward the outputs of saved operators are kept, when it is recomputed they are handed back, and their operators do not
run. PyTorch's own selective modes go by the count of each kind of operator, refuse to keep what is changed in place
together with its maker, and do not look at operators when they recompute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._core import PlanError

from .policy import DETACH, UNRECORDED, Policy, name_of

aten = torch.ops.aten
TO_COPY = aten._to_copy.default
# In training these update running statistics that they do not declare as changed. The statistics stand at these
# positions, and whether it is training after them.
BATCH_NORMS = {aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default}
STATISTICS, TRAINING = slice(3, 5), 5


class Kept:
    """What saved operators of one run have made, until it is handed back."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.versions: dict[int, list[int]] = {}

    def close(self) -> None:
        """The region has run. What it changed in place itself is as it should be; from now on nothing may change it."""
        self.versions = {at: _versions(value) for at, value in self.values.items()}


class Forward(TorchDispatchMode):
    """The first run of a region."""

    def __init__(self, policy: Policy, kept: Kept) -> None:
        super().__init__()
        self._policy = policy
        self._kept = kept
        self._ops = policy.ops
        self._saves = policy.saves
        self._count = len(policy.ops)
        self._at = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = self._at
        if at >= self._count or self._ops[at] is not func:
            if func is DETACH or func.namespace in UNRECORDED:
                return func(*args, **(kwargs or {}))
            if not self._policy.meets(at, func):
                raise self._policy.mismatch(at, func)
        self._at = at + 1
        out = func(*args, **kwargs) if kwargs else func(*args)
        if self._saves[at]:
            if not func._schema.is_mutable:
                self._kept.values[at] = _map(out, _detached)
            else:
                written = _written(func, args, kwargs)
                self._kept.values[at] = _map(out, lambda tensor: None if _among(tensor, written) else _detached(tensor))
        elif func._schema.is_mutable:
            self._check_change(at, func, args, kwargs)
        return out

    def _check_change(self, at: int, func: Any, args: Any, kwargs: Any) -> None:
        written = {tensor.untyped_storage()._cdata for tensor in _written(func, args, kwargs)}
        for kept, value in self._kept.values.items():
            found: list[bool] = []
            _map(value, lambda tensor: found.append(tensor.untyped_storage()._cdata in written))  # noqa: B023
            if any(found):
                policy = self._policy
                raise PlanError(
                    f"The plan saves operator {policy.positions[kept]} (`{policy.names[kept]}`) of `{policy.module}` and "
                    f"recomputes operator {policy.positions[at]} (`{name_of(func)}`), which changes its output in place "
                    "and would do so twice; save both or neither"
                )

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)
        if kind is None:
            if self._at < self._count:
                raise self._policy.mismatch(self._at, None)
            self._kept.close()


class Again(TorchDispatchMode):
    """A region is recomputed."""

    def __init__(self, policy: Policy, kept: Kept) -> None:
        super().__init__()
        self._policy = policy
        self._kept = kept
        self._ops = policy.ops
        self._saves = policy.saves
        self._count = len(policy.ops)
        self._at = 0

    def __enter__(self) -> Any:
        self._at = 0
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = self._at
        if at >= self._count or self._ops[at] is not func:
            if func is DETACH or func.namespace in UNRECORDED or _casts_weight(func, args):
                return func(*args, **(kwargs or {}))
            if not self._policy.meets(at, func):
                raise self._policy.mismatch(at, func, again=True)
        self._at = at + 1
        if self._saves[at]:
            return self._hand_back(at, func, args, kwargs)
        if func in BATCH_NORMS and args[TRAINING]:
            # The first run has counted this batch.
            args = (*args[: STATISTICS.start], None, None, *args[STATISTICS.stop :])
        return func(*args, **kwargs) if kwargs else func(*args)

    def _hand_back(self, at: int, func: Any, args: Any, kwargs: Any) -> Any:
        policy, kept = self._policy, self._kept
        if at not in kept.values:
            raise PlanError(
                f"`{policy.module}` is recomputed a second time, but what the plan saves of it was handed back in the first "
                "backward; call backward once, without retain_graph, or plan with whole=True"
            )
        value = kept.values.pop(at)
        if _versions(value) != kept.versions[at]:
            raise PlanError(
                f"The output of operator {policy.positions[at]} (`{policy.names[at]}`) of `{policy.module}`, which the plan "
                "saves, was changed in place after the module returned; change a copy of it, or plan without this "
                f'module (never="{policy.module}")'
            )
        if not func._schema.is_mutable:
            return value
        # What is changed in place has changed already; autograd goes on with the argument.
        written = iter(_written(func, args, kwargs))
        return next(written) if value is None else _map_missing(value, written)


def _casts_weight(func: Any, args: Any) -> bool:
    """Autocast finds in its cache what it has cast before; when a region is recomputed it casts anew."""
    return func is TO_COPY and isinstance(args[0], Tensor) and args[0].is_leaf and torch.is_autocast_enabled(args[0].device.type)


def _detached(tensor: Tensor) -> Tensor:
    """An alias without a place in autograd's graph, which shares the count of changes in place."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def _map(value: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map(item, function) for item in value)
    return value


def _map_missing(value: Any, arguments: Any) -> Any:
    if value is None:
        return next(arguments, None)
    if isinstance(value, (tuple, list)):
        return type(value)(_map_missing(item, arguments) for item in value)
    return value


def _versions(value: Any) -> list[int]:
    found: list[int] = []
    _map(value, lambda tensor: found.append(tensor._version))
    return found


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operator changes."""
    written: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = (kwargs or {}).get(argument.name) if argument.kwarg_only or position >= len(args) else args[position]
            _map(given, written.append)
    return written


def _among(tensor: Tensor, tensors: list[Tensor]) -> bool:
    return any(tensor is other for other in tensors)
