"""Plans as Python files: with torch alone they do what the plans promise."""

from __future__ import annotations

import ast
import copy
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from conftest import SMALL
from models import Layer
from plans import WIDTH, Around, Block, Cast, Runs, Stack, X, check_equal, edited, least, results, saving, whole
from reality import check_peak
from test_reality import Case

HERE = pathlib.Path(__file__).resolve().parent
SHARES = (0.75, 0.6, 0.0)


def run(plan: rematic.Plan) -> dict[str, Any]:
    """The names that an emitted file defines."""
    names: dict[str, Any] = {"__name__": "emitted_plan"}
    exec(compile(plan.to_python(), "emitted_plan.py", "exec"), names)
    return names


def apply(model: nn.Module, plan: rematic.Plan) -> dict[str, Any]:
    names = run(plan)
    names["apply_plan"](model)
    return names


# ---- what is promised ----


@pytest.mark.parametrize("name", ["seed-transformer", "gpt2", "llama", "bert", "unet"])
def test_peaks_and_values_with_torch_alone(name: str, tmp_path: pathlib.Path) -> None:
    case = Case(name)
    plans = [case.plan(share) for share in SHARES]
    files = [tmp_path / f"plan_{number}.py" for number in range(len(plans))]
    for plan, file in zip(plans, files, strict=True):
        assert plan.outcome == "planned" and plan.peak < case.trace.peak()
        file.write_text(plan.to_python())
    kernels = ",".join(sorted(case.kernels))
    done = subprocess.run(
        [sys.executable, str(HERE / "emit_run.py"), name, kernels, *map(str, files)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert not said["with_rematic"]
    for plan, ran in zip(plans, said["runs"], strict=True):
        check_peak(name, plan.peak, tuple(ran["peak"]))
        assert ran["equal"] and ran["values"] > 3


@pytest.mark.parametrize("saved", [(), ("addmm.default",), ("empty_like.default", "bernoulli_.float", "div_.Scalar", "mul.Tensor")])
def test_dropout_and_saved_operators(saved: tuple[str, ...]) -> None:
    model = Stack()
    expected = results(model, X, passes=2)
    apply(model, saving(whole(model, X), *saved))
    check_equal(results(model, X, passes=2), expected)


@pytest.mark.parametrize("inplace", [True, False])
def test_what_changes_in_place_is_changed_once(inplace: bool) -> None:
    model = nn.Sequential(Block(inplace), Block(inplace))
    expected = results(model, X, passes=2)
    apply(model, least(model, X))
    check_equal(results(model, X, passes=2), expected)


def test_random_operators_after_saved_ones() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.generator = torch.Generator().manual_seed(5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            y = (y * torch.rand_like(y)).tanh() * torch.randn_like(y)
            noise = torch.empty_like(y).normal_(generator=self.generator) if not x.is_meta else torch.empty_like(y).normal_()
            return (y * noise).tanh() * torch.rand_like(y)

    for saved in [(), ("randn_like.default",), ("rand_like.default",)]:
        model = nn.Sequential(Noisy(), Noisy())
        plan = saving(whole(model, X, only="?"), *saved)
        plain = copy.deepcopy(model)
        apply(model, plan)
        check_equal(results(model, X), results(plain, X))


@pytest.mark.parametrize("saved", [(), ("addmm.default",)])
def test_autocast(saved: tuple[str, ...]) -> None:
    # The second call finds the weights in autocast's cache.
    for inner in (Stack(), Around(Layer(), 2)):
        model = Cast(inner)
        expected = results(model, X)
        only = "inner.layers.*" if isinstance(inner, Stack) else "inner.block"
        apply(model, saving(whole(model, X, only=only), *saved))
        check_equal(results(model, X), expected)


def test_some_calls_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = whole(Around(Layer()), X, only="block")
    for kept in ([1], [2, 3], [1, 2, 3]):
        model = Around(Layer())
        expected = results(model, X, passes=2)
        apply(model, edited(plan, lambda d: d.update(regions=[r for r in d["regions"] if r["call"] in kept])))  # noqa: B023
        check_equal(results(model, X, passes=2), expected)
        with monkeypatch.context() as patch:
            runs = Runs(patch, Layer)
            results(model, X, passes=2)
            assert runs.count == 2 * (4 + len(kept))


def test_evaluation_and_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = whole(model, X)
    expected = results(model, X)
    apply(model, plan)
    other = copy.deepcopy(model)
    with torch.no_grad():
        model.head.weight.zero_()
    for _ in range(2):
        check_equal(results(other, X), expected)
    runs = Runs(monkeypatch, Layer)
    other(X).sum().backward()
    assert runs.count == 6
    with torch.no_grad():
        other(X[:3])
    other.eval()
    other(X[:3]).sum().backward()
    assert runs.count == 12


def test_the_whole_model_as_one_region() -> None:
    model = Layer()
    expected = results(model, X)
    plan = whole(nn.Sequential(model), X, only="0")
    apply(model, edited(plan, lambda document: document["regions"][0].update(module="Layer")))
    check_equal(results(model, X), expected)


def test_compiled() -> None:
    model = Stack()
    for layer in model.layers:
        layer.dropout.p = 0.0
    plan = saving(whole(model, X), "addmm.default")
    torch._dynamo.reset()
    expected = results(torch.compile(copy.deepcopy(model), backend="aot_eager"), X)

    def held(model: nn.Module) -> int:
        torch._dynamo.reset()
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        compiled = torch.compile(model, backend="aot_eager")
        compiled(X)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(X)
        check_equal(results(compiled, X), expected)
        return sum(sizes.values())

    plain = held(model)
    apply(model, plan)
    assert held(model) < plain
    torch._dynamo.reset()


# ---- what is refused ----


@pytest.mark.parametrize(
    ("forward", "planned", "found"),
    [
        (lambda layer, x: x + layer.narrow(nn.functional.silu(layer.wide(layer.norm(x)))), "gelu.default", "silu.default"),
        (lambda layer, x: layer.norm(x), "t.default", "none"),
        (lambda layer, x: Layer.own(layer, x).exp(), "none", "exp.default"),
    ],
)
def test_other_operators_in_forward(forward: Any, planned: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = whole(model, X)
    mismatch = apply(model, plan)["PlanMismatch"]
    monkeypatch.setattr(Layer, "own", Layer.forward, raising=False)
    monkeypatch.setattr(Layer, "forward", forward)
    policy = [name for name, _ in plan.regions[0].policy]
    at = policy.index(planned) if planned in policy else len(policy)
    words = rf"'layers.0' does not do .*: operator {at} \(from 0\) is {planned} in the plan, but in forward it is {found};"
    with pytest.raises(mismatch, match=words):
        model(X)
    monkeypatch.setattr(Layer, "forward", Layer.own)
    model(X).sum().backward()


def test_other_operators_when_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    mismatch = apply(model, whole(model, X))["PlanMismatch"]
    loss = model(X).sum()
    monkeypatch.setattr(nn.functional, "gelu", nn.functional.silu)
    words = r"'layers.2' .* is gelu.default in the plan, but when it is recomputed it is silu.default"
    with pytest.raises(mismatch, match=words):
        loss.backward()


def test_other_models_and_second_plans() -> None:
    model = Stack()
    plan = whole(model, X)
    names = run(plan)
    with pytest.raises(names["PlanMismatch"], match=r"it checkpoints 'layers.0', and this one has no such module"):
        names["apply_plan"](nn.Sequential(Layer()))
    names["apply_plan"](model)
    with pytest.raises(RuntimeError, match="follows a plan already"):
        names["apply_plan"](model)


def test_second_backwards_and_later_changes() -> None:
    model = Stack()
    apply(model, saving(whole(model, X), "addmm.default"))
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="'layers.2' is recomputed a second time"):
        loss.backward()

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.linear(x).sigmoid()
            return y, self.linear(y)

    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            y, z = self.inner(x)
            if self.factor != 1.0:
                y.detach().mul_(self.factor)
            return z

    changing = Changing()
    apply(changing, saving(whole(changing, X, only="inner"), "sigmoid.default"))
    changing(X).sum().backward()
    changing.factor = 2.0
    loss = changing(X).sum()
    with pytest.raises(RuntimeError, match=r"'inner': the output of operator \d+ is saved, but was changed in place since"):
        loss.backward()

    exchanged = Changing()
    apply(exchanged, whole(exchanged, X, only="inner"))
    loss = exchanged(X).sum()
    weight = next(exchanged.parameters())
    weight.data = weight.data.clone()
    with pytest.raises(RuntimeError, match=r"'inner': a parameter, of shape .* was given other memory \(`.data = ...`\) after its forward"):
        loss.backward()

    blocks = nn.Sequential(Block(), Block())
    mismatch = apply(blocks, saving(whole(blocks, X, only="?"), "addmm.default"))["PlanMismatch"]
    with pytest.raises(mismatch, match=r"'0': the plan recomputes operator \d+, which changes in place what it saves"):
        blocks(X)


# ---- the text ----


def test_equal_layers_share_a_policy(small: rematic.Trace) -> None:
    plan = rematic.plan(small, int(0.8 * small.peak()))
    names = run(plan)
    policies = {str(region.policy) for region in plan.regions}
    assert sum(name.startswith("POLICY_") for name in names) == len(policies) < len(plan.regions)
    found = {(path, call): policy for policy, call, paths in names["PLAN"] for path in paths}
    assert found == {(r.module.partition(".")[2], r.call): r.policy for r in plan.regions}


def test_a_plan_without_regions(small: rematic.Trace) -> None:
    model = Stack()
    names = apply(model, rematic.plan(small, "1GiB"))
    assert names["PLAN"] == []
    check_equal(results(model, X), results(copy.deepcopy(model), X))


EVIL = [
    '"); import os; raise SystemExit(1) #',
    "'''\"\"\"\nraise SystemExit(2)\n",
    "x\r\nraise SystemExit(3)",
    "\\",
    "coding: utf-7 +AAo-raise SystemExit(4)",
    "{__import__('os')} %s",
    "\x00\x0c\u2028\u202e\U0001f980é",
]


@pytest.mark.parametrize("evil", EVIL)
def test_names_are_harmless(evil: str) -> None:
    plan = whole(Stack(), X)
    plain = plan.to_python()

    def edit(document: dict[str, Any]) -> None:
        document["source"] = document["device"] = evil
        document["facts"] = [[evil, evil]]
        document["regions"][0]["module"] = f"{evil.replace('.', '')}.{evil}"
        document["regions"][1]["policy"][2]["op"] = evil

    text = edited(plan, edit).to_python()
    assert text.isascii() and text.replace("\n", "").isprintable()
    assert text.splitlines()[:2] == plain.splitlines()[:2]
    names: dict[str, Any] = {}
    exec(compile(text, "emitted_plan.py", "exec"), names)
    modules = [path for _, _, paths in names["PLAN"] for path in paths]
    assert modules == [evil, "layers.2", "layers.1"]
    assert evil in [name for name, _ in names["PLAN"][1][0]]

    def shape(text: str) -> list[str]:
        return [type(node).__name__ for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.stmt, ast.Call))]

    # The other operator gives one more policy: an assignment with a call. Nothing else runs.
    assert len(shape(text)) - len(shape(plain)) == 2


def test_the_command_emits_the_same(command: str, tmp_path: pathlib.Path, small: rematic.Trace) -> None:
    plan = rematic.plan(small, int(0.7 * small.peak()), device="h100")
    file = tmp_path / "plan.json"
    plan.save(file)
    options = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    for verb in (["plan", "--budget", str(plan.budget)], ["replay", "--plan", str(file)]):
        words = [command, verb[0], "seed-transformer", *options, *verb[1:], "--emit", "python"]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == plan.to_python()
