"""A plan that computes the loss in chunks: what it promises is what happens, within rounding, and nothing reads logits that are not
there."""

from __future__ import annotations

import copy
import gc
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import rematic
from models import DECODER, causal, tokens
from reality import TOLERANCE, peaks
from rematic._loss.head import Chunked, head_in, placed
from rematic._loss.logits import Logits, LogitsError

SMALL = DECODER | {"vocab_size": 3001}
GPT2 = {"vocab_size": 3001, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GEMMA = SMALL | {"head_dim": 16, "tie_word_embeddings": True}
# Tied and not, with a bias, with a soft cap, multiplied, divided.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "gpt2": GPT2,
    "qwen3": SMALL | {"head_dim": 32, "tie_word_embeddings": True},
    "gemma2": GEMMA,
    "granite": SMALL | {"logits_scaling": 8.0},
    "cohere": SMALL | {"logit_scale": 0.0625, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "phi": {**SMALL, "num_key_value_heads": 4},
}
# The norm of what a gradient differs by, as a share of its norm: eight times what one rounding may change.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 0.03, torch.float16: 0.004}


def built(family: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model, _, inputs = causal(family, dtype, **FAMILIES[family])("cpu")
    labels = inputs["labels"].clone()
    labels[0, :7] = -100
    return model, {**inputs, "labels": labels}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def check_near(found: dict[str, Tensor], wanted: dict[str, Tensor], rounding: float) -> None:
    assert found.keys() == wanted.keys()
    largest = max(gradient.double().norm() for gradient in wanted.values())
    for name, gradient in wanted.items():
        # A gradient that is nothing but rounding errors is compared with the others.
        norm = max(gradient.double().norm(), 1e-3 * largest)
        assert (found[name].double() - gradient.double()).norm() <= rounding * norm, name


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_loss_of_the_model(family: str, dtype: torch.dtype) -> None:
    model, inputs = built(family, dtype)
    for said, chunks in (({}, 8), ({}, 1000), ({"num_items_in_batch": torch.tensor(50)}, 3), ({"num_items_in_batch": 77}, 1)):
        # As a loss scaler does: without it, gradients are too small for the type.
        scale = 1024 if dtype == torch.float16 else 1
        plain = model(**inputs, **said).loss
        wanted = gradients(model, plain * scale)
        with placed(model, Chunked("lm_head", chunks)):
            loss = model(**inputs, **said).loss
            torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-6)
            check_near(gradients(model, loss * scale), wanted, ROUNDING[dtype])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_it_is_the_loss_under_autocast(family: str) -> None:
    model, inputs = built(family)
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(**inputs).loss
    wanted = gradients(model, plain)
    with placed(model, Chunked("lm_head", 8)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs).loss
        assert loss.dtype == torch.float32
        check_near(gradients(model, loss), wanted, ROUNDING[torch.bfloat16])


class Training:
    """Steps of a causal model on the CPU, captured with the plain loss and the chunked one."""

    def __init__(self, family: str) -> None:
        self.model, self.inputs = built(family)
        self.trace = rematic.capture(self.model, loss="auto", optimizer=sgd, device="cpu", **self.inputs)

    def peak(self, plan: rematic.Plan | None) -> int:
        model = copy.deepcopy(self.model)
        if plan is not None:
            rematic.apply(model, plan, audit=0)
        optimizer = sgd(model.parameters())
        held: list[Any] = [None]

        def step() -> None:
            held[0] = model(**self.inputs)
            held[0].loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        assert self.trace.chunked is not None
        kernels = {op.name.split(".")[0] for trace in (self.trace, self.trace.chunked) for op in trace.ops}
        return peaks(step, model, self.inputs, kernels)[1]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "phi"])
