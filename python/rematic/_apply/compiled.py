"""Under `torch.compile` PyTorch marks the operators of its graph by what a policy says while it traces, and recomputes
by itself. Operators are checked there, once."""

from __future__ import annotations

from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from .policy import DETACH, UNRECORDED, Policy

HINT = (
    "Under torch.compile a model may take other paths and other operators than as it is written, for which it was "
    "planned; keep this module out of it (torch.compiler.disable), or train without torch.compile."
)


class Decisions:
    """The policy function of one trace."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._at = 0

    def __call__(self, context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func is DETACH or getattr(func, "namespace", None) in UNRECORDED:
            return CheckpointPolicy.PREFER_RECOMPUTE
        at = self._at
        if not self._policy.meets(at, func):
            raise self._policy.mismatch(at, func, hint=HINT)
        self._at = at + 1
        return CheckpointPolicy.MUST_SAVE if self._policy.saves[at] else CheckpointPolicy.PREFER_RECOMPUTE


def compiled_contexts(policy: Policy) -> Any:
    """What checkpointing is given while it is traced."""
    return create_selective_checkpoint_contexts(Decisions(policy))
