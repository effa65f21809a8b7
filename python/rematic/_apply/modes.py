"""Follow a plan while a checkpointed module runs, for the first time and again.

Both modes see every operator, check that it is the one that the plan has at this place, and act on its decision: in
forward the outputs of saved operators are kept, when it is recomputed they are handed back, and their operators do not
run, nor do those whose results nothing reads. PyTorch's own selective modes go by the count of each kind of operator,
refuse to keep what is changed in place together with its maker, and do not look at operators when they recompute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._core import PlanError
from rematic._model.wrapped import has_wrapped, is_imagined
from rematic._warning import warn

from .audit import Audit
from .choice import Choice, Unplanned
from .errors import Mismatch, changed, twice
from .filling import Filling
from .generators import Source, set_state, source_of, state_of
from .hollow import Hollow, Unshaped, hollowed, outlined
from .host import Sent, brought_back
from .inside import Inside
from .kept import Kept
from .nested import (
    ARGUMENT,
    Weak,
    detached,
    filled,
    is_among,
    mapped,
    revived,
    storages_of,
    tensors_of,
    versions_of,
    written_by,
)
from .policy import BATCH_NORMS, READ, TO_COPY, Policy, makes_text, name_of, passes
from .recourse import repeated
from .snapshot import Snapshot

# Where the operators of batch norm take the running statistics, and whether they train.
STATISTICS, TRAINING = slice(3, 5), 5
AUTOCAST = ("cpu", "cuda")


Hollow.error = PlanError
# Stands for an operator of the region.
ITS_OWN = object()


class _Follower(TorchDispatchMode):
    """Goes through a region's policy with the operators as they run."""

    def __init__(self, policy: Policy, kept: Kept) -> None:
        super().__init__()
        self._kept = kept
        self._at = 0
        # Whether parts of wholes were met: shapes are worked out for them in between.
        self._is_spread = False
        self._take(policy)

    def _other(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives that is none of the region's: one on tensors that have others inside, by which those come here,
        and one that works out shapes."""
        if has_wrapped(types):
            self._is_spread = True
            return NotImplemented
        return func(*args, **(kwargs or {})) if is_imagined() else ITS_OWN

    def _take(self, policy: Policy) -> None:
        self._policy = policy
        self._ops = policy.ops
        self._plain = policy.plain
        self._count = len(policy.ops)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise PyTorch turns its compiler off and on around every operator, which takes longer than all that is
        # done here. While it traces, these modes are not used.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled parts inside a region run as one."""
        return True


class Forward(_Follower):
    """The first run of a region."""

    def __init__(self, policy: Policy | Choice, kept: Kept) -> None:
        super().__init__(policy if isinstance(policy, Policy) else policy.first, kept)
        # Says what is followed where operators tell variants apart.
        self._possible = policy
        # Generators that nothing but operators that draw again has moved since their state was taken.
        self._known: set[Source] = set()
        self._watched = kept.snapshot.watched if kept.snapshots else {}
        self._audit = kept.audit
        # Known where other operators than the planned ones may run; it takes time.
        may_wander = not isinstance(policy, Policy) and policy.may_wander
        self._inside = Inside(from_start=True) if may_wander or self._audit is not None else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types or self._is_spread:
            out = self._other(func, types, args, kwargs)
            if out is not ITS_OWN:
                return out
        at = self._at
        if at >= self._count or self._ops[at] is not func:
            if passes(func):
                if func is READ and self._watched:
                    self._kept.snapshot.note_reads(args, kwargs)
                return func(*args, **(kwargs or {}))
            if not self._policy.meets(at, func):
                if makes_text():
                    return func(*args, **(kwargs or {}))
                self._take(self._turned(at, func))
        self._at = at + 1
        if self._watched:
            self._kept.snapshot.note_reads(args, kwargs)
        if self._plain[at]:
            out = func(*args, **kwargs) if kwargs else func(*args)
        else:
            out = self._run(at, func, args, kwargs or {})
        if self._inside is not None:
            self._inside.note(tensors_of((*args, *(kwargs or {}).values())), tensors_of(out))
        if self._audit is not None and not self._policy.saves[at] and at not in self._policy.skips:
            self._audit.first(at, func, args, out)
        return out

    def begin(self, snapshot: Snapshot) -> None:
        """A call of a run begins."""
        self._kept.snapshots.append(snapshot)
        self._kept.begin(snapshot)
        self._watched = snapshot.watched
        # What lies between two calls may have moved generators.
        self._known.clear()

    def _turned(self, at: int, func: Any) -> Policy:
        """What is followed from here on, where another operator runs."""
        if isinstance(self._policy, Filling):
            raise self._policy.mismatch(at, func)
        try:
            turned = self._possible.turned(at, func, self._kept)
        except Mismatch as error:
            planned = self._possible.likeliest
            if planned is None or self._kept.is_sharded_inside or planned.names[:at] != self._policy.names[:at]:
                raise
            self._inside = self._inside or Inside(from_start=False)
            filling = Filling(planned, self._policy, at, self._kept, self._inside, error)
            if not filling.meets(at, func):
                raise
            # What is run again is compared, in whichever step that is.
            self._audit = self._kept.audit = self._audit or Audit()
            return filling
        if isinstance(turned, Unplanned):
            self._check_wandering(turned)
        return turned

    def _check_wandering(self, policy: Policy) -> None:
        """Refuses to run a region again that has changed, in place, what it has not made. Copies of buffers are there; but
        they are not used if anything is saved."""
        assert self._inside is not None
        kept = self._kept
        for at, outside in self._inside.outside.items():
            handed_back = at < len(policy.saves) and policy.saves[at]
            if not handed_back and (kept.values or not outside <= kept.snapshot.copied):
                raise twice(policy, at)

    def _run(self, at: int, func: Any, args: Any, kwargs: Any) -> Any:
        policy, kept = self._policy, self._kept
        if policy.changes[at] and self._inside is not None and not self._is_handled(at, func, args, kwargs):
            raise twice(policy, at)
        saved = policy.saves[at]
        if func is TO_COPY and isinstance(args[0], nn.Parameter):
            kept.casts[at] = args[0]
        if policy.draws[at]:
            source = source_of(args, kwargs)
            if source not in self._known and (not saved or policy.disputed(at)):
                kept.states[at] = state_of(source)
                self._known.add(source)
            if saved:
                self._known.discard(source)
        out = func(*args, **kwargs)
        if isinstance(policy, Filling):
            policy.note(at, tensors_of(out))
        if at in policy.outlined:
            with contextlib.suppress(Unshaped):
                kept.outlines[at] = outlined(out, written_by(func, args, kwargs))
        if saved:
            written = written_by(func, args, kwargs) if policy.changes[at] else ()
            value = mapped(out, lambda tensor: ARGUMENT if is_among(tensor, written) else detached(tensor))
            kept.values[at] = value
            if at in policy.offloads and kept.movements is not None:
                kept.sent[at] = Sent(tensors_of(value), kept.movements.host)
        elif policy.changes[at]:
            self._check_change(at, func, args, kwargs)
        return out

    def _is_handled(self, at: int, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operator that changes something in place may run here."""
        assert self._inside is not None
        written = written_by(func, args, kwargs)
        if not isinstance(self._possible, Policy) and self._possible.may_wander:
            self._kept.snapshot.copy_buffers(written)
        outside = self._inside.note_change(at, written)
        if outside and isinstance(self._policy, Filling):
            self._policy.changes_outside(at)
        if outside and isinstance(self._policy, Unplanned):
            return not self._kept.values and outside <= self._kept.snapshot.copied
        return True

    def _check_change(self, at: int, func: Any, args: Any, kwargs: Any) -> None:
        written = {tensor.untyped_storage()._cdata for tensor in written_by(func, args, kwargs)}
        policy = self._policy
        for kept, value in self._kept.values.items():
            storages: set[int] = set()
            mapped(value, lambda tensor: storages.add(tensor.untyped_storage()._cdata))  # noqa: B023
            if storages & written:
                raise PlanError(
                    f"The plan saves operator {policy.positions[kept]} (`{policy.names[kept]}`) of `{policy.module}` and "
                    f"recomputes operator {policy.positions[at]} (`{name_of(func)}`), which changes its output in place "
                    "and would do so twice; save both or neither"
                )

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)
        if kind is None:
            ended = self._policy if isinstance(self._policy, Filling) else self._possible
            self._kept.policy = ended.ended(self._at, self._kept)
            if isinstance(self._possible, Choice) and self._possible.wanders:
                self._check_wandering(self._kept.policy)
            self._kept.close()
            if self._kept.movements is not None:
                self._kept.movements.ended(self._kept.policy.number, self._kept)


class Again(_Follower):
    """A region is recomputed."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept.policy, kept)
        # The generators that were put back, and their states before.
        self._moved: dict[Source, bytes] = {}
        # Where it may be, in a region that has filled a cache.
        self._places = [0]
        self._autocast = False
        self._suspects = kept.snapshot.suspects if kept.snapshots else {}
        self._audit = kept.audit
        self.skips: frozenset[int] = frozenset()
        # What has read a result that was not made.
        self.readers: list[str] = []
        # What was handed back, and the memory that was written, where it may come to a second try.
        self._handed: dict[int, Any] = {}
        self._written: set[int] = set()
        # What the plan saves and must be made again, in that.
        self._lost: frozenset[int] = frozenset()

    @property
    def module(self) -> str:
        """The module that is recomputed."""
        return self._policy.module

    def repeated(self, run: Callable[[], Any]) -> Any:
        """Runs the region again."""
        return repeated(self, run)

    def begin(self, snapshot: Snapshot) -> None:
        """A call of a run is made again."""
        self._kept.begin(snapshot)
        self._suspects = snapshot.suspects

    def __enter__(self) -> Any:
        change = self._kept.weights.change()
        if change is not None:
            module = self._kept.policy.module
            raise PlanError(
                f"A parameter of `{module}`, {change} after its forward and before its backward, so what the plan dropped cannot be "
                f'made again; call backward before the weights change, or plan without this module (never="{module}")'
            )
        if self._kept.movements is not None:
            self._kept.movements.begins_again(self._kept.policy.number)
        self._at = 0
        self._places = [0]
        self._take(self._kept.policy)
        self.skips = self._kept.skips
        self.readers = []
        # Not to be asked inside operators: there autocast is off.
        self._autocast = any(map(torch.is_autocast_enabled, AUTOCAST))
        return super().__enter__()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)
        while self._moved:
            set_state(*self._moved.popitem())
        self._handed, self._written, self._lost = {}, set(), frozenset()
        if self._audit is not None and not isinstance(value, PlanError):
            # Other numbers may be why something else has failed.
            self._audit.check(self._policy)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types or self._is_spread:
            out = self._other(func, types, args, kwargs)
            if out is not ITS_OWN:
                return out
        if isinstance(self._policy, Filling):
            return self._filled(self._policy, func, args, kwargs)
        at = self._at
        if at >= self._count or self._ops[at] is not func:
            if passes(func) or self._casts_anew(at, func, args):
                if func is READ and self._suspects:
                    self._check_reads(at, func, args, kwargs)
                return func(*args, **(kwargs or {}))
            if not self._policy.meets(at, func):
                if makes_text():
                    return func(*args, **(kwargs or {}))
                raise self._policy.mismatch(at, func, again=True)
        elif func is TO_COPY and self._casts_anew(at, func, args):
            return func(*args, **(kwargs or {}))
        self._at = at + 1
        return self._made_again(at, func, args, kwargs)

    def _filled(self, policy: Filling, func: Any, args: Any, kwargs: Any) -> Any:
        """The same in a region that has filled a cache, and may find it now."""
        if passes(func) or all(self._casts_anew(at, func, args) for at in self._places):
            if func is READ and self._suspects:
                self._check_reads(min(self._places), func, args, kwargs)
            return func(*args, **(kwargs or {}))
        found = policy.candidates(self._places, func)
        if not found:
            if makes_text():
                return func(*args, **(kwargs or {}))
            raise policy.mismatch(0, func, again=True)
        self._places = [place + 1 for place in found]
        return self._made_again(found[0], func, args, kwargs, is_sure=len(found) == 1)

    def _made_again(self, at: int, func: Any, args: Any, kwargs: Any, *, is_sure: bool = True) -> Any:
        if at in self.skips:
            written = written_by(func, args, kwargs or {}) if self._policy.changes[at] else ()
            # Whatever the plan says, what is there does not stay half made, and generators go on from where they were.
            if not self._policy.draws[at] and all(isinstance(tensor, Hollow) for tensor in written):
                return hollowed(self._kept.outlines[at], written, self.readers)
        if self._suspects and not self._policy.saves[at]:
            self._check_reads(at, func, args, kwargs)
        if self._plain[at]:
            out = func(*args, **kwargs) if kwargs else func(*args)
        else:
            out = self._run(at, func, args, kwargs or {})
        if self._audit is not None and is_sure and not self._policy.saves[at]:
            self._audit.again(at, func, args, out)
        return out

    def _check_reads(self, at: int, func: Any, args: Any, kwargs: Any) -> None:
        if func in BATCH_NORMS and args[TRAINING]:
            args = (*args[: STATISTICS.start], *args[STATISTICS.stop :])
        wrong = self._kept.snapshot.suspect(args, kwargs)
        if wrong is not None:
            policy = self._policy
            raise PlanError(
                f"Operator {policy.place(at)} (`{name_of(func)}`) of `{policy.module}` is run again by the plan and "
                f"reads {wrong}, so it would not make what it made before; leave it as it is until backward is over, or "
                f'plan without this module (never="{policy.module}")'
            )

    def _run(self, at: int, func: Any, args: Any, kwargs: Any) -> Any:
        if self._policy.saves[at] and at not in self._lost:
            return self._hand_back(at, func, args, kwargs)
        if self.skips and self._policy.changes[at]:
            self._written |= storages_of(written_by(func, args, kwargs))
        state = self._kept.states.get(at)
        if state is not None:
            source = source_of(args, kwargs)
            if source not in self._moved:
                self._moved[source] = state_of(source)
            set_state(source, state)
        if func in BATCH_NORMS and args[TRAINING]:
            # The first run has counted this batch.
            args = (*args[: STATISTICS.start], None, None, *args[STATISTICS.stop :])
        return func(*args, **kwargs)

    def _casts_anew(self, at: int, func: Any, args: Any) -> bool:
        """Whether a parameter is cast that the first run found in autocast's cache."""
        return (
            func is TO_COPY
            and self._autocast
            and isinstance(args[0], nn.Parameter)
            and all(self._kept.casts.get(place) is not args[0] for place in self._policy.reach(at))
        )

    def _hand_back(self, at: int, func: Any, args: Any, kwargs: Any) -> Any:
        policy, kept = self._policy, self._kept
        if at not in kept.values:
            raise PlanError(
                f"`{policy.module}` is recomputed a second time, but what the plan saves of it was handed back in the first "
                "backward; call backward once, without retain_graph, or plan with whole=True"
            )
        value = kept.values[at]
        if kept.is_away and at in kept.sent:
            del kept.sent[at]
            value = brought_back(value)
        elif versions_of(value) != kept.versions[at]:
            raise changed(policy, at)
        del kept.values[at]
        if self.skips:
            self._handed[at] = mapped(value, Weak)
        if not policy.changes[at]:
            return value
        # What is changed in place has changed already; autograd goes on with the argument.
        return filled(value, iter(written_by(func, args, kwargs)))

    def begin_in_full(self) -> bool:
        """Goes back to where the region began, to make all that is not saved. False where that would not be right: what was
        changed in place would be changed twice, or what was drawn cannot be drawn again."""
        kept, policy = self._kept, self._policy
        found = {at: revived(value) for at, value in self._handed.items()}
        lost = frozenset(at for at, (_, is_there) in found.items() if not is_there)
        changes = any(saved and changed for saved, changed in zip(policy.saves, policy.changes, strict=True))
        drawn = any(policy.draws[at] and at not in kept.states for at in lost)
        if kept.is_sharded_inside or (lost and (changes or drawn)) or self._written & kept.outside():
            return False
        for at, (value, is_there) in found.items():
            if is_there:
                kept.values[at], kept.versions[at] = value, versions_of(value)
        policy.skip_nothing()
        self.skips, self._lost = frozenset(), lost
        self.readers, self._handed, self._written = [], {}, set()
        self._at, self._places = 0, [0]
        if self._audit is not None:
            self._audit.restart()
        return True

    def tell(self, text: str) -> None:
        """Says, once of a module, that it runs again in full."""
        if self.module not in self._kept.told:
            self._kept.told.add(self.module)
            warn(text)
