"""What is promised of one model's step, column by column, beside what happens."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import memtracker
import rematic
from reality import TOLERANCE, Training, loss_of
from rematic._capture.step import document as capture

from .entry import Entry

COLUMNS = {
    "cpu": "captured as the CPU runs it",
    "cuda": "captured as a GPU runs it",
    "memtracker": "the peak equals that of torch's MemTracker around a real step, to the byte",
    "real": "the real peak is the predicted one, within 0.1 %, or lower, and equal when every operator is watched",
    "75 %": "under a plan for 75 % of the peak: peak as promised, within 0.1 %, values equal to the bit",
    "least": "the same for the least budget",
}
MOST_WORDS = 1000
SHARES = {"75 %": 0.75, "least": 0.0}


class Failed(Exception):
    """A promise that was not kept."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out for one column."""

    passed: bool
    note: str


class Practice(Training):
    """A model of the zoo with its step."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.name = entry.name
        self.model, self.args, self.kwargs = built(entry)
        self.weights = dict(self._state())
        self.kernels = set()
        self.watched = False

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that a step may change, also buffers that are not saved with the model."""
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            yield name, tensor.detach().clone()

    def optimizer(self) -> torch.optim.Optimizer:
        return self.entry.optimizer(self.model.parameters())

    @torch.no_grad()
    def restore(self) -> None:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            tensor.copy_(self.weights[name])

    def train(self) -> list[Tensor]:
        return [*super().train(), *(tensor for _, tensor in self._state())]


def built(entry: Entry) -> Any:
    torch.manual_seed(0)
    model, args, kwargs = entry.build("cpu")
    # Heads and gates that begin at zero hide what is behind them: no gradient would get there.
    for parameter in model.parameters():
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model.train(), args, kwargs


class Check:
    """One model, column by column; a later column builds on the earlier ones."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.practice = Practice(entry)
        self.trace: rematic.Trace | None = None
        self.expected: list[Tensor] | None = None

    def verdicts(self) -> Iterator[tuple[str, Verdict]]:
        for column in COLUMNS:
            yield column, self._verdict(column)

    def _verdict(self, column: str) -> Verdict:
        run: dict[str, Callable[[], str]] = {
            "cpu": self._cpu, "cuda": self._cuda, "memtracker": self._memtracker, "real": self._real
        }  # fmt: skip
        try:
            note = run[column]() if column in run else self._planned(SHARES[column])
        except Failed as error:
            return Verdict(False, str(error))
        except Exception as error:
            return Verdict(False, f"{type(error).__name__}: {error}"[:MOST_WORDS])
        finally:
            gc.collect()
        return Verdict(True, note)

    def _capture(self, device: str) -> rematic.Trace:
        practice = self.practice
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rematic.RematicWarning)
            document = capture(
                practice.model, *practice.args, loss=loss_of, optimizer=self.entry.optimizer, device=device, **practice.kwargs
            )
        return rematic.Trace.from_bytes(document)

    def _captured(self) -> rematic.Trace:
        if self.trace is None:
            raise Failed("not captured")
        return self.trace

    def _cpu(self) -> str:
        self.trace = self._capture("cpu")
        self.practice.kernels = {op.name.split(".")[0] for op in self.trace.ops}
        return _megabytes(self.trace.peak())

    def _cuda(self) -> str:
        return _megabytes(self._capture("cuda").peak())

    def _memtracker(self) -> str:
        predicted = self._captured().peak()
        try:
            tracked, _ = memtracker.track(
                lambda device: built(self.entry), "cpu", loss_of, self.entry.optimizer, with_modules=False, real=True
            )
        except Exception as error:
            raise Failed(f"MemTracker does not run this step: {type(error).__name__}: {error}") from error
        if tracked["Total"] != predicted:
            raise Failed(f"predicted {predicted:,}, MemTracker {_beside(tracked['Total'], predicted)}")
        return ""

    def _real(self) -> str:
        return self._compare(self._captured().peak())

    def _planned(self, share: float) -> str:
        trace, practice = self._captured(), self.practice
        try:
            rematic.plan(trace, 1)
            raise Failed("a plan for one byte")
        except rematic.Infeasible as infeasible:
            least = infeasible.least_budget
        plan = rematic.plan(trace, max(least, int(share * trace.peak())))
        if self.expected is None:
            self.expected = practice.train()
        rematic.apply(practice.model, plan)
        try:
            note = self._compare(plan.peak)
            found = practice.train()
        finally:
            rematic.remove(practice.model)
        different = [n for n, pair in enumerate(zip(found, self.expected, strict=True)) if not _equal(*pair)]
        if different:
            raise Failed(f"{len(different)} of {len(found)} values differ from the plain run's, the first is {different[0]}")
        return f"{100 * plan.peak / trace.peak():.0f} % of the peak; {note}"

    def _compare(self, predicted: int) -> str:
        """Where the gradients of two branches meet, PyTorch adds the second to the first in place, unless a dispatch
        mode is active, as in a capture. So a real peak may be lower, and is as predicted when it is watched."""
        highest, settled = self.practice.peak()
        real = settled if self.entry.scratch else highest
        if _is_kept(highest, predicted):
            # Kernels take nothing of their own where it is highest.
            real = highest
        note = f"predicted {predicted:,}, real {_beside(real, predicted)}"
        if _is_kept(real, predicted):
            return note
        self.practice.watched = True
        try:
            watched = self.practice.peak()
        finally:
            self.practice.watched = False
        real_watched = watched[1] if self.entry.scratch else watched[0]
        note += f", watched {_beside(real_watched, predicted)}"
        if real < predicted and _is_kept(real_watched, predicted):
            return note
        raise Failed(f"{note}; all that kernels take counted {_beside(highest, predicted)}, none {_beside(settled, predicted)}")


def _equal(found: Tensor, expected: Tensor) -> bool:
    """To the bit; what is not a number is equal to itself."""
    return torch.equal(found, expected) or (
        found.dtype == expected.dtype and torch.equal(found.nan_to_num(), expected.nan_to_num())
        and torch.equal(found.isnan(), expected.isnan())
    )


def _is_kept(found: int, predicted: int) -> bool:
    return abs(found - predicted) <= TOLERANCE * predicted


def _beside(found: int, predicted: int) -> str:
    return f"{found:,} ({100 * (found / predicted - 1):+.2f} %)"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
