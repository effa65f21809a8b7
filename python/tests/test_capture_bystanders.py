"""What a step's function touches is afterwards as it was."""

from __future__ import annotations

import collections
import copy
import json
import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import rematic

X = torch.randn(8, 16)
LOSSES: list[Any] = []
COUNT = 0


class Scheduler:
    """Moves its table to where the data are, as those of diffusers do."""

    def __init__(self) -> None:
        self.table = torch.linspace(0, 1, 10)

    def noised(self, x: Tensor) -> Tensor:
        self.table = self.table.to(device=x.device)
        return x * self.table[3]


class Slotted:
    __slots__ = ("seen", "last")

    def __init__(self) -> None:
        self.seen = 0


class Trainer:
    def __init__(self) -> None:
        self.steps = 0
        self.scheduler = Scheduler()
        self.history: dict[str, Any] = {"loss": [], "best": None}
        self.recent: collections.deque[Any] = collections.deque(maxlen=3)
        self.names = {"first"}
        self.slotted = Slotted()
        self.generator = torch.Generator().manual_seed(3)
        self.rng = numpy.random.default_rng(3)
        self.array = numpy.zeros(4)
        self.counter = torch.zeros((), dtype=torch.long)
        self.mean = torch.ones(16)
        self.pair = (torch.ones(2), [1])

    def log(self, loss: Tensor) -> None:
        global COUNT
        loss = loss.detach()
        COUNT += 1
        LOSSES.append(loss)
        self.steps += 1
        self.history["loss"].append(loss.item())
        self.history["best"] = loss
        self.recent.append(loss)
        self.names.add("second")
        self.slotted.seen += 1
        self.slotted.last = loss
        self.array += self.rng.random(4)
        self.counter += 1
        self.mean.mul_(0.5)
        self.pair[0].add_(1)
        self.pair[1].append(2)

    def step(self, model: nn.Module, optimizer: Any) -> Tensor:
        noise = torch.rand(8, 16, generator=self.generator) + random.random() + numpy.random.rand()
        loss = model(self.scheduler.noised(model(X)) + noise).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        self.log(loss)
        return loss


def state(trainer: Trainer) -> Any:
    held = {key: value for key, value in vars(trainer).items() if key not in ("generator", "rng", "slotted", "scheduler")}
    states = (trainer.generator.get_state(), trainer.rng.bit_generator.state, torch.get_rng_state(), random.getstate())
    slots = (trainer.slotted.seen, hasattr(trainer.slotted, "last"), trainer.scheduler.table)
    return copy.deepcopy((held, states, slots, numpy.random.get_state(), list(LOSSES), COUNT))


def same(left: Any, right: Any) -> bool:
    if isinstance(left, (Tensor, numpy.ndarray)):
        return type(left) is type(right) and bool((left == right).all())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_everything_a_step_touches_is_put_back(device: str) -> None:
    trainer, model = Trainer(), nn.Linear(16, 16)
    before = state(trainer)
    rematic.capture_step(trainer.step, model, device=device)
    assert same(state(trainer), before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer.step(model, optimizer)
    assert trainer.steps == 1 and trainer.counter == 1 and not trainer.scheduler.table.is_meta


def test_a_step_that_fails_is_undone_too() -> None:
    trainer, model = Trainer(), nn.Linear(16, 16)

    def step(model: nn.Module, optimizer: Any) -> None:
        trainer.step(model, optimizer)
        raise ValueError("no")

    before = state(trainer)
    with pytest.raises(rematic.CaptureError, match="ValueError: no"):
        rematic.capture_step(step, model, device="cpu")
    assert same(state(trainer), before)


def test_variables_of_outer_functions_are_put_back() -> None:
    count, seen = 0, []

    def step(model: nn.Module, optimizer: Any, kept: list[int] = seen) -> None:
        nonlocal count
        count += 1
        kept.append(count)
        step.calls = count  # type: ignore[attr-defined]
        model(X).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    rematic.capture_step(step, nn.Linear(16, 16), device="cpu")
    assert (count, seen) == (0, []) and not hasattr(step, "calls")


def test_the_model_from_outside_is_still_refused() -> None:
    model = nn.Linear(16, 16)
    holder = {"model": model}

    def step(_: nn.Module, optimizer: Any) -> None:
        holder["model"](X).mean().backward()

    with pytest.raises(rematic.CaptureError, match="uses the model from outside"):
        rematic.capture_step(step, model, device="cpu")
    assert model.weight.grad is None


class Log:
    """What a loop keeps of its steps."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {}
        self.total: Any = None


@pytest.mark.parametrize("replaces", [False, True], ids=["emptied", "replaced"])
def test_a_container_that_a_step_replaces_goes_with_what_is_in_it(replaces: bool) -> None:
    log = Log()
    latest = log.latest

    def fn(model: nn.Module, optimizer: Any) -> None:
        loss = model(torch.zeros(2, 4, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # The first step makes it, later ones find it.
        log.total = loss.detach() if log.total is None else log.total.add_(loss.detach())
        log.latest["loss"] = {"number": loss.detach().clone()}
        if replaces:
            log.latest = {}
        else:
            log.latest.clear()

    trace = rematic.capture_step(fn, nn.Linear(4, 4), torch.optim.SGD)
    document = json.loads(trace.to_bytes())
    before = [size for size, category, birth in document["storages"] if birth is None and category == "activation"]
    assert before == [4]
    assert log.latest is latest and latest == {} and log.total is None
