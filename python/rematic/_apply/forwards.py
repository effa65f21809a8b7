"""Which forward of the captured step the next one is.

A step may call the model several times, or parts of it by themselves, and a plan may treat these forwards differently. They
follow one another as they were captured, over and over. The optimizer's step ends a step early: where the last
micro-batches of an epoch are fewer, the next step begins with its first forward again.
"""

from __future__ import annotations

import urllib.parse
import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rematic._core import Plan, PlanError
from rematic._model.forwards import FORWARDS, REST, STEP, TRAIN

_restarting: weakref.WeakSet[Forwards] = weakref.WeakSet()
_hooks: list[Any] = []


class Forwards:
    """The forwards of a step in order, and the next of them."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        captured = _captured(plan)
        words = [word.partition(":") for word in captured if word != STEP]
        called = [(kind, urllib.parse.unquote(path)) for kind, _, path in words]
        # Parts without a checkpointed module may be called as often as they like.
        regions = [region for variant in plan.variants for region in variant.regions]
        modules = [module for region in regions for module, _ in ((region.module, region.call), *region.then)]
        chosen = {module.partition(".")[2] for module in modules}
        counted = [(kind, path) for kind, path in called if _holds(path, chosen)] or called
        self.kinds = [kind for kind, _ in counted]
        # What is called: the model itself where it is empty.
        self.paths = [path for _, path in counted]
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

    def has(self, trains: bool, path: str) -> bool:
        """Whether a forward of this part of the model, which trains or not, is the step's next one. One that does not train
        may come at any time, as in a validation."""
        kind, expected = self.kinds[self.next], self.paths[self.next]
        if path == expected and kind == (TRAIN if trains else REST):
            return True
        if trains and path != expected:
            raise PlanError(
                f"Forward {self.next} (from 0) of the {self.count} in the step that was planned is one of {_words(expected)}, but now "
                f"{_words(path)} is called; call them in the order in which they were captured, or capture the step as it runs with "
                "rematic.capture_step"
            )
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


def _holds(path: str, modules: set[str]) -> bool:
    """Whether one of the modules is this one or inside it."""
    return not path or any(module == path or module.startswith(f"{path}.") for module in modules)


def _words(path: str) -> str:
    return f"`{path}`" if path else "the model"


def _captured(plan: Plan) -> list[str]:
    """The forwards of the plan's step; of several variants, of the one that has the most. Where others have fewer, the
    optimizer's step comes earlier."""
    all_facts = [variant.facts for variant in plan.variants]
    captured = [facts.get(FORWARDS, TRAIN).split() for facts in all_facts]
    for facts, kinds in zip(all_facts, captured, strict=True):
        if not set(kinds) - {STEP} or not {TRAIN, REST, STEP}.issuperset(kind.partition(":")[0] for kind in kinds):
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
