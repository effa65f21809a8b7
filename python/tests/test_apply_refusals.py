"""What a plan was not made for is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer
from plans import WIDTH, Around, Block, Stack, X, check_equal, layer, results, saving, whole

# ---- other models and other operators ----


def test_a_model_already_wrapped() -> None:
    model = Stack()
    plan = whole(model, X)
    rematic.apply(model, plan)
    with pytest.raises(rematic.PlanError, match=r"already applied to the Stack; call rematic.remove\(model\) first"):
        rematic.apply(model, plan)
    with pytest.raises(rematic.PlanError, match="already applied"):
        rematic.auto(model, X)
    rematic.remove(model)
    rematic.remove(model)
    rematic.apply(model, plan)


def test_a_plan_for_another_model() -> None:
    plan = whole(Stack(), X)
    other = nn.Sequential(layer())
    words = "The plan is for another model, Stack: it checkpoints `Stack.layers.0`, and this Sequential has no such module"
    with pytest.raises(rematic.PlanError, match=words):
        rematic.apply(other, plan)
    assert "forward" not in other.__dict__


@pytest.mark.parametrize(
    ("forward", "expected", "found"),
    [
        (lambda layer, x: x + layer.narrow(nn.functional.silu(layer.wide(layer.norm(x)))), "gelu.default", "silu.default"),
        (lambda layer, x: layer.norm(x), "t.default", None),
        (lambda layer, x: Layer.own(layer, x).exp(), None, "exp.default"),
    ],
)
def test_other_operators_in_forward(
    forward: Any, expected: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Stack()
    plan = whole(model, X)
    rematic.apply(model, plan)
    monkeypatch.setattr(Layer, "own", Layer.forward, raising=False)
    monkeypatch.setattr(Layer, "forward", forward)
    with pytest.raises(rematic.Mismatch, match=r"`Stack.layers.0` \(call 0\) does not do what the plan was made for") as raised:
        model(X)
    error = raised.value
    assert (error.module, error.call, error.expected, error.found) == ("Stack.layers.0", 0, expected, found)
    policy = [name for name, _ in plan.regions[0].policy]
    assert error.position == (policy.index(expected) if expected else len(policy))
    assert "in forward" in str(error) and isinstance(error, rematic.PlanError)
    # Nothing is left behind: with its own forward it runs again.
    monkeypatch.setattr(Layer, "forward", Layer.own)
    model(X).sum().backward()


def test_other_operators_when_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    rematic.apply(model, whole(model, X))
    loss = model(X).sum()
    monkeypatch.setattr(nn.functional, "gelu", nn.functional.silu)
    with pytest.raises(rematic.Mismatch, match="when it is recomputed it runs `silu.default`") as raised:
        loss.backward()
    assert raised.value.module == "Stack.layers.2"


# ---- other calls ----


def test_a_module_called_without_the_model() -> None:
    model = Stack()
    rematic.apply(model, whole(model, X))
    with pytest.raises(rematic.PlanError, match="`Stack.layers.1` was called by itself"):
        model.layers[1](X)


def test_calls_that_do_not_come() -> None:
    model = Around(layer())
    rematic.apply(model, whole(model, X, only="block"))
    model.calls = 1
    with pytest.raises(rematic.PlanError, match=r"call 2 \(from 0\) of `Around.block`, but one forward .* only 2 times"):
        model(X)


def test_a_second_backward() -> None:
    model = Stack()
    plan = whole(model, X)
    rematic.apply(model, saving(plan, "addmm.default"))
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(rematic.PlanError, match="`Stack.layers.2` is recomputed a second time"):
        loss.backward()
    rematic.remove(model)
    rematic.apply(model, plan)
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    loss.backward()


class Leaking(nn.Module):
    """Gives out what it computes with, which is then changed."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.linear(x)
            return y, (y + 1).sin()

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        y, z = self.inner(x)
        return y.mul_(2) + z


def test_saved_outputs_that_are_changed_outside() -> None:
    model = Leaking()
    expected = results(model, X)
    plan = whole(model, X, only="inner")
    rematic.apply(model, saving(plan, "addmm.default"))
    words = r"The output of operator \d+ \(`addmm.default`\) of `Leaking.inner`, which the plan saves, was changed in place"
    with pytest.raises(rematic.PlanError, match=words + r' after the module returned; .*never="Leaking.inner"'):
        model(X).sum().backward()
    # What is recomputed does not hang on it.
    for other in (saving(plan, "add.Tensor"), plan):
        rematic.remove(model)
        rematic.apply(model, other)
        model.zero_grad()
        check_equal(results(model, X), expected)


def test_saving_what_is_changed_again() -> None:
    model = nn.Sequential(Block(), Block())
    plan = saving(whole(model, X, only="?"), "addmm.default")
    rematic.apply(model, plan)
    words = r"saves operator \d+ \(`addmm.default`\) of `Sequential.\d` and recomputes operator \d+ \(`mul_.Tensor`\)"
    with pytest.raises(rematic.PlanError, match=words):
        model(X)


# ---- what changes between forward and backward ----


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_weights_that_change_before_backward(part: str) -> None:
    model = Stack()
    rematic.apply(model, whole(model, X))
    loss = model(X).square().mean()
    with torch.no_grad():
        getattr(model.layers[1].wide, part).add_(1)
    with pytest.raises(rematic.PlanError, match="A parameter of `Stack.layers.1`, .* was changed after its forward"):
        loss.backward()


@pytest.mark.parametrize("audit", [0, 2])
def test_weights_that_get_other_memory_before_backward(audit: int) -> None:
    """Autograd goes on with what it kept; what runs again would read the new."""
    model = Stack()
    rematic.apply(model, whole(model, X), audit=audit)
    loss = model(X).square().mean()
    weight = model.layers[1].wide.weight
    weight.data = weight.data.clone()
    with pytest.raises(rematic.PlanError, match=r"A parameter of `Stack.layers.1`, .* was given other memory \(`.data = ...`\) after"):
        loss.backward()
    # Between steps they may.
    weight.data = weight.data.clone()
    model(X).square().mean().backward()


def test_weights_may_change_after_their_backward() -> None:
    """As optimizers in backward do."""
    model = Stack()
    rematic.apply(model, whole(model, X))

    def step(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.1 * parameter.grad)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    before = model.layers[0].wide.weight.detach().clone()
    model(X).square().mean().backward()
    assert not torch.equal(model.layers[0].wide.weight, before)


# ---- mistakes in calls ----


def test_a_mismatch_can_go_to_another_process() -> None:
    error = rematic.Mismatch("M.l", 0, 3, "mm.default", None, again=True, hint="")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is rematic.Mismatch
    assert (str(copied), copied.module, copied.position, copied.found) == (str(error), "M.l", 3, None)
    assert "use_cache" in str(error)


@pytest.mark.parametrize("swapped", [True, False])
def test_what_is_no_plan(swapped: bool) -> None:
    model = Stack()
    with pytest.raises(TypeError, match="apply takes a model and a plan, not"):
        rematic.apply(whole(model, X), model) if swapped else rematic.apply(model, "plan.json")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="remove takes a model"):
        rematic.remove("model")  # type: ignore[arg-type]


def test_the_cpu_needs_a_budget() -> None:
    with pytest.raises(rematic.PlanError, match="How much memory the CPU may use is not known; give it as budget="):
        rematic.auto(Stack(), X, device="cpu")
