"""Runs of calls that are checkpointed as one: promises below what single calls reach, kept to the bit, and refusals."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rematic
from models import Layer
from plans import WIDTH, edited, whole
from reality import peaks
from rematic._capture.step import document as document_of

TOLERANCE = 0.001
STEPS = 3


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step_of(inputs: Any, loss_of: Callable[[Any], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    def step(model: nn.Module, optimizer: Any) -> Tensor:
        loss = loss_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(func).removeprefix("aten.")] += 1
        return func(*args, **(kwargs or {}))


def trained(model: nn.Module, step: Callable[[nn.Module, Any], Tensor]) -> list[Tensor]:
    """Losses of some steps, and all that they leave: parameters and buffers."""
    torch.manual_seed(1)
    optimizer = sgd(model)
    losses = [step(model, optimizer) for _ in range(STEPS)]
    return [*losses, *(value.clone() for value in model.state_dict().values())]


def least_budget(trace: Any, **options: Any) -> int:
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, **options)
    return infeasible.value.least_budget


def check_below_single_calls(
    model: nn.Module, inputs: Any, loss_of: Callable[[Any], Tensor], held: Tensor | None = None
) -> None:
    """Trains under plans for budgets that no plan of single calls reaches; `held` is a tensor that the loss reads."""
    step = step_of(inputs, loss_of)
    trace = rematic.capture_step(lambda model, optimizer: step(model, optimizer), model, sgd(model), device="cpu")
    weights = copy.deepcopy(model.state_dict())
    single, lowest = least_budget(trace, runs=False), least_budget(trace)
    assert lowest < single
    expected = trained(model, step)
    kernels = {op.name.split(".")[0] for op in trace.ops}
    for budget in (lowest, (lowest + single) // 2, single - 1):
        plan = rematic.plan(trace, budget)
        assert any(region.then for region in plan.regions)
        assert rematic.Plan.from_json(plan.to_json()) == plan
        model.load_state_dict(weights)
        rematic.apply(model, plan)
        torch.manual_seed(1)
        optimizer = sgd(model)
        real, _ = peaks(lambda: step(model, optimizer), model, (inputs, held), kernels)  # noqa: B023
        assert abs(real - plan.peak) <= TOLERANCE * plan.peak, (real, plan.peak)
        model.load_state_dict(weights)
        found = trained(model, step)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        rematic.remove(model)


def recomputed(model: nn.Module, plan: rematic.Plan, inputs: Any, loss_of: Callable[[Any], Tensor]) -> Counter[str]:
    """The operators that a step runs more under a plan than without."""
    counts = []
    for planned in (False, True):
        if planned:
            rematic.apply(model, plan, audit=0)
        counting = Counting()
        loss = loss_of(model(inputs))
        with counting:
            loss.backward()
        counts.append(counting.count)
    rematic.remove(model)
    return counts[1] - counts[0]


# ---- promises ----


def flat(layers: int = 24, width: int = 64) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*parts)


def test_a_flat_sequence_of_layers() -> None:
    torch.manual_seed(0)
    check_below_single_calls(flat(), torch.randn(512, 64), lambda out: out.square().mean())


def test_dropout_and_running_statistics_in_a_sequence() -> None:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(8):
        parts += [nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(0.3)]
    check_below_single_calls(nn.Sequential(*parts), torch.randn(512, 32), lambda out: out.square().mean())


def test_sequences_inside_a_sequence() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(flat(1, 64) for _ in range(24)))
    check_below_single_calls(model, torch.randn(512, 64), lambda out: out.square().mean())


def test_llama() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=9, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=0.1, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    tokens = torch.randint(4096, (4, 64))
    check_below_single_calls(model, {"input_ids": tokens, "labels": tokens}, lambda out: out.loss)


def test_bert() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4
    )
    model = transformers.BertForMaskedLM(config).train()
    tokens = torch.randint(4096, (4, 64))
    check_below_single_calls(model, {"input_ids": tokens, "labels": tokens}, lambda out: out.loss)


def test_vit() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=64, patch_size=8, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        hidden_dropout_prob=0.1, num_labels=8,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).train()
    # What is highest must not be a layer that runs again, which several layers as one would raise.
    many = torch.randn(1 << 12, 1, 1)
    inputs = {"pixel_values": torch.randn(8, 3, 64, 64)}
    check_below_single_calls(model, inputs, lambda out: (out.logits * many).square().mean(), many)


# ---- what is done again ----


class Layers(nn.Module):
    """Layers in a loop, with something done before the last of them."""

    def __init__(self, between: Callable[[Tensor], Tensor] | None = None, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(WIDTH, dropout=0.2) for _ in range(count))
        self.between = between
        self.skipped: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            if self.between is not None and at == 2:
                x = self.between(x)
            if at != self.skipped:
                x = layer(x)
        return x


X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))


def as_one(model: nn.Module, *layers: int) -> rematic.Plan:
    """A plan that checkpoints some layers as one and recomputes all of it."""
    plan = whole(model, X, only="layers.?")

    def edit(document: dict[str, Any]) -> None:
        regions = document["regions"]
        assert len(regions) == len(model.layers)  # type: ignore[arg-type]
        policy = [op for at in layers for op in regions[at]["policy"]]
        run = dict(regions[layers[0]])
        run["then"] = [{"module": f"{type(model).__name__}.layers.{at}", "call": 0} for at in layers[1:]]
        run["policy"] = [{**op, "index": index} for index, op in enumerate(policy)]
        document["regions"] = [region for at, region in enumerate(regions) if at not in layers] + [run]
        document["version"] = 3

    return edited(plan, edit)


def results(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(0)
    model.zero_grad()
    out = model(X)
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def test_operators_run_again_once() -> None:
    model = Layers()
    again = recomputed(model, as_one(model, 0, 1, 2), X, lambda out: out.square().sum())
    single = recomputed(model, as_one(model, 0, 1), X, lambda out: out.square().sum())
    linears = sum(isinstance(module, nn.Linear) for module in model.layers[0].modules())
    # What only the calls behind need is made again too, but for the end of the run.
    assert 2 * linears <= again["addmm.default"] + again["mm.default"] <= 4 * linears
    assert sum(again.values()) >= sum(single.values())


def test_values_are_equal_and_counters_count_once() -> None:
    model = Layers()
    seen: list[int] = []
    model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    expected = results(model)
    seen.clear()
    rematic.apply(model, as_one(model, 0, 1, 2, 3))
    for _ in range(3):
        assert all(torch.equal(*pair) for pair in zip(results(model), expected, strict=True))
    assert len(seen) == 4 and seen.count(1) == 4
    # Evaluation, and copies.
    model.eval()
    with torch.no_grad():
        assert model(X).shape == X.shape
    model.train()
    other = copy.deepcopy(model)
    assert all(torch.equal(*pair) for pair in zip(results(other), expected, strict=True))
    rematic.remove(model)
    assert all(torch.equal(*pair) for pair in zip(results(model), expected, strict=True))


class Named(nn.Module):
    """Hands on a tuple, a keyword and a dictionary, and reads what the caller sets before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = 1.0

    def forward(self, x: Tensor, *, more: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y = torch.tanh(self.linear(x)) * self.scale
        return y, {"more": more["more"] + y}


class Handing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Named() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        more = {"more": x}
        for at, layer in enumerate(self.layers):
            layer.scale = 1.0 + at
            out = layer(x, more=more)
            layer.scale = 100.0
            x, more = out[0], {"more": out[1]["more"]}
        return x + more["more"]


def test_what_calls_hand_on_in_containers() -> None:
    model = Handing()
    expected = results(model)
    rematic.apply(model, as_one(model, 0, 1, 2, 3))
    assert all(torch.equal(*pair) for pair in zip(results(model), expected, strict=True))


# ---- refusals ----


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (lambda x: x * 2, "mul.Tensor"),
        (lambda x: x.detach().requires_grad_(), "another view"),
        (lambda x: x[:], None),
    ],
)
def test_what_is_done_between_two_calls_is_refused(between: Any, words: str | None) -> None:
    model = Layers()
    rematic.apply(model, as_one(model, 1, 2))
    model.between = between
    with pytest.raises(rematic.PlanError, match=words):
        results(model)
    model.between = None
    results(model)


