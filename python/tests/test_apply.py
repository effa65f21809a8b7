"""Plans on real models: followed to the operator, or refused by name; and taken off without a trace."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pathlib
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from rematic._capture.step import document as capture

WIDTH = 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.norm(x)))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * scale


class Block(nn.Module):
    """In-place operators, running statistics, and a counter."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.relu = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.first(x)))
        z = self.second(y)
        z.mul_(2)
        z += y
        return z.tanh()


class Around(nn.Module):
    """Calls one block several times, and once without gradients."""

    def __init__(self, block: nn.Module, calls: int = 3) -> None:
        super().__init__()
        self.block = block
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = x + self.block(x)
        for _ in range(self.calls):
            x = self.block(x)
        return x


X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))


def whole(model: nn.Module, *args: Any, only: str = "layers.*") -> rematic.Plan:
    """A plan that recomputes all of some modules, at each of their calls that needs a gradient."""
    document = json.loads(capture(model, *args, device="cpu", optimizer=False))
    plan = json.loads(rematic.plan(rematic.Trace.from_bytes(json.dumps(document).encode()), "1GiB").to_json())
    paths: list[str] = []
    for module in document["modules"]:
        paths.append(module["name"] if module["parent"] is None else f"{paths[module['parent']]}.{module['name']}")
    calls: Counter[int] = Counter()
    open_calls: dict[int, dict[str, Any]] = {}
    for event in document["events"]:
        if "enter" in event:
            module = document["calls"][event["enter"]]["module"]
            region = {"module": paths[module], "call": calls[module], "policy": [], "saves": False}
            open_calls[event["enter"]] = region
            calls[module] += 1
        elif "op" in event and document["ops"][event["op"]]["phase"] == "forward":
            op = document["ops"][event["op"]]
            for region in open_calls.values():
                name = document["names"][op["name"]]
                region["policy"].append({"index": len(region["policy"]), "op": name, "decision": "recompute"})
                region["saves"] |= "saves" in op
        elif "exit" in event:
            region = open_calls.pop(event["exit"])
            if fnmatch(region["module"].partition(".")[2], only) and region.pop("saves"):
                plan["regions"].append({**region, "discard": 1.0, "freed_bytes": 0, "recompute_ms": 0.0})
    assert plan["regions"]
    plan["regions"] = [
        region for region in plan["regions"] if not any(is_inside(region, other) for other in plan["regions"])
    ]
    return rematic.Plan.from_json(json.dumps(plan))


def is_inside(region: dict[str, Any], other: dict[str, Any]) -> bool:
    return region["module"].startswith(other["module"] + ".")


def least(model: nn.Module, *args: Any, **options: Any) -> rematic.Plan:
    trace = rematic.Trace.from_bytes(capture(model, *args, device="cpu", optimizer=False))
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, **options)
    return rematic.plan(trace, infeasible.value.least_budget, **options)


def edited(plan: rematic.Plan, edit: Callable[[dict[str, Any]], None]) -> rematic.Plan:
    document = json.loads(plan.to_json())
    edit(document)
    return rematic.Plan.from_json(json.dumps(document))


def saving(plan: rematic.Plan, *names: str) -> rematic.Plan:
    """The same plan, but the outputs of these operators are saved."""

    def edit(document: dict[str, Any]) -> None:
        for region in document["regions"]:
            for op in region["policy"]:
                op["decision"] = "save" if op["op"] in names else "recompute"

    return edited(plan, edit)


def results(model: nn.Module, *args: Any, passes: int = 1, **kwargs: Any) -> list[Tensor]:
    """Losses, gradients and buffers of some passes; and what the generator gives afterwards."""
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    losses = []
    for _ in range(passes):
        loss = model(*args, **kwargs).square().mean()
        loss.backward()
        losses.append(loss.detach())
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    buffers = [buffer.clone() for buffer in model.buffers()]
    model.zero_grad()
    model.load_state_dict(state)
    return [*losses, *gradients, *buffers, torch.rand(2)]


def check_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


