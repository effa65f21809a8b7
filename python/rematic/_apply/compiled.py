"""Under `torch.compile` PyTorch marks the operators of its graph by what a policy says while it traces, and recomputes
by itself. Operators are checked there, once.

What it traces differs from what runs in three ways that change nothing in what is to be saved: views may be others (`view`
for `_unsafe_view`), and dropout and batch norm are the same operators on every device. So views, which take no memory, are
left out on both sides, and what the CPU runs for dropout and batch norm is met by what the compiler has for them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from .errors import Mismatch
from .policy import UNRECORDED, Policy, name_of

HINT = (
    "Under torch.compile a model may take other paths and other operators than as it is written, for which it was "
    "planned; keep this module out of it (torch.compiler.disable), or train without torch.compile."
)
# Operators of the compiler, and what the CPU runs in their place.
IN_PLACE_OF = {
    "native_dropout.default": ["empty_like.default", "bernoulli_.float", "div_.Scalar", "mul.Tensor"],
    "_native_batch_norm_legit.default": ["native_batch_norm.default"],
}
# It updates running statistics, and would read the updated ones when it is recomputed; so it is always saved, like what
# draws random numbers: where dropout was recomputed, inductor of torch 2.15 gave other gradients.
BATCH_NORM = torch.ops.aten._native_batch_norm_legit.default
# It is one, but does not declare it.
UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


class Decisions:
    """The policy function of one trace."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Where the operators that are not views stand in the policy.
        self._left = [at for at, name in enumerate(policy.names) if not _is_view_by_name(name)]
        self._at = 0

    def __call__(self, context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if getattr(func, "namespace", None) in UNRECORDED or _is_view(func):
            return CheckpointPolicy.PREFER_RECOMPUTE
        policy = self._policy
        met = self._replaced_by(func)
        if not met:
            at = self._left[self._at] if self._at < len(self._left) else len(policy.names)
            if not policy.meets(at, func):
                raise policy.mismatch(at, func, hint=HINT)
            met = [at]
        self._at += len(met)
        saved = func is BATCH_NORM or _draws(func, args, kwargs) or any(policy.saves[at] for at in met)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    def _replaced_by(self, func: Any) -> list[int]:
        """The plan's next operators, if this one stands for them."""
        replaced = IN_PLACE_OF.get(name_of(func), [])
        following = self._left[self._at : self._at + len(replaced)]
        return following if [self._policy.names[at] for at in following] == replaced else []


class Possible:
    """The same where it may be one of several policies: those that have other operators are out, and what one of the others
    saves is saved."""

    def __init__(self, policies: list[Policy]) -> None:
        self._left = [Decisions(policy) for policy in policies]

    def __call__(self, context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        left: list[Decisions] = []
        decided: list[CheckpointPolicy] = []
        mismatches: list[Mismatch] = []
        for decisions in self._left:
            try:
                decided.append(decisions(context, func, *args, **kwargs))
                left.append(decisions)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        if not left:
            raise mismatches[0]
        self._left = left
        saved = CheckpointPolicy.MUST_SAVE in decided
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def compiled_contexts(policy: Policy) -> Any:
    """What checkpointing is given while it is traced. The compiler takes one policy, which knows those of the other variants."""
    policies = [policy, *policy.others]
    return create_selective_checkpoint_contexts(Decisions(policies[0]) if len(policies) == 1 else Possible(policies))


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator draws random numbers. Attention does so only with a dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            return given != 0
    return True


@functools.cache
def _is_view(func: Any) -> bool:
    if func is UNSAFE_VIEW:
        return True
    schema = getattr(func, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    return any(value.alias_info is not None for value in schema.returns)


@functools.cache
def _is_view_by_name(name: str) -> bool:
    """The same for an operator as plans spell it; one that is not there is no view."""
    parts = name.split(".")
    found: Any = torch.ops if len(parts) > 2 else torch.ops.aten
    for part in parts:
        found = getattr(found, part, None)
    return found is not None and _is_view(found)
