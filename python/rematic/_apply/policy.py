"""What a plan decides about one call of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rematic._core import Region
from rematic._model.collectives import COLLECTIVES, is_wait, is_wait_named

from .errors import Mismatch

if TYPE_CHECKING:
    from .kept import Kept

aten = torch.ops.aten
DETACH = aten.detach.default
TO_COPY = aten._to_copy.default
LIFT = aten.lift_fresh.default
# What capture does not record: they run no kernel.
UNRECORDED = ("profiler", "prim", "prims")
# In training these update running statistics, without declaring it.
BATCH_NORMS = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default)
ACTED_ON = (*BATCH_NORMS, TO_COPY)

READ = aten._local_scalar_dense.default
_PASSING = ("detach.default", "lift_fresh.default", "_local_scalar_dense.default")
# Where torch writes tensors as text.
_TEXTS = torch._tensor_str.__file__


def passes(func: Any) -> bool:
    """Whether an operator is in no policy."""
    if func is DETACH or func is LIFT or func is READ or func.namespace in UNRECORDED:
        return True
    return func.namespace in COLLECTIVES and is_wait(func)


def passes_named(name: str) -> bool:
    """The same by its name, as plans spell it."""
    return name in _PASSING or is_wait_named(name)


def makes_text() -> bool:
    """Whether an operator runs for the text of a tensor, which is in no policy either. To ask takes a while."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _TEXTS:
            return True
        frame = frame.f_back
    return False


def name_of(func: Any) -> str:
    """An operator's name as plans spell it."""
    return str(func).removeprefix("aten.")


class Policy:
    """The operators of a region in order, and whether their outputs are saved, or not even made again.

    Checkpointing itself detaches what autograd saves, once in forward and in other places when it recomputes. `detach` makes no
    memory and is left out on both sides. So is `lift_fresh`, by which numbers of the code become tensors, the reading of one
    number, which a message about the tensor does on some devices, and what only waits for a collective.
    """

    def __init__(
        self,
        module: str,
        call: int,
        decisions: list[tuple[str, bool]],
        offloaded: Sequence[int] = (),
        number: int = -1,
        skipped: Sequence[int] = (),
    ) -> None:
        self.module = module
        self.call = call
        # The further calls of a run: their modules and numbers.
        self.then: list[tuple[str, int]] = []
        listed = [(index, name, saved) for index, (name, saved) in enumerate(decisions) if not passes_named(name)]
        self.length = len(decisions)
        self.positions = [index for index, _, _ in listed]
        self.names = [name for _, name, _ in listed]
        self.saves = [saved for _, _, saved in listed]
        # Those of them whose outputs lie on the host between forward and backward.
        self.offloads = frozenset(at for at, place in enumerate(self.positions) if place in offloaded)
        # Those that do not run again, as nothing reads what they make.
        left_out = frozenset(skipped)
        self.skips = frozenset(at for at, place in enumerate(self.positions) if place in left_out)
        # Those of which the shape is written down, for it may be that they do not run again.
        self.outlined = self.skips
        # Which region of the plan it is.
        self.number = number
        # Those of the same call in the plan's other variants, for the compiler.
        self.others: list[Policy] = []
        self._forget_ops()

    @staticmethod
    def of(region: Region, number: int) -> Policy:
        """What a plan decides about its region of this number."""
        policy = Policy(region.module, region.call, region.policy, region.offloaded, number, region.skipped)
        policy.then = region.then
        return policy

    def skip_nothing(self) -> None:
        """From now on all that is not saved runs again."""
        self.skips = frozenset()

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"`{self.module}` to `{self.then[-1][0]}`" if self.then else f"`{self.module}`"

    def _forget_ops(self) -> None:
        # The operators themselves, which are compared faster than their names, and what must be known about them. They
        # are filled in as they are met.
        self.ops: list[Any] = [None] * len(self.names)
        self.draws = [False] * len(self.names)
        self.changes = [False] * len(self.names)
        # Whether nothing is to be done but to run it.
        self.plain = [False] * len(self.names)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("ops", "draws", "changes", "plain")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_ops()

    def meets(self, at: int, func: Any) -> bool:
        """Whether the region's operator at this place is the one that runs now."""
        if at >= len(self.names) or name_of(func) != self.names[at]:
            return False
        draws = func.namespace != "aten" and func.namespace not in COLLECTIVES
        self.draws[at] = torch.Tag.nondeterministic_seeded in func.tags or draws
        self.changes[at] = func._schema.is_mutable
        is_noted = self.saves[at] or self.draws[at] or self.changes[at] or at in self.outlined
        self.plain[at] = not (is_noted or func in ACTED_ON)
        self.ops[at] = func
        return True

    def reach(self, at: int) -> Iterable[int]:
        """The places at which the next operator may be."""
        return (at,)

    def disputed(self, at: int) -> bool:
        """Whether an output that is saved may be let go of before the region is over."""
        return False

    @property
    def likeliest(self) -> Policy | None:
        """What the region does once its caches are filled."""
        return self

    def turned(self, at: int, func: Any, kept: Kept) -> Policy:
        """What is followed from here on, where another operator runs than this policy has."""
        raise self.mismatch(at, func)

    def ended(self, at: int, kept: Kept) -> Policy:
        """What was followed, where nothing more runs."""
        if at < len(self.names):
            raise self.mismatch(at, None)
        return self

    def place(self, at: int) -> int:
        """Where an operator is in the plan, which counts those that are left out too."""
        return self.positions[at] if at < len(self.positions) else self.length

    def mismatch(self, at: int, func: Any, *, again: bool = False, hint: str = "") -> Mismatch:
        """The error that another operator runs, or none any more."""
        return Mismatch(
            self.module,
            self.call,
            self.place(at),
            self.names[at] if at < len(self.names) else None,
            name_of(func) if func is not None else None,
            again=again,
            hint=hint,
        )