class Runs:
    """Counts how often a module's own forward runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module]) -> None:
        self.count = 0
        forward = kind.forward

        def counted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return forward(module, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", counted)


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
    model = Around(Layer())
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
    class Cast(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x)

    # The second call finds the weights in autocast's cache.
    for inner in (Stack(), Around(Layer(), 2)):
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
    for layer in model:
        layer.generator.manual_seed(5)
    rematic.apply(model, whole(model, X, only="?"))
    check_equal(results(model, X), expected)


def test_a_root_without_a_loop_variable_frees_what_is_dropped() -> None:
    model = Stack()
    rematic.apply(model, whole(model, X))
    import gc
    import weakref

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


# ---- what is refused ----


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
    other = nn.Sequential(Layer())
    words = "The plan is for another model, Stack: it checkpoints `Stack.layers.0`, and this Sequential has no such module"
    with pytest.raises(rematic.PlanError, match=words):
        rematic.apply(other, plan)
    assert "forward" not in other.__dict__


def changed(model: Stack, forward: Callable[[Layer, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layer, "forward", forward)


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


def test_hooks_that_run_operators() -> None:
    model = Stack()
    model.layers[1].register_forward_hook(lambda _, args, out: out * 2)
    rematic.apply(model, whole(model, X))
    with pytest.raises(rematic.Mismatch, match=r"it runs only \d+.*hooks of its own.*never=\"Stack.layers.1\"") as raised:
        model(X)
    assert (raised.value.module, raised.value.found) == ("Stack.layers.1", None)


# ---- sharded ----


@pytest.fixture
def mesh(tmp_path: pathlib.Path) -> Iterator[Any]:
    """A mesh of one device."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def sharded(model: Stack, mesh: Any) -> Stack:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("saved", [(), ("addmm.default",)])
def test_fully_sharded_models_follow_the_plan(mesh: Any, saved: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    plan = saving(whole(model, X), *saved)
    plain, before, after = sharded(copy.deepcopy(model), mesh), copy.deepcopy(model), sharded(copy.deepcopy(model), mesh)
    rematic.apply(before, plan)
    rematic.apply(after, plan)

    def locally(tensors: list[Any]) -> list[Tensor]:
        return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]

    expected = locally(results(plain, X, passes=2))
    runs = Runs(monkeypatch, Layer)
    for model in (sharded(before, mesh), after):
        check_equal(locally(results(model, X, passes=2)), expected)
    assert runs.count == 2 * 2 * 6


def test_modules_that_are_sharded_inside_a_region(mesh: Any) -> None:
    model = nn.Sequential(Stack(), nn.Linear(4, 4))
    plan = whole(model, X, only="0")
    sharded(model[0], mesh)
    rematic.apply(model, plan)
    with pytest.raises(rematic.Mismatch, match=r"Inside it `layers.0` is sharded by itself"):
        model(X)


# ---- calls that are not the plan's ----


def test_a_module_called_without_the_model() -> None:
    model = Stack()
    rematic.apply(model, whole(model, X))
    with pytest.raises(rematic.PlanError, match="`Stack.layers.1` was called by itself"):
        model.layers[1](X)


def test_calls_that_do_not_come() -> None:
    model = Around(Layer())
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


def test_saved_outputs_that_change() -> None:
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Linear(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return y.mul_(2).square()

    model = Outside()
    plan = whole(model, X, only="inner")
    rematic.apply(model, saving(plan, "sigmoid.default"))
    model(X).sum().backward()
    rematic.remove(model)
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid())

    class Last(Outside):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x).detach()
            z = self.inner(x)
            with torch.no_grad():
                self.seen = y.mul_(0)
            return z

    model = Last()
    rematic.apply(model, saving(whole(model, X, only="inner"), "sigmoid.default"))
    model(X).sum().backward()


def test_saving_what_is_changed_again() -> None:
    model = nn.Sequential(Block(), Block())
    plan = saving(whole(model, X, only="?"), "addmm.default")
    rematic.apply(model, plan)
    words = r"saves operator \d+ \(`addmm.default`\) of `Sequential.\d` and recomputes operator \d+ \(`mul_.Tensor`\)"
    with pytest.raises(rematic.PlanError, match=words):
        model(X)