def test_promised_peaks_are_real(family: str) -> None:
    training = Training(family)
    plain, chunked = training.trace, training.trace.chunked
    assert chunked is not None and chunked.peak() < 0.8 * plain.peak()
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(plain, 1, loss="chunked")
    least = infeasible.value.least_budget
    assert least < chunked.peak()
    for budget in (chunked.peak(), (chunked.peak() + least) // 2, least):
        plan = rematic.plan(plain, budget, loss="chunked")
        assert plan.loss == ("lm_head", 8)
        assert bool(plan.regions) == (budget < chunked.peak())
        real = training.peak(plan)
        assert abs(real - plan.peak) <= TOLERANCE * plan.peak, (budget, real, plan.peak)
    assert abs(training.peak(None) - plain.peak()) <= TOLERANCE * plain.peak()


def test_auto_takes_the_cheaper_loss_and_says_what_the_other_costs(tmp_path: pathlib.Path) -> None:
    model, inputs = built("llama")
    trace = rematic.capture(model, loss="auto", optimizer=sgd, device="cpu", **inputs)
    chunked = trace.chunked
    assert chunked is not None
    # Where the step fits as it is, nothing is computed twice.
    plan = rematic.plan(trace, trace.peak(), loss="auto")
    assert plan.loss is None and "Loss: plain" in str(plan) and "with the chunked one it would take" in str(plan)
    assert plan == rematic.plan(trace, trace.peak())
    # Where only the other fits, it is taken.
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, loss="plain")
    budget = infeasible.value.least_budget - 1
    plan = rematic.plan(trace, budget, loss="auto")
    assert plan.loss == ("lm_head", 8) and plan.peak <= budget
    assert "Loss: chunked" in str(plan) and "the plain one does not fit: its least peak is" in str(plan)
    assert plan == rematic.plan(chunked, budget) == rematic.plan(trace, budget, loss="chunked")
    # It is the same plan when it is read.
    plan.save(tmp_path / "plan.json")
    assert rematic.Plan.load(tmp_path / "plan.json") == plan
    skips = any(region.skipped for region in plan.regions)
    assert f'"version": {6 if skips else 5}' in plan.to_json()
    replayed = rematic.replay(chunked, plan)
    assert replayed.peak == plan.peak
    with pytest.raises(rematic.PlanError, match="loss"):
        rematic.replay(trace, plan)
    with pytest.raises(rematic.RematicError, match="computes the loss of `lm_head` in chunks, which the emitted Python cannot"):
        plan.to_python()


def test_the_faster_step_is_taken_at_every_budget() -> None:
    trace = rematic.Trace.model("llama-3-8b", batch=2, seq=4096, layers=4, loss="auto")
    other = trace.chunked
    assert other is not None
    taken = set()
    for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.55):
        budget = int(share * trace.peak())
        steps = []
        for step in (trace, other):
            try:
                plan = rematic.plan(step, budget)
            except rematic.Infeasible:
                steps.append(float("inf"))
            else:
                steps.append(plan.step_ms + plan.recompute_ms)
        found = rematic.plan(trace, budget, loss="auto")
        assert (found.loss is not None) == (steps[1] < steps[0])
        taken.add(found.loss)
    assert taken == {None, ("lm_head", 8)}


def test_a_plan_is_applied_and_removed() -> None:
    model, inputs = built("llama")
    wanted = gradients(model, model(**inputs).loss)
    plain = rematic.capture(model, optimizer=sgd, device="cpu", **inputs)
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(plain, 1)
    plan = rematic.auto(
        model, **inputs, loss="auto", optimizer=sgd, device="cpu", budget=infeasible.value.least_budget - 1
    )
    assert plan.loss == ("lm_head", 8)
    for _ in range(3):
        output = model(**inputs)
        check_near(gradients(model, output.loss), wanted, ROUNDING[torch.float32])
    assert isinstance(output.logits, Logits) and output.logits.shape == (2, 64, 3001)
    with pytest.raises(LogitsError, match="`lm_head` are computed in chunks.*their `argmax` is asked for"):
        output.logits.argmax(-1)
    with pytest.raises(rematic.PlanError, match="`log_softmax` reads them"):
        functional.log_softmax(output.logits, -1)
    # What evaluates has logits.
    with torch.no_grad():
        assert isinstance(model(**inputs).logits, Tensor)
    model.eval()
    assert isinstance(model(**inputs).logits, Tensor)
    model.train()
    with pytest.raises(rematic.PlanError, match="already applied"):
        rematic.apply(model, plan)
    rematic.remove(model)
    assert all("forward" not in vars(module) for module in model.modules())
    output = model(**inputs)
    assert isinstance(output.logits, Tensor)
    again = gradients(model, output.loss)
    assert all(torch.equal(again[name], gradient) for name, gradient in wanted.items())


class Classifier(nn.Module):
    """A network with a linear layer at its end."""

    def __init__(self, classes: int = 4001, bias: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes, bias=bias)

    def forward(self, values: Tensor) -> Any:
        return self.head(self.body(values))


