"""What goes wrong when a model does not do what its plan was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rematic._core import PlanError

if TYPE_CHECKING:
    from .policy import Policy


class Mismatch(PlanError):
    """The model runs other operators than the plan was made for. Nothing else was recomputed in their place."""

    module: str
    """The checkpointed module."""
    call: int
    """Which of its calls in the step; the first is 0."""
    position: int
    """The position in the region's policy."""
    expected: str | None
    """The operator that the plan has there; None if it has none any more."""
    found: str | None
    """The operator that ran; None if none ran any more."""

    def __init__(
        self, module: str, call: int, position: int, expected: str | None, found: str | None, *, again: bool, hint: str
    ) -> None:
        when = "when it is recomputed" if again else "in forward"
        planned = f"operator {position} is `{expected}`" if expected else f"there are only {position} operators"
        ran = f"it runs `{found}`" if found else f"it runs only {position}"
        usual = (
            "It ran otherwise the first time, so it keeps something between its runs: a cache (use_cache), a counter, numbers "
            f'that are not PyTorch\'s; plan without it (never="{module}").'
            if again
            else "Plan again for the model, the inputs, the mode (train, autocast) and the device as they are."
        )
        super().__init__(
            f"`{module}` (call {call}) does not do what the plan was made for: in the plan {planned}, but {when} {ran}. "
            f"{hint or usual}"
        )
        self.module = module
        self.call = call
        self.position = position
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.args, self.__dict__)

    def add(self, words: str) -> None:
        """Says more about it."""
        self.args = (f"{self} {words}",)


class AuditError(PlanError):
    """An operator made other numbers when it ran again, so that gradients would be wrong. They were not computed."""

    module: str
    """The checkpointed module."""
    call: int
    """Which of its calls in the step; the first is 0."""
    position: int
    """The position in the region's policy of the first operator that differs."""
    op: str
    """The operator."""

    def __init__(self, module: str, call: int, position: int, op: str) -> None:
        super().__init__(
            f"`{module}` (call {call}) made other numbers when it ran again: operator {position} (`{op}`) is the first whose "
            "result differs. It reads something that has changed since its first run and cannot be put back, such as memory "
            "that is written outside of PyTorch, a file, a clock, or a generator of random numbers of another library; "
            f'leave that as it is until backward is over, or plan without this module (never="{module}")'
        )
        self.module = module
        self.call = call
        self.position = position
        self.op = op

    def __reduce__(self) -> tuple[Any, ...]:
        return AuditError, (self.module, self.call, self.position, self.op)


def _again(args: tuple[Any, ...], state: dict[str, Any]) -> Mismatch:
    """The error as it was, in another process."""
    error = Mismatch.__new__(Mismatch)
    error.args = args
    error.__dict__.update(state)
    return error


def changed(policy: Policy, at: int) -> PlanError:
    """The error that a saved output was changed in place."""
    return PlanError(
        f"The output of operator {policy.positions[at]} (`{policy.names[at]}`) of `{policy.module}`, which the plan "
        "saves, was changed in place after the module returned; change a copy of it, or plan without this "
        f'module (never="{policy.module}")'
    )


def twice(policy: Policy, at: int) -> PlanError:
    """The error that an operator would change something twice."""
    return PlanError(
        f"`{policy.module}` runs other operators this time than the plan has, so it would have to be recomputed whole; but "
        f"operator {at} (`{policy.names[at]}`) changes in place what the module has not made, and would do so twice. Change a "
        f'copy of it, or plan without this module (never="{policy.module}")'
    )
