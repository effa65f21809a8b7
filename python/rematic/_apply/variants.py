"""The variants that a plan was made for, and which of them the forward that runs now may be.

What the model is given speaks first: the variants whose inputs are most alike in kind may run. Then its operators speak:
the first ones of the forward, as far as the plan has them, and those of each checkpointed module. Where nothing tells two
variants apart, the one is followed that was captured with the smallest inputs that are not smaller than these.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from rematic._core import Plan
from rematic._model.signature import INPUTS, NEXT, Signature

from .choice import Choice, Policies, let_go
from .policy import Policy, makes_text, name_of, passes, passes_named

if TYPE_CHECKING:
    from .kept import Kept


# The fact of a trace that names assumptions, and those by which operators may differ from step to step.
ASSUMED = "assumed"
VARYING = ("values that depend on weights", "routing assumed balanced")


def _varies(assumed: str) -> bool:
    return any(text in assumed for text in VARYING)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What tells one variant from the others before its modules run."""

    name: str
    opening: tuple[str, ...]
    # Of its forwards in order; one if they are all given the same.
    inputs: tuple[Signature, ...]
    needs: int
    """Its peak without a plan."""

    def given(self, forward: int) -> Signature:
        """What one of its forwards was given when it was captured."""
        return self.inputs[min(forward, len(self.inputs) - 1)]


class Variants:
    """All of a plan's variants."""

    def __init__(self, plan: Plan) -> None:
        self.all = [
            Variant(
                variant.name,
                tuple(name for name in variant.opening if not passes_named(name)),
                tuple(Signature.read(text) for text in variant.facts.get(INPUTS, "").split(NEXT)),
                variant.baseline_peak,
            )
            for variant in plan.variants
        ]
        self.several = len(self.all) > 1
        # Whether what runs depends on numbers, as those that weights give: other operators may run from step to step.
        self._varies = any(_varies(variant.facts.get(ASSUMED, "")) for variant in plan.variants)
        # Those that may run, the likeliest first.
        self.possible = list(range(len(self.all)))
        self._opening: Opening | None = None
        # Regions of this forward whose operators did not tell which of several policies was theirs.
        self._untold: list[tuple[Kept, Policies]] = []

    def begin(self, forward: int, given: Signature) -> None:
        """A forward of the model begins, with these inputs."""
        captured = [variant.given(forward) for variant in self.all]
        distances = [one.distance(given) for one in captured]
        alike = [at for at, distance in enumerate(distances) if distance == min(distances)]

        def rank(at: int) -> tuple[Any, ...]:
            one = captured[at]
            size = one.size() if one.covers(given) else -one.size()
            return size < 0, size, -self.all[at].needs, at

        self.possible = sorted(alike, key=rank)

    def tell(self, variants: frozenset[int]) -> None:
        """Operators have told that it is one of these."""
        self.possible = [at for at in self.possible if at in variants] or sorted(variants)
        self._settle(over=False)

    def _defer(self, kept: Kept, policies: Policies) -> None:
        self._untold.append((kept, policies))

    def _settle(self, *, over: bool) -> None:
        """Gives regions that have run the policy of the variant that is now known; when the forward is over, of the
        likeliest."""
        untold, self._untold = self._untold, []
        for kept, policies in untold:
            left = [policy for policy, variants in policies if not variants.isdisjoint(self.possible)]
            if over or len(left) == 1:
                kept.policy = left[0] if left else policies[0][0]
                let_go(kept.policy, kept)
            else:
                self._untold.append((kept, policies))

    def choice(self, planned: Mapping[int, Policy]) -> Policy | Choice | None:
        """What is followed in a call of a module, of which some variants have policies. None if it is not checkpointed."""
        if not self.several and not self._varies:
            return planned[0]
        self.told()
        live, without = _grouped(planned, self.possible)
        if not live:
            return None
        if self._varies:
            # Each of them may do something else this once.
            without = frozenset(self.possible)
        rest = [at for at in range(len(self.all)) if at not in self.possible]
        others, others_without = _grouped(planned, rest)
        return Choice(live, without, others, others_without, self.tell, self._defer)

    def unlike(self, model: nn.Module, forward: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """What these inputs have otherwise than those that were captured, and what to do about it."""
        given = Signature.of(model, args, kwargs)
        captured = [variant.given(forward) for variant in self.all]
        nearest = min(captured, key=lambda one: (one.distance(given), len(given.unlike(one))))
        found = given.unlike(nearest)
        said = f"Unlike the captured inputs, {'; '.join(found)}. " if found and nearest.given else ""
        names = ", ".join(f"`{variant.name}`" for variant in self.all)
        known = f"It is none of the plan's variants, {names}. " if self.several else ""
        return (
            f"{known}{said}If such batches come in training, plan for them too: rematic.auto(..., variants=[...]), or "
            "rematic.plan([trace, other], ...) with a trace of each."
        )

    @contextlib.contextmanager
    def telling(self, forward: int, given: Signature, *, opens: bool) -> Iterator[None]:
        """While it is entered, a forward with these inputs tells which variant it is; if it opens the step, by its first
        operators too."""
        self.begin(forward, given)
        openings = {at: self.all[at].opening for at in self.possible}
        if opens and len(set(openings.values())) > 1:
            self._opening = Opening(self, openings)
            self._opening.__enter__()
        try:
            yield
        finally:
            self._close()
            self._settle(over=True)

    def told(self) -> None:
        """Stops to compare the first operators, if they have said all that they can."""
        if self._opening is not None and self._opening.is_over and _get_current_dispatch_mode() is self._opening:
            self._close()

    def _close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.__exit__(None, None, None)


class Opening(TorchDispatchMode):
    """Compares the first operators of a forward with those of the variants."""

    def __init__(self, variants: Variants, openings: dict[int, tuple[str, ...]]) -> None:
        super().__init__()
        self._variants = variants
        self._openings = openings
        self._at = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled parts run as one."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether no further operator tells anything."""
        return not self._openings

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._openings and not passes(func):
            self._compare(name_of(func))
        return func(*args, **(kwargs or {}))

    def _compare(self, name: str) -> None:
        at = self._at
        left = {one: names for one, names in self._openings.items() if at >= len(names) or names[at] == name}
        if len(left) < len(self._openings) and makes_text():
            return
        self._at = at + 1
        if left and len(left) < len(self._openings):
            self._variants.tell(frozenset(left))
        # If none has this operator, what runs outside of modules is not as it was captured, and says nothing.
        going_on = left and len(left) > 1 and any(at + 1 < len(names) for names in left.values())
        self._openings = left if going_on else {}


def _grouped(planned: Mapping[int, Policy], variants: list[int]) -> tuple[Policies, frozenset[int]]:
    """The policies of some variants, equal ones once, and the variants without one."""
    grouped: Policies = []
    for variant in variants:
        policy = planned.get(variant)
        if policy is None:
            continue
        for at, (known, its) in enumerate(grouped):
            if known.names == policy.names and known.saves == policy.saves:
                grouped[at] = known, its | {variant}
                break
        else:
            grouped.append((policy, frozenset([variant])))
    return grouped, frozenset(variant for variant in variants if variant not in planned)
