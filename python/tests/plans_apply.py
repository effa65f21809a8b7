"""Every plan that is made can be applied: random plans for many models, each of them run.

    python plans_apply.py --plans 40                      # the models of the tests
    python plans_apply.py --plans 20 --models zoo.from_timm:ENTRIES --match 'timm/re*'

For each model, budgets between the least and the peak are drawn, with planners and options; each plan is applied, the
model runs forward and backward, and its outputs, gradients and buffers are compared with those of the plain run, bit for
bit. What is refused and what differs is printed, with the options that show it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import importlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import rematic
from models import MODELS, Build
from writing_models import WRITING

Builder = Callable[[str], Build]
# For torch's planner.
SECONDS = 5


@dataclasses.dataclass(frozen=True)
class Options:
    """How one plan is asked for."""

    budget: int
    planner: str
    whole: bool
    only: str | None
    never: str | None


@dataclasses.dataclass
class Count:
    """What became of the plans."""

    plans: int = 0
    # Options that leave nothing to choose from, or not enough.
    without: int = 0
    refused: int = 0
    different: int = 0

    def add(self, other: Count) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        return (
            f"{self.plans} plans applied, {self.refused} refused, {self.different} with other values; "
            f"{self.without} times there was none"
        )


def loss_of(output: Any) -> Tensor:
    """All that a model returns, as one number."""
    leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
    trained = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    return torch.stack([leaf.float().square().mean() for leaf in trained]).sum()


class Trial:
    """One model with its trace and what it gives without a plan."""

    def __init__(self, name: str, build: Builder, seed: int) -> None:
        self.name = name
        torch.manual_seed(seed)
        self.model, self.args, self.kwargs = build("cpu")
        self.random = random.Random(f"{name} {seed}")
        for tensor in tree_leaves((self.args, self.kwargs)):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.any():
                tensor.normal_()
        self.state = {key: tensor.detach().clone() for key, tensor in self._tensors()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rematic.RematicWarning)
            self.trace = rematic.capture(
                self.model, *self.args, loss=loss_of, optimizer=False, device="cpu", **self.kwargs
            )
        self.expected = self.run()
        if not all(same(*pair) for pair in zip(self.run(), self.expected, strict=True)):
            raise RuntimeError(f"{name} does not give the same values twice")
        self.peak = self.trace.peak()
        self.least = self._least()
        around = [path for path, module in self.model.named_modules() if path and any(True for _ in module.children())]
        self.patterns = sorted({f"*{path.rpartition('.')[2]}" for path in around})

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def _least(self) -> int:
        try:
            return rematic.plan(self.trace, 1).peak
        except rematic.Infeasible as infeasible:
            return infeasible.least_budget

    def run(self) -> list[Tensor]:
        """The loss, gradients and buffers of one step; and what the generator gives afterwards."""
        with torch.no_grad():
            for key, tensor in self._tensors():
                tensor.copy_(self.state[key])
        self.model.zero_grad()
        torch.manual_seed(3)
        loss = loss_of(self.model(*self.args, **self.kwargs))
        loss.backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        return [loss.detach(), *gradients, *buffers, torch.rand(2)]

    def draw(self, planners: tuple[str, ...]) -> Options:
        planner = self.random.choice(planners)
        pattern = self.random.choice(self.patterns) if self.patterns and self.random.random() < 0.4 else None
        which = self.random.choice(("only", "never"))
        return Options(
            # Near the least more is dropped; there most can go wrong.
            budget=round(self.least + (self.peak - self.least) * self.random.random() ** 2),
            planner=planner,
            whole=planner != "milp" and self.random.random() < 0.2,
            only=pattern if which == "only" else None,
            never=pattern if which == "never" else None,
        )

    def plan(self, options: Options) -> rematic.Plan | None:
        """A plan; where no plan meets the budget, the one with the lowest peak. None if no module may be planned, or if torch's
        model knows no plan."""
        choice: dict[str, Any] = {"planner": options.planner, "whole": options.whole}
        # The solver's memory grows with its time, up to gigabytes where it does not find an end.
        choice |= {"time_limit": SECONDS} if options.planner == "milp" else {}
        choice |= {"only": options.only} if options.only else {}
        choice |= {"never": options.never} if options.never else {}
        try:
            with warnings.catch_warnings():
                # Plans of `milp` may be above the budget: they are applied all the same.
                warnings.simplefilter("ignore", rematic.RematicWarning)
                return rematic.plan(self.trace, options.budget, **choice)
        except rematic.Infeasible as infeasible:
            if options.planner == "milp":
                return None
            least = infeasible.least_budget
        except rematic.PlanError:
            return None
        return rematic.plan(self.trace, least, **choice)

    def check(self, options: Options, count: Count, report: Callable[[str], None]) -> None:
        plan = self.plan(options)
        if plan is None or not plan.regions:
            count.without += 1
            return
        count.plans += 1
        try:
            rematic.apply(self.model, plan)
            found = self.run()
        except Exception as error:
            count.refused += 1
            report(f"REFUSED {self.name} {options}: {type(error).__name__}: {error}")
            return
        finally:
            rematic.remove(self.model)
        different = [n for n, pair in enumerate(zip(found, self.expected, strict=True)) if not same(*pair)]
        if different:
            count.different += 1
            report(f"DIFFERENT {self.name} {options}: {len(different)} of {len(found)} values, {different[:8]}")


def same(found: Tensor, expected: Tensor) -> bool:
    """To the bit; what is not a number is equal to itself."""
    return found.dtype == expected.dtype and torch.equal(found.nan_to_num(), expected.nan_to_num())


def try_plans(
    name: str, build: Builder, plans: int, seed: int = 0, report: Callable[[str], None] = print, milp: bool = True
) -> Count:
    """Random plans for one model."""
    trial = Trial(name, build, seed)
    planners = ("exact", "exact", "greedy", "milp") if milp else ("exact", "greedy")
    count = Count()
    for _ in range(plans):
        trial.check(trial.draw(planners), count, report)
    return count


def found_models(place: str) -> dict[str, Builder]:
    """Models by name: `module:attribute`, a mapping from names to builders or a list of entries with both."""
    module, _, attribute = place.partition(":")
    models = getattr(importlib.import_module(module), attribute)
    return dict(models) if isinstance(models, dict) else {entry.name: entry.build for entry in models}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=20, help="for each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", action="append", help="module:attribute; may be repeated")
    parser.add_argument("--match", default="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models: dict[str, Builder] = {}
    for place in arguments.models or []:
        models |= found_models(place)
    total = Count()
    for name, build in (models or {**WRITING, **MODELS}).items():
        if not fnmatch.fnmatch(name, arguments.match):
            continue
        try:
            count = try_plans(name, build, arguments.plans, arguments.seed, lambda text: print(text, flush=True))
        except Exception as error:
            print(f"{name}: not tried: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{name}: {count}", flush=True)
        total.add(count)
    print(f"all: {total}")
    return int(bool(total.refused or total.different))


if __name__ == "__main__":
    sys.exit(main())