def test_a_call_that_is_left_out_is_refused() -> None:
    model = Layers()
    rematic.apply(model, as_one(model, 0, 1, 2))
    for skipped, words in ((1, "in place of"), (2, "in place of")):
        model.skipped = skipped
        with pytest.raises(rematic.PlanError, match=words):
            results(model)
    rematic.remove(model)
    model.skipped = None
    rematic.apply(model, as_one(model, 2, 3))
    model.skipped = 3
    with pytest.raises(rematic.PlanError, match="was not called after"):
        results(model)
    model.skipped = None
    results(model)


class Switching(Layers):
    """Enters something for one of its layers alone."""

    context: Any = None

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            if at == 1 and self.context is not None:
                with self.context():
                    x = layer(x)
            else:
                x = layer(x)
        return x


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (torch.no_grad, "gradients or autocast"),
        (lambda: torch.autocast("cpu", torch.bfloat16), "gradients or autocast"),
        (lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), "hooks for saved tensors"),
        (Counting, "dispatch mode"),
    ],
)
def test_what_is_switched_between_two_calls_is_refused(context: Any, words: str) -> None:
    model = Switching()
    rematic.apply(model, as_one(model, 0, 1, 2))
    model.context = context
    with pytest.raises(rematic.PlanError, match=words):
        results(model)
    model.context = None
    results(model)