# ---- compiled ----


@pytest.fixture
def compiled() -> Any:
    torch._dynamo.reset()
    yield lambda model: torch.compile(model, backend="aot_eager")
    torch._dynamo.reset()


def test_compiled_models_follow_the_plan(compiled: Any) -> None:
    model = Stack()
    for layer in model.layers:
        layer.dropout.p = 0.0
    plan = whole(model, X)
    expected = results(compiled(model), X)
    torch._dynamo.reset()

    saved: list[int] = []

    def held(plan: rematic.Plan | None) -> int:
        """What autograd holds between forward and backward."""
        torch._dynamo.reset()
        if plan is not None:
            rematic.apply(model, plan)
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        wrapped = compiled(model)
        wrapped(X)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            wrapped(X)
        check_equal(results(wrapped, X), expected)
        if plan is not None:
            rematic.remove(model)
        return sum(sizes.values())

    saved = [held(None), held(saving(plan, "addmm.default")), held(plan)]
    assert saved[0] > saved[1] > saved[2], saved


def test_compiled_models_that_run_other_operators(compiled: Any) -> None:
    class Choosy(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.exp() if torch.compiler.is_compiling() else x.sin())

    model = nn.Sequential(Choosy(), Choosy())
    rematic.apply(model, whole(model, X, only="?"))
    with pytest.raises(Exception, match=r"in the plan operator 0 is `sin.default`, but in forward it runs `exp.default`"):
        compiled(model)(X)


# ---- in one line ----


def test_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    expected = results(model, X)
    plan = rematic.auto(model, X, budget="1GiB")
    assert plan.outcome == "fits" and plan.regions == [] and plan.device == "a100-80"
    assert "forward" not in model.__dict__
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.auto(model, X, budget="1KiB", device="cpu", optimizer=False)
    assert infeasible.value.budget == 1024 < infeasible.value.least_budget
    assert "forward" not in model.__dict__
    plan = rematic.auto(model, X, budget=infeasible.value.least_budget, device="cpu", optimizer=False)
    assert plan.outcome == "planned" and plan.peak <= infeasible.value.least_budget
    check_equal(results(model, X), expected)
    runs = Runs(monkeypatch, Layer)
    model(X).sum().backward()
    assert runs.count > 3


def test_auto_on_cuda_plans_for_the_real_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name = "NVIDIA A100-SXM4-40GB"
        total_memory = 42_298_834_944

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    plan = rematic.auto(Stack(), X, optimizer=False)
    assert (plan.device, plan.budget) == ("a100-40", Properties.total_memory)
    Properties.name = "NVIDIA Unheard Of"
    with pytest.raises(rematic.PlanError, match="This machine's NVIDIA Unheard Of is not among the known devices"):
        rematic.auto(Stack(), X)


@pytest.mark.parametrize(
    ("product", "memory", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 85 * 10**9, "a100-80"),
        ("NVIDIA H100 80GB HBM3", 85 * 10**9, "h100"),
        ("NVIDIA H100 PCIe", 85 * 10**9, "h100-pcie"),
        ("NVIDIA H200", 150 * 10**9, "h200"),
        ("NVIDIA GB200", 190 * 10**9, "gb200"),
        ("NVIDIA L4", 24 * 10**9, "l4"),
        ("NVIDIA L40S", 48 * 10**9, "l40s"),
        ("Tesla V100-SXM2-16GB", 17 * 10**9, "v100"),
        ("Tesla T4", 16 * 10**9, "t4"),
        ("NVIDIA GeForce RTX 4090", 25 * 10**9, "rtx-4090"),
        ("AMD Instinct MI300X", 206 * 10**9, "mi300x"),
    ],
)
def test_names_of_drivers(product: str, memory: int, name: str) -> None:
    from rematic._apply.auto import device_of

    assert device_of(product, memory) == name
