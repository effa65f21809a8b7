"""Which of several variants' policies a call of a module follows, as its operators tell.

While operators agree with the policies of several variants, what one of them saves is kept. Where they part, those that
have another operator there are out, and what none of the others saves is let go of. If they do not part in this module, that
is done as soon as something else in the forward tells.

A variant may not checkpoint this module at all, or may run other operators as its numbers fall: what it runs here is not
known. If only such variants are left, or those that the model's inputs spoke against, the module is recomputed whole this
once, and what runs again is compared with what ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .policy import Policy, name_of

if TYPE_CHECKING:
    from .kept import Kept

Variants = frozenset[int]
Policies = list[tuple[Policy, Variants]]


class Joint(Policy):
    """What several policies have in common: their operators up to where they part."""

    def __init__(self, policies: list[Policy], *, open_to_all: bool) -> None:
        first = policies[0]
        count = 0
        for names in zip(*(policy.names for policy in policies)):
            if len(set(names)) > 1:
                break
            count += 1
        saves = [[policy.saves[at] for policy in policies] for at in range(count)]
        super().__init__(first.module, first.call, [(first.names[at], any(saves[at])) for at in range(count)])
        self.positions = first.positions[:count]
        # What is saved for any of them is read by no fewer than by each.
        self.skips = frozenset(at for at in range(count) if all(at in policy.skips for policy in policies))
        self.outlined = frozenset(at for at in range(count) if any(at in policy.skips for policy in policies))
        self._policies = policies
        self._disputed = [open_to_all or not all(saved) for saved in saves]

    def skip_nothing(self) -> None:
        super().skip_nothing()
        for policy in self._policies:
            policy.skip_nothing()

    def disputed(self, at: int) -> bool:
        return self._disputed[at]


class Unplanned(Policy):
    """Grows by what runs; nothing more of it is saved."""

    def __init__(self, followed: Policy, at: int, kept: Kept, allows: Callable[[int, str], bool]) -> None:
        names = followed.names[:at]
        super().__init__(followed.module, followed.call, [(name, False) for name in names])
        self.saves = [at in kept.values for at in range(len(names))]
        self.draws, self.changes = followed.draws[:at], followed.changes[:at]
        self._allows = allows

    def meets(self, at: int, func: Any) -> bool:
        if at == len(self.names):
            name = name_of(func)
            if not self._allows(at, name):
                return False
            self.names.append(name)
            self.positions.append(at)
            self.length += 1
            self.ops.append(None)
            for answers in (self.saves, self.draws, self.changes, self.plain):
                answers.append(False)
        return super().meets(at, func)

    def closed(self) -> Policy:
        """What ran, as a policy that does not grow any more."""
        return Policy(self.module, self.call, list(zip(self.names, self.saves, strict=True)))


def let_go(policy: Policy, kept: Kept) -> None:
    """Lets go of what this policy does not save."""
    for at in [at for at in kept.values if not policy.saves[at]]:
        del kept.values[at]


class Choice:
    """The policies that one call of a module may follow."""

    def __init__(
        self,
        live: Policies,
        without: Variants,
        others: Policies,
        others_without: Variants,
        tell: Callable[[Variants], None],
        defer: Callable[[Kept, Policies], None],
    ) -> None:
        # Of the variants that may run: their policies, the likeliest first, and those that have none here.
        self._live = live
        self._without = without
        # The same of variants that something spoke against.
        self._others = others
        self._others_without = others_without
        self._tell = tell
        self._defer = defer
        self._unplanned: Unplanned | None = None
        self.first = self.followed = self._joined()

    def _joined(self) -> Policy:
        policies = [policy for policy, _ in self._live]
        if len(policies) == 1 and not self._without:
            return policies[0]
        return Joint(policies, open_to_all=bool(self._without))

    @property
    def may_wander(self) -> bool:
        """Whether none of the live policies may turn out to be right."""
        return bool(self._without or self._others_without or self._others)

    @property
    def likeliest(self) -> Policy | None:
        """What the region does once its caches are filled."""
        return None if self._unplanned is not None else self._live[0][0]

    @property
    def wanders(self) -> bool:
        """Whether none of the policies is followed any more."""
        return self._unplanned is not None

    def turned(self, at: int, func: Any, kept: Kept) -> Policy:
        """What is followed from here on, where another operator runs than all so far have."""
        name = name_of(func)
        going_on = [(policy, variants) for policy, variants in self._live if policy.names[at : at + 1] == [name]]
        if going_on and self._unplanned is None:
            self._live = going_on
            self._follow(self._joined(), kept)
        elif self._unplanned is not None or not self._elsewhere(at, name):
            raise self.mismatch(at, func)
        else:
            self._wander(at, kept)
        if not self.followed.meets(at, func):
            raise self.mismatch(at, func)
        return self.followed

    def ended(self, at: int, kept: Kept) -> Policy:
        """What was followed, where nothing more runs."""
        over = [(policy, variants) for policy, variants in self._live if len(policy.names) == at]
        if over and self._unplanned is None:
            self._live = over
            self._follow(self._joined() if len(over) > 1 else over[0][0], kept)
            self._tell(self._without.union(*(variants for _, variants in over)))
            if len(over) > 1:
                self._defer(kept, over)
            return self.followed
        if self._unplanned is None:
            if not self._elsewhere(at, None):
                raise self.mismatch(at, None)
            self._wander(at, kept)
        elif not self._elsewhere(at, None):
            raise self.mismatch(at, None)
        over = [(policy, variants) for policy, variants in self._others if policy.names == self.followed.names]
        if not kept.values:
            kept.snapshot.use_copies()
        told = self._without or self._others_without
        self._tell(told.union(*(variants for _, variants in over)) if not self._without else told)
        assert self._unplanned is not None
        return self._unplanned.closed()

    def _follow(self, policy: Policy, kept: Kept) -> None:
        let_go(policy, kept)
        self.followed = policy

    def _elsewhere(self, at: int, name: str | None) -> bool:
        """Whether a variant that is left has this operator here, or ends here, as far as is known."""
        if self._without or self._others_without:
            return True
        names = self.followed.names[:at]
        ahead = [] if name is None else [name]
        return any(policy.names[:at] == names and policy.names[at : at + 1] == ahead for policy, _ in self._others)

    def _wander(self, at: int, kept: Kept) -> None:
        """Follows none of the live policies any more."""
        followed = self.followed
        # Where the state of the generator was not taken, what was drawn must stay, and with it what belongs to it.
        if all(at in kept.states for at in kept.values if followed.draws[at]):
            kept.values.clear()
        self.followed = self._unplanned = Unplanned(followed, at, kept, self._elsewhere)

    def mismatch(self, at: int, func: Any) -> Any:
        """The error that no variant has this operator here."""
        policies = [policy for policy, _ in self._live + self._others if policy.names[:at] == self.followed.names[:at]]
        expected = [policy.names[at] for policy in policies if at < len(policy.names)]
        error = (policies or [self.followed])[0].mismatch(at, func)
        if len(set(expected)) > 1:
            error.add(f"Its variants have {', '.join(f'`{name}`' for name in dict.fromkeys(expected))} there.")
        return error
