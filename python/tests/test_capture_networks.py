"""Steps that reach other networks, and steps that differentiate more than once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

import rematic
from stepping import check_step, tensors_of

BATCH, WIDTH = 32, 64
NOISE, IMAGES = torch.randn(BATCH, 16), torch.randn(BATCH, WIDTH)


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def critic() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01)


class Untouched:
    """Some networks, which must be afterwards as they were."""

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = modules
        self.before = [copy.deepcopy(module.state_dict()) for module in modules]

    def check(self) -> None:
        for module, before in zip(self.modules, self.before, strict=True):
            after = module.state_dict()
            assert all(torch.equal(value, after[name]) for name, value in before.items())
            assert all(parameter.grad is None for parameter in module.parameters())
            assert all(type(parameter) is nn.Parameter for parameter in module.parameters())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_generator_is_trained_through_a_critic(frozen: bool) -> None:
    made, judge = generator(), critic().requires_grad_(not frozen)

    def step(model: nn.Module, optimizer: Any) -> Tensor:
        loss = functional.softplus(-judge(model(NOISE))).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    untouched = Untouched(made, judge)
    rematic.capture_step(step, made, sgd(made))
    untouched.check()
    check_step(step, made, sgd(made), NOISE, tensors_of(judge))


def test_both_networks_are_trained() -> None:
    made, judge = generator(), critic()
    other = torch.optim.Adam(judge.parameters())

    def step(model: nn.Module, optimizer: Any) -> None:
        fake = model(NOISE)
        other.zero_grad()
        (functional.softplus(-judge(IMAGES)).mean() + functional.softplus(judge(fake.detach())).mean()).backward()
        other.step()
        optimizer.zero_grad()
        functional.softplus(-judge(fake)).mean().backward()
        optimizer.step()

    untouched = Untouched(made, judge)
    rematic.capture_step(step, made, torch.optim.Adam(made.parameters()))
    untouched.check()
    assert not other.state and other.param_groups[0]["params"][0] is judge[0].weight
    check_step(step, made, torch.optim.Adam(made.parameters()), NOISE, IMAGES, tensors_of(judge))


def test_a_penalty_on_gradients() -> None:
    made, judge = generator(), plain()

    def step(model: nn.Module, optimizer: Any) -> None:
        fake = made(NOISE).detach()
        share = torch.rand(BATCH, 1)
        between = (share * IMAGES + (1 - share) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        penalty = (gradient.norm(2, dim=1) - 1).square().mean()
        (model(fake).mean() - model(IMAGES).mean() + 10 * penalty).backward()
        optimizer.step()
        optimizer.zero_grad()

    untouched = Untouched(made, judge)
    for device in ("cpu", "cuda"):
        rematic.capture_step(step, judge, torch.optim.Adam(judge.parameters()), device=device)
    untouched.check()
    check_step(step, judge, torch.optim.Adam(judge.parameters()), NOISE, IMAGES, tensors_of(made))


def _adversarial(model: nn.Module, optimizer: Any) -> None:
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    model(x + 0.1 * gradient.sign()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _by_the_input(model: nn.Module, optimizer: Any) -> None:
    x = IMAGES.clone()
    x.requires_grad = True
    model(x).sum().backward()
    worse = (x + 0.1 * x.grad.sign()).detach()
    optimizer.zero_grad()
    model(worse).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _by_hand(model: nn.Module, optimizer: Any) -> None:
    gradients = torch.autograd.grad(model(IMAGES).sum(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()


def _norm_of_gradients(model: nn.Module, optimizer: Any) -> None:
    loss = model(IMAGES).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + sum(gradient.square().sum() for gradient in gradients)).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("step", [_adversarial, _by_the_input, _by_hand, _norm_of_gradients])
def test_gradients_within_the_step(step: Any) -> None:
    model = plain()
    check_step(step, model, sgd(model), *(() if step is _adversarial else (IMAGES,)))


def test_a_tensor_that_another_optimizer_trains() -> None:
    model, prompt = plain(), torch.zeros(1, WIDTH, requires_grad=True)
    other = torch.optim.Adam([prompt])

    def step(model: nn.Module, optimizer: Any) -> None:
        model(IMAGES + prompt).mean().backward()
        for each in (optimizer, other):
            each.step()
            each.zero_grad()

    check_step(step, model, sgd(model), IMAGES, prompt)


def test_averages_of_weights_are_moved_and_put_back() -> None:
    model = plain()
    average = AveragedModel(model)
    average.update_parameters(model)

    def step(model: nn.Module, optimizer: Any) -> None:
        model(IMAGES).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)

    for device in ("cpu", "cuda"):
        rematic.capture_step(step, model, sgd(model), device=device)
    assert average.n_averaged == 1
    assert torch.equal(average.module[0].weight, model[0].weight)
    check_step(step, model, sgd(model), IMAGES, tensors_of(average))


def test_a_loss_may_hold_a_network() -> None:
    model, features = plain(), nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU())
    trace = rematic.capture(model, IMAGES, loss=lambda output: features(output).mean(), device="cpu")
    assert len(trace) > 0 and all(parameter.grad is None for parameter in features.parameters())


def test_gradients_of_torch_func_are_refused() -> None:
    def step(model: nn.Module, optimizer: Any) -> None:
        def loss(parameters: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(model, parameters, (IMAGES,)).sum()

        torch.func.grad(loss)(dict(model.named_parameters()))

    with pytest.raises(rematic.CaptureError, match="torch.func cannot be watched; take torch.autograd.grad"):
        rematic.capture_step(step, plain())