def stepping(loss: Callable[[Any], Tensor], values: Tensor) -> Callable[[nn.Module, Any], None]:
    def step(model: nn.Module, optimizer: Any) -> None:
        loss(model(values)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


TARGETS = torch.randint(0, 4001, (6, 20), generator=torch.Generator().manual_seed(1))
LOSSES: dict[str, Callable[[Any], Tensor]] = {
    "rows": lambda logits: functional.cross_entropy(logits.view(-1, 4001), TARGETS.view(-1)),
    "reshaped": lambda logits: functional.cross_entropy(logits.reshape(120, -1).float(), TARGETS.reshape(-1)),
    "flattened": lambda logits: functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), reduction="sum") / 7,
    "shifted": lambda logits: functional.cross_entropy(
        logits[..., :-1, :].contiguous().view(-1, logits.size(-1)), TARGETS[..., 1:].reshape(-1)
    ),
    "transposed": lambda logits: functional.cross_entropy(logits.transpose(1, 2), TARGETS),
    "permuted": lambda logits: nn.CrossEntropyLoss()(logits.permute(0, 2, 1), TARGETS),
    "ignored": lambda logits: functional.cross_entropy(logits.view(-1, 4001), (TARGETS % 3).view(-1), ignore_index=2),
    "masked": lambda logits: functional.cross_entropy(logits[TARGETS > 2000], TARGETS[TARGETS > 2000]),
    "scaled": lambda logits: functional.cross_entropy((logits / 0.5).tanh().mul(3.0).view(-1, 4001), TARGETS.view(-1)),
    "in double": lambda logits: functional.cross_entropy(logits.double().view(-1, 4001), TARGETS.view(-1)).float(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_linear_layer_and_cross_entropy_in_a_step(name: str) -> None:
    torch.manual_seed(0)
    model, values, loss = Classifier(bias=name != "rows"), torch.randn(6, 20, 32), LOSSES[name]
    step = stepping(loss, values)
    trace = rematic.capture_step(step, model, sgd, loss_kind="auto", device="cpu")
    assert trace.chunked is not None and trace.chunked.facts["loss-head"] == "head"
    assert trace.chunked.peak() < trace.peak()
    wanted = gradients(model, loss(model(values)))
    plan = rematic.plan(trace, trace.chunked.peak(), loss="chunked")
    rematic.apply(model, plan)
    check_near(gradients(model, loss(model(values))), wanted, ROUNDING[torch.float32])
    rematic.remove(model)
    auto = rematic.auto(model, values, loss=loss, loss_kind="chunked", optimizer=sgd, device="cpu", budget=trace.peak())
    assert auto.loss == ("head", 8)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda logits: functional.cross_entropy(logits.view(-1, 4001), TARGETS.view(-1), label_smoothing=0.1), "smooths labels, by 0.1"),
        (
            lambda logits: functional.cross_entropy(logits.view(-1, 4001), TARGETS.view(-1), weight=torch.ones(4001)),
            "weighs classes",
        ),
        (
            lambda logits: functional.cross_entropy(logits.view(-1, 4001), TARGETS.view(-1), reduction="none").mean(),
            "not reduced to a mean or a sum",
        ),
        (
            lambda logits: functional.cross_entropy(logits.view(-1, 4001), TARGETS.view(-1)) + logits.square().mean(),
            "their `square` is asked for",
        ),
        (lambda logits: functional.cross_entropy(logits[..., :4000].reshape(-1, 4000), TARGETS.view(-1) % 4000), "some of their classes"),
        (lambda logits: functional.cross_entropy((logits * torch.ones(4001)).view(-1, 4001), TARGETS.view(-1)), "changed by a Tensor"),
        (lambda logits: functional.nll_loss(logits.log_softmax(-1).view(-1, 4001), TARGETS.view(-1)), "`log_softmax` is asked for"),
    ],
)  # fmt: skip
def test_whatever_else_reads_the_logits_is_refused(loss: Callable[[Any], Tensor], words: str) -> None:
    step = stepping(loss, torch.randn(6, 20, 32))
    with pytest.raises(rematic.PlanError, match=words):
        rematic.capture_step(step, Classifier(), sgd, loss_kind="chunked", device="cpu")
    # Where it may be chosen, the plain loss is, and the answer says why.
    trace = rematic.capture_step(step, Classifier(), sgd, loss_kind="auto", device="cpu")
    assert trace.chunked is None
    plan = rematic.plan(trace, trace.peak(), loss="auto")
    assert plan.loss is None and "the chunked one cannot be had" in str(plan)


def test_what_is_no_linear_layer_is_refused_with_what_to_do() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(501, 16)

        def forward(self, ids: Tensor) -> Tensor:
            logits = functional.linear(self.table(ids), self.table.weight)
            return functional.cross_entropy(logits.view(-1, 501), ids.view(-1))

    with pytest.raises(rematic.PlanError) as refused:
        rematic.capture(Tied(), tokens(501), loss="chunked")
    assert "in `Tied`, and not from an nn.Linear" in str(refused.value)
    assert "loss = rematic.chunked_loss(hidden, weight, labels)" in str(refused.value)
    with pytest.raises(rematic.PlanError, match="it has no cross_entropy"):
        rematic.capture(nn.Linear(4, 4), torch.randn(2, 4), loss="chunked")