def test_an_error_inside_a_run_leaves_nothing_open() -> None:
    model = Layers()
    expected = results(model)
    rematic.apply(model, as_one(model, 0, 1, 2))
    plain = model.layers[1].dropout

    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    model.layers[1].dropout = Failing()
    with pytest.raises(ValueError, match="no"):
        results(model)
    model.layers[1].dropout = plain
    assert all(torch.equal(*pair) for pair in zip(results(model), expected, strict=True))


def test_modules_that_are_sharded_one_by_one_are_refused() -> None:
    class FSDPModule:
        """What FSDP2 makes a sharded module an instance of."""

    model = Layers()
    plan = as_one(model, 0, 1)
    for layer in model.layers:
        layer.__class__ = type("FSDPLayer", (FSDPModule, Layer), {})
    rematic.apply(model, plan)
    with pytest.raises(rematic.PlanError, match="`Layers.layers.0` is sharded by itself"):
        results(model)


def test_torch_compile_is_refused() -> None:
    model = Layers()
    rematic.apply(model, as_one(model, 0, 1))
    with pytest.raises(Exception, match="torch.compile does not follow|runs=False"):
        torch.compile(model, backend="eager")(X).sum().backward()


def test_variants_have_no_runs() -> None:
    model = flat()
    traces = [
        rematic.capture(model, torch.randn(rows, 64), device="cpu", optimizer=False) for rows in (256, 512)
    ]
    with pytest.raises(rematic.Infeasible):
        rematic.plan(traces, traces[0].peak() // 2)


def test_documents() -> None:
    model = Layers()
    plan = as_one(model, 0, 1, 2)
    assert plan.regions[-1].then == [("Layers.layers.1", 0), ("Layers.layers.2", 0)]
    trace = rematic.Trace.from_bytes(document_of(model, X, device="cpu", optimizer=False))
    assert rematic.replay(trace, plan).peak > 0
    for version in (1, 2):
        with pytest.raises(rematic.PlanError, match="runs of calls, which version"):
            edited(plan, lambda document: document.update(version=version))  # noqa: B023
    far = edited(plan, lambda document: document["regions"][-1].update(then=[{"module": "Layers.layers.2", "call": 0}]))
    with pytest.raises(rematic.PlanError, match="not called right after"):
        rematic.replay(trace, far)
    with pytest.raises(rematic.PlanError, match="twice"):
        edited(plan, lambda document: document["regions"][-1]["then"].append({"module": "Layers.layers.1", "call": 0}))


def test_emitted_python(tmp_path: Any) -> None:
    model = Layers()
    expected = results(model)
    plan = as_one(model, 0, 1, 2)
    file = tmp_path / "emitted.py"
    file.write_text(plan.to_python())
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    names["apply_plan"](model)
    for _ in range(2):
        assert all(torch.equal(*pair) for pair in zip(results(model), expected, strict=True))
    model.skipped = 1
    with pytest.raises(names["PlanMismatch"], match="in place of"):
        results(model)
    model.skipped = None
    assert all(torch.equal(*pair) for pair in zip(results(model), expected, strict=True))
