"""Which forward of the captured step the next one is.

A step may call the model several times, and a plan may treat these forwards differently. They follow one another as they
were captured, over and over. The optimizer's step ends a step early: where the last micro-batches of an epoch are fewer,
the next step begins with its first forward again.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rematic._core import Plan, PlanError
from rematic._capture.modules import FORWARDS, REST, STEP, TRAIN

_restarting: weakref.WeakSet[Forwards] = weakref.WeakSet()
_hooks: list[Any] = []


class Forwards:
    """The forwards of a step in order, and the next of them."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        captured = _captured(plan)
        self.kinds = [kind for kind in captured if kind != STEP]
        self.next = 0
        # Where the optimizer steps between the forwards of one step, its step does not tell where the next begins.
        self.restarts = len(self.kinds) > 1 and STEP not in captured
        self._listen()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._listen()

    def _listen(self) -> None:
        if self.restarts:
            _restarting.add(self)
            if not _hooks:
                _hooks.append(register_optimizer_step_post_hook(_stepped))

    @property
    def count(self) -> int:
        """How many a step has."""
        return len(self.kinds)

    def has(self, trains: bool) -> bool:
        """Whether a forward, which trains or not, is the step's next one. One that does not train may come at any
        time, as in a validation."""
        if self.kinds[self.next] == (TRAIN if trains else REST):
            return True
        if trains:
            raise PlanError(
                f"Forward {self.next} (from 0) of the {self.count} in the step that was planned runs without gradients or in "
                "evaluation, but this one trains; call the model in the order in which it was captured"
            )
        return False

    def advance(self) -> bool:
        """One is over. Whether it was the step's last."""
        self.next = (self.next + 1) % self.count
        return self.next == 0

    def restart(self) -> None:
        """The step begins anew."""
        self.next = 0


def _captured(plan: Plan) -> list[str]:
    """The forwards of the plan's step; of several variants, of the one that has the most. Where others have fewer, the
    optimizer's step comes earlier."""
    all_facts = [variant.facts for variant in plan.variants]
    captured = [facts.get(FORWARDS, TRAIN).split() for facts in all_facts]
    for facts, kinds in zip(all_facts, captured, strict=True):
        if not set(kinds) - {STEP} or not {TRAIN, REST, STEP}.issuperset(kinds):
            raise PlanError(
                f"The plan says of the step's forwards `{facts[FORWARDS]}`, where only {TRAIN}, {REST} and {STEP} are "
                "known; plan with this version"
            )
    longest = max(captured, key=len)
    for variant, kinds in zip(plan.variants, captured, strict=True):
        if longest[: len(kinds)] != kinds:
            raise PlanError(
                f"The variants of a plan call the model alike, but for the last forwards of a step, which may be missing; "
                f"variant `{variant.name}` calls it `{' '.join(kinds)}`, where another has `{' '.join(longest)}`: plan for it alone"
            )
    return longest


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for forwards in list(_restarting):
        if forwards.next and any(id(parameter) in stepped for parameter in forwards.model.parameters()):
            forwards.restart()