def test_the_largest_of_several_heads_is_taken() -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Linear(64, 2)

        def forward(self, values: Tensor) -> Tensor:
            hidden = self.body(values)
            kind = functional.cross_entropy(self.small(hidden).view(-1, 2), TARGETS.view(-1) % 2)
            return kind + functional.cross_entropy(self.head(hidden).view(-1, 4001), TARGETS.view(-1))

    torch.manual_seed(0)
    model, values = Two(), torch.randn(6, 20, 32)
    assert head_in(rematic.capture(model, values)) == "head"
    wanted = gradients(model, model(values))
    rematic.auto(model, values, loss="chunked", budget="1GiB", device="cpu")
    check_near(gradients(model, model(values)), wanted, ROUNDING[torch.float32])


def test_layers_of_which_more_is_asked_are_refused() -> None:
    decision = Chunked("head", 8)

    def refused(change: Callable[[Any], Any]) -> str:
        model = Classifier()
        change(model)
        with pytest.raises(rematic.PlanError) as error, placed(model, decision):
            pass
        return str(error.value)

    class Noisy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    assert "forward hooks" in refused(lambda model: model.head.register_forward_hook(lambda *_: None))
    assert "forward hooks" in refused(lambda model: model.head.register_forward_pre_hook(lambda *_: None))
    assert "backward hooks" in refused(lambda model: model.head.register_full_backward_hook(lambda *_: None))
    assert "another forward" in refused(lambda model: setattr(model.head, "forward", model.head.forward))
    assert "of type Noisy" in refused(lambda model: setattr(model, "head", Noisy(64, 4001)))
    assert "no such module" in refused(lambda model: delattr(model, "head"))


def test_what_changes_between_the_layer_and_its_loss_is_seen() -> None:
    class Writes(Classifier):
        def forward(self, values: Tensor) -> Any:
            hidden = self.body(values) * 1.0
            logits = self.head(hidden)
            hidden.add_(1.0)
            return logits

    model, loss = Writes(), LOSSES["rows"]
    with placed(model, Chunked("head", 8)), pytest.raises(LogitsError, match="changed in place between the layer and its loss"):
        loss(model(torch.randn(6, 20, 32)))


def test_logits_are_read_once_and_hold_nothing_after() -> None:
    model = Classifier()
    with placed(model, Chunked("head", 8)):
        logits = model(torch.randn(6, 20, 32))
        view = logits.view(-1, 4001)
        loss = functional.cross_entropy(view, TARGETS.view(-1))
        with pytest.raises(LogitsError, match="after their loss was computed"):
            functional.cross_entropy(view, TARGETS.view(-1))
        assert logits.rows is None and view.rows is None
        assert "computed in chunks" in repr(logits)
        gc.collect()
        with pytest.raises(rematic.PlanError, match="has no second derivative"):
            torch.autograd.grad(loss, model.body[0].weight, create_graph=True)


def test_a_compiled_model_is_refused() -> None:
    model = Classifier()
    with placed(model, Chunked("head", 8)):
        compiled = torch.compile(model, backend="eager")
        with pytest.raises(Exception, match="torch.compile does not follow"):
            LOSSES["rows"](compiled(torch.randn(6, 20, 32)))


def test_what_is_frozen_gets_no_gradient() -> None:
    torch.manual_seed(0)
    model, values, loss = Classifier(), torch.randn(6, 20, 32), LOSSES["shifted"]
    for frozen in (model.head, model.body):
        model.requires_grad_(True)
        frozen.requires_grad_(False)
        wanted = gradients(model, loss(model(values)))
        with placed(model, Chunked("head", 8)):
            check_near(gradients(model, loss(model(values))), wanted, ROUNDING[torch.float32])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"loss": "fused"}, "the kind of loss is 'fused'; give plain, chunked or auto"),
        ({"loss": "auto", "loss_kind": "chunked"}, "say the same thing"),
    ],
)
def test_mistakes_are_explained(said: dict[str, Any], words: str) -> None:
    with pytest.raises(rematic.PlanError, match=words):
        rematic.capture(Classifier(), torch.randn(6, 20, 32), **said)


def test_a_trace_of_one_loss_has_no_choice() -> None:
    trace = rematic.capture(Classifier(), torch.randn(6, 20, 32))
    for asked in ("chunked", "auto"):
        with pytest.raises(rematic.RematicError, match='this trace knows only the plain loss.*capture it with loss="auto"'):
            rematic.plan(trace, "1GiB", loss=asked)
