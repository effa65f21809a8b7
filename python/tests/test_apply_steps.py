"""Plans for steps that call the model several times: each forward follows its own part, in the order of the capture."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer, seed_transformer
from plans import Runs, Stack, X, edited
from reality import peaks

TOLERANCE = 0.001
BATCHES = 3


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean() / BATCHES


def accumulated(model: nn.Module, optimizer: Any, batches: list[Tensor]) -> list[Tensor]:
    """A step over some batches; its losses and gradients."""
    losses = []
    for batch in batches:
        loss = loss_of(model(batch))
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters()]
    optimizer.zero_grad()
    return [*losses, *gradients]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def planned(model: nn.Module, fn: Callable[[nn.Module, Any], None], *calls: int) -> rematic.Plan:
    """A plan of a step that checkpoints these calls of the layers and no others."""
    trace = rematic.capture_step(fn, model, sgd(model), device="cpu")
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, only="layers.*", whole=True)
    plan = rematic.plan(trace, infeasible.value.least_budget, only="layers.*", whole=True)
    policy = json.loads(plan.to_json())["regions"][0]

    def edit(document: dict[str, Any]) -> None:
        document["regions"] = [
            {**policy, "module": f"Stack.layers.{n}", "call": call} for call in calls for n in range(3)
        ]

    return edited(plan, edit)


class Again:
    """Counts the layers that run again in each forward's backward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._runs = Runs(monkeypatch, Layer)

    def of(self, model: nn.Module) -> int:
        before = self._runs.count
        model(X).sum().backward()
        return self._runs.count - before - 3


def three(model: nn.Module, optimizer: Any) -> None:
    for _ in range(BATCHES):
        loss_of(model(X)).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_and_peaks_are_as_promised() -> None:
    torch.manual_seed(0)
    model, (tokens,), _ = seed_transformer("cpu")
    batches = [tokens.roll(shift).repeat(4, 1) for shift in range(BATCHES)]

    def step(model: nn.Module, optimizer: Any) -> None:
        for batch in batches:
            loss_of(model(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = rematic.capture_step(step, model, sgd(model), device="cpu")
    assert trace.facts["forwards"] == "train train train"
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1)
    weights = copy.deepcopy(model.state_dict())

    def train() -> list[Tensor]:
        model.load_state_dict(weights)
        torch.manual_seed(1)
        optimizer = sgd(model)
        return [value for _ in range(2) for value in accumulated(model, optimizer, batches)]

    expected = train()
    kernels = {op.name.split(".")[0] for op in trace.ops}
    differ = 0
    for budget in (int(0.9 * trace.peak()), int(0.7 * trace.peak()), infeasible.value.least_budget):
        plan = rematic.plan(trace, max(budget, infeasible.value.least_budget))
        calls = {region.call for region in plan.regions}
        parts = [[(region.module, region.policy) for region in plan.regions if region.call == call] for call in range(BATCHES)]
        differ += any(part != parts[0] for part in parts)
        assert calls and max(calls) < BATCHES
        rematic.apply(model, plan)
        optimizer = sgd(model)
        real, _ = peaks(lambda: step(model, optimizer), model, batches, kernels)  # noqa: B023
        assert abs(real - plan.peak) <= TOLERANCE * plan.peak, (real, plan.peak)
        found = train()
        rematic.remove(model)
        assert len(found) == len(expected)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    # Gradients that are there already make the later forwards the higher ones.
    assert differ


def test_each_forward_follows_its_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    rematic.apply(model, planned(model, three, 1))
    again = Again(monkeypatch)
    assert [again.of(model) for _ in range(7)] == [0, 3, 0, 0, 3, 0, 0]


def test_the_optimizers_step_ends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Stack(), Stack()
    rematic.apply(model, planned(model, three, 1, 2))
    again = Again(monkeypatch)
    assert [again.of(model) for _ in range(2)] == [0, 3]
    sgd(other).step()
    assert again.of(model) == 3
    assert [again.of(model) for _ in range(2)] == [0, 3]
    sgd(model).step()
    assert [again.of(model) for _ in range(4)] == [0, 3, 3, 0]


def test_copies_count_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    rematic.apply(model, planned(model, three, 1))
    again = Again(monkeypatch)
    assert again.of(model) == 0
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert again.of(copied) == 3
        assert again.of(copied) == 0
        assert again.of(copied) == 0
        assert again.of(copied) == 3
        sgd(copied).step()
        assert [again.of(copied) for _ in range(2)] == [0, 3]
    assert again.of(model) == 3


def test_validation_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    rematic.apply(model, planned(model, three, 1))
    again = Again(monkeypatch)
    assert again.of(model) == 0
    with torch.no_grad():
        model(X)
    model.eval()
    model(X)
    model.train()
    assert [again.of(model) for _ in range(3)] == [3, 0, 0]


def test_forwards_without_gradients_in_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def distilled(model: nn.Module, optimizer: Any) -> None:
        with torch.no_grad():
            target = model(X)
        (model(X) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    model = Stack()
    plan = planned(model, distilled, 1)
    assert plan.facts["forwards"] == "rest train"
    rematic.apply(model, plan)
    again = Again(monkeypatch)
    for _ in range(2):
        with torch.no_grad():
            model(X)
        assert again.of(model) == 3
    with pytest.raises(rematic.PlanError, match=r"Forward 0 \(from 0\) of the 2 in the step .* without gradients"):
        model(X)


def test_steps_of_the_optimizer_between_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(model: nn.Module, optimizer: Any) -> None:
        for _ in range(2):
            loss_of(model(X)).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = Stack()
    plan = planned(model, twice, 1)
    assert plan.facts["forwards"] == "train step train"
    rematic.apply(model, plan)
    again = Again(monkeypatch)
    optimizer = sgd(model)
    for _ in range(2):
        for expected in (0, 3):
            assert again.of(model) == expected
            optimizer.step()


def test_a_forward_that_fails_begins_the_step_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    rematic.apply(model, planned(model, three, 1))
    again = Again(monkeypatch)
    assert again.of(model) == 0
    with pytest.raises(RuntimeError, match="shape"):
        model(X[:, :3])
    assert [again.of(model) for _ in range(2)] == [0, 3]


def test_forwards_that_call_too_few() -> None:
    model = Stack()
    rematic.apply(model, edited(planned(model, three, 1), lambda d: [r.update(call=7) for r in d["regions"]] and None))
    for _ in range(2):
        model(X)
    words = r"call 7 \(from 0\) of `Stack.layers.0`, but 3 forwards of the model call it only 3 times"
    with pytest.raises(rematic.PlanError, match=words):
        model(X)


def test_words_about_forwards_that_are_not_known() -> None:
    model = Stack()

    def edit(document: dict[str, Any]) -> None:
        document["facts"] = [["forwards", "train jump"]]

    with pytest.raises(rematic.PlanError, match="forwards `train jump`, where only train, rest and step are known"):
        rematic.apply(model, edited(planned(model, three, 1), edit))
