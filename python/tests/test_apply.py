"""Plans on real models: followed to the operator, and taken off without a trace."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer
from plans import WIDTH, Around, Block, Cast, Runs, Stack, X, check_equal, edited, layer, least, results, saving, whole
from reality import peaks
from rematic._capture.step import document as capture

# ---- what stays as it is ----


def test_the_model_stays_what_it_is() -> None:
    model = Stack()
    seen: list[str] = []
    model.layers[0].register_forward_hook(lambda *_: seen.append("hook"))
    model.layers[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    names, modules = list(model.state_dict()), list(model.modules())
    signature = inspect.signature(model.forward)
    rematic.apply(model, whole(model, X))
    seen.clear()
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert type(model.layers[0]) is Layer
    assert inspect.signature(model.forward) == signature
    model(X).sum().backward()
    assert seen == ["before", "hook"]
    pickle.loads(pickle.dumps(model.state_dict()))
    rematic.remove(model)
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == attributes


def test_a_forward_that_was_put_there_before_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = whole(model, X)
    calls = []
    own = model.layers[1].forward

    def forward(x: Tensor) -> Tensor:
        calls.append(1)
        return own(x)

    model.layers[1].forward = forward  # type: ignore[method-assign]
    rematic.apply(model, plan)
    model(X).sum().backward()
    assert len(calls) == 2
    rematic.remove(model)
    assert model.layers[1].forward is forward


def test_copies_follow_the_plan_with_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = whole(model, X)
    expected = results(model, X)
    rematic.apply(model, plan)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        check_equal(results(other, X), expected)
        with torch.no_grad():
            other.head.weight.zero_()
        assert not torch.equal(results(other, X)[0], expected[0])
        with monkeypatch.context() as patch:
            runs = Runs(patch, Layer)
            other(X).sum().backward()
            assert runs.count == 6
    check_equal(results(model, X), expected)


def test_import_does_not_need_torch() -> None:
    code = "import sys, rematic; assert 'torch' not in sys.modules; rematic.Mismatch; print(rematic.__all__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'auto'" in said.stdout
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rematic.nothing  # noqa: B018


# ---- what is followed ----


@pytest.mark.parametrize("saved", [(), ("addmm.default",), ("empty_like.default", "bernoulli_.float", "div_.Scalar", "mul.Tensor")])
def test_dropout_and_saved_operators(saved: tuple[str, ...]) -> None:
    model = Stack()
    expected = results(model, X)
    rematic.apply(model, saving(whole(model, X), *saved))
    check_equal(results(model, X), expected)


@pytest.mark.parametrize("inplace", [True, False])
def test_what_changes_in_place_is_changed_once(inplace: bool) -> None:
    model = nn.Sequential(Block(inplace), Block(inplace))
    expected = results(model, X)
    rematic.apply(model, least(model, X))
    check_equal(results(model, X), expected)


def test_readers_of_what_changes_are_saved_or_recomputed_with_it() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            z = y + 1
            y.relu_()
            return (z.exp() * y).tanh()

    model = nn.Sequential(Changing(), nn.Linear(WIDTH, WIDTH), Changing())
    expected = results(model, X)
    trace = rematic.Trace.from_bytes(capture(model, X, device="cpu", optimizer=False))
    for point in rematic.curve(trace, 20):
        plan = rematic.plan(trace, point.budget)
        for region in plan.regions:
            decisions = {name: saved for name, saved in region.policy if name in ("addmm.default", "add.Tensor", "relu_.default")}
            assert len(set(decisions.values())) == 1, decisions
        rematic.apply(model, plan)
        check_equal(results(model, X), expected)
        rematic.remove(model)


def test_some_calls_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Around(layer())
    expected = results(model, X)
    plan = whole(model, X, only="block")
    # The call without gradients is the first.
    assert [region.call for region in plan.regions] == [1, 2, 3]
    for kept in ([1], [2], [3], [1, 3], [1, 2, 3]):
        some = edited(plan, lambda d: d.update(regions=[r for r in d["regions"] if r["call"] in kept]))  # noqa: B023
        rematic.apply(model, some)
        check_equal(results(model, X), expected)
        with monkeypatch.context() as patch:
            runs = Runs(patch, Layer)
            results(model, X)
            assert runs.count == 4 + len(kept)
        rematic.remove(model)


def test_gradient_accumulation_repeats_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    expected = results(model, X, passes=3)
    rematic.apply(model, whole(model, X))
    check_equal(results(model, X, passes=3), expected)
    runs = Runs(monkeypatch, Layer)
    first, second = model(X), model(X)
    (first.sum() + second.sum()).backward()
    assert runs.count == 12


def test_without_gradients_and_in_evaluation_it_runs_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = whole(model, X)
    model.eval()
    expected = model(X)
    model.train()
    rematic.apply(model, plan)
    runs = Runs(monkeypatch, Layer)
    with torch.no_grad():
        model(X[:3])
    with torch.inference_mode():
        model(X[:3])
    model.eval()
    found = model(X)
    found.sum().backward()
    assert torch.equal(found, expected) and runs.count == 9
    model.train()
    model(X).sum().backward()
    assert runs.count == 15


@pytest.mark.parametrize("saved", [(), ("addmm.default",)])
def test_autocast(saved: tuple[str, ...]) -> None:
    # The second call finds the weights in autocast's cache.
    for inner in (Stack(), Around(layer(), 2)):
        model = Cast(inner)
        expected = results(model, X)
        only = "inner.layers.*" if isinstance(inner, Stack) else "inner.block"
        rematic.apply(model, saving(whole(model, X, only=only), *saved))
        check_equal(results(model, X), expected)


def test_generators_of_the_models_own() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.generator = torch.Generator().manual_seed(5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            noise = torch.empty_like(y).normal_(generator=self.generator) if not x.is_meta else torch.empty_like(y).normal_()
            return (y * noise).tanh() * torch.rand_like(y)

    model = nn.Sequential(Noisy(), Noisy())
    expected = results(model, X)
    for noisy in model:
        noisy.generator.manual_seed(5)
    rematic.apply(model, whole(model, X, only="?"))
    check_equal(results(model, X), expected)


def test_hooks_that_run_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are outside of what is checkpointed, when it is captured and when it runs."""
    model = Stack()
    expected_ops = [[name for name, _ in region.policy] for region in whole(model, X).regions]
    model.layers[1].register_forward_pre_hook(lambda _, args: (args[0].sin(),))
    model.layers[1].register_forward_hook(lambda _, args, out: out * 2)
    model.layers[2].register_forward_hook(lambda _, args, kwargs, out: out.cos(), with_kwargs=True)
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 1)
    try:
        plan = whole(model, X)
        # The children's own hooks are inside.
        inside = [[name for name, _ in region.policy] for region in plan.regions]
        assert [len(ops) - len(others) for ops, others in zip(inside, expected_ops, strict=True)] == [4, 4, 4]
        trace = rematic.Trace.from_bytes(capture(model, X, device="cpu", optimizer=sgd, loss=lambda out: out.sum()))
        least_plan = least(model, X)
        kernels = {op.name.split(".")[0] for op in trace.ops}
        real, _ = peaks(functools.partial(trained, model, sgd(model.parameters())), model, X, kernels)
        assert real == trace.peak()
        expected = results(model, X)
        for followed in (plan, least_plan):
            rematic.apply(model, followed)
            check_equal(results(model, X), expected)
            rematic.remove(model)
        rematic.apply(model, plan)
        with monkeypatch.context() as patch:
            runs = Runs(patch, Layer)
            model(X).sum().backward()
            assert runs.count == 6
    finally:
        everywhere.remove()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.output = model(X)
    model.output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_root_without_a_loop_variable_frees_what_is_dropped() -> None:
    model = Stack()
    rematic.apply(model, whole(model, X))
    held: list[weakref.ref[Any]] = []
    model.layers[1].narrow.register_forward_pre_hook(lambda _, args: held.append(weakref.ref(args[0].untyped_storage())))
    gc.disable()
    try:
        loss = model(X).sum()
        assert held[0]() is None
        loss.backward()
        assert all(ref() is None for ref in held)
    finally:
        gc.enable()


class Decaying(nn.Module):
    """Changes a buffer by an operator that returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("decay", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        torch._foreach_mul_([self.decay], 0.5)
        return x + self.narrow(torch.tanh(self.wide(x)))


def test_operators_that_return_nothing() -> None:
    model = nn.Sequential(*(Decaying() for _ in range(3)))
    expected = results(model, X)
    rematic.apply(model, saving(whole(model, X, only="?"), "_foreach_mul_.Scalar"))
    check_equal(results(model, X), expected)
