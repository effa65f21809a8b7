"""What a step may hold: shared weights, frozen ones, checkpoints, several passes, any optimizer."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from canonical import timeline
from models import Layer
from rematic._capture.step import document as capture
from rematic._capture.step import document_of_step as capture_step

Stats = Callable[..., dict[str, Any]]
WIDTH = 64


class Stack(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


TOKENS = torch.zeros(8, 32, dtype=torch.long)


def names(document: dict[str, Any], phase: str) -> list[str]:
    return [document["names"][op["name"]] for op in document["ops"] if op["phase"] == phase]


def test_the_users_model_is_left_alone() -> None:
    model = Stack()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = copy.deepcopy(model.state_dict())
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    steps = scheduler.optimizer.state_dict()
    capture(model, TOKENS, optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == attributes
    assert all(not parameter._backward_hooks for parameter in model.parameters())
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert scheduler.optimizer.state_dict() == steps and not optimizer.state
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"


def test_real_weights_are_not_copied() -> None:
    model = nn.Linear(4096, 4096)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.device.type == "cpu" and out.untyped_storage()._cdata not in known:
                self.largest = max(self.largest, out.numel())
            return out

    known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    batch = torch.zeros(2, 4096)
    known.add(batch.untyped_storage()._cdata)
    with Watch() as watch:
        capture(model, batch)
    assert watch.largest <= 1


def test_tied_weights_share_a_storage_and_a_gradient() -> None:
    model = Stack()
    model.head.weight = model.embedding.weight
    document = json.loads(capture(model, TOKENS))
    rows = {module["name"]: module["parameters"] for module in document["modules"] if "parameters" in module}
    assert rows["head"][0][1] == rows["embedding"][0][1]


def test_frozen_parameters_get_no_gradient_and_no_state(stats: Stats) -> None:
    model = Stack()
    whole = stats(capture(model, TOKENS))["peak"]["optimizer"]
    for parameter in model.layers.parameters():
        parameter.requires_grad_(False)
    document = json.loads(capture(model, TOKENS))
    states = [size for size, category, birth, *_ in document["storages"] if category == "optimizer" and birth is None]
    assert sum(states) == 2 * 4 * 2 * 16 * WIDTH
    assert whole > sum(states)


def test_parameters_that_are_never_used_get_no_state() -> None:
    class Wasteful(Stack):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(1000, 1000)

    def state(model: nn.Module) -> int:
        document = json.loads(capture(model, TOKENS))
        return sum(size for size, category, birth, *_ in document["storages"] if category == "optimizer" and birth is None)

    assert state(Wasteful()) == state(Stack())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_in_the_model_are_seen(reentrant: bool, stats: Stats) -> None:
    plain, saved = capture(Stack(), TOKENS), capture(Stack(reentrant), TOKENS)
    assert stats(saved)["peak"]["total"] < stats(plain)["peak"]["total"]
    backward = Counter(names(json.loads(saved), "backward"))
    assert backward["gelu.default"] == 3 and backward["gelu_backward.default"] == 3
    assert timeline(json.loads(saved))[-1][2] == timeline(json.loads(plain))[-1][2]


def test_gradient_accumulation_and_clipping(stats: Stats) -> None:
    model = Stack()

    def step(model: nn.Module, optimizer: Any) -> None:
        for _ in range(3):
            (model(TOKENS).mean() / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    document = capture_step(step, model)
    read = json.loads(document)
    assert stats(document)["peak"]["gradient"] == sum(
        -(-parameter.numel() * 4 // 512) * 512 for parameter in model.parameters()
    )
    assert len(read["calls"]) == 3 * (1 + 1 + 3 * 4 + 1)
    assert "_foreach_norm.Scalar" in names(read, "forward")
    # What the first pass leaves, the others add to in place.
    assert sum(name == "add_.Tensor" for name in names(read, "backward")) == 2 * len(list(model.parameters()))


def test_a_number_read_for_the_log() -> None:
    def step(model: nn.Module, optimizer: Any) -> float:
        loss = model(TOKENS).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    model = Stack()
    document = json.loads(capture_step(step, model, torch.optim.SGD(model.parameters(), lr=0.1)))
    assert names(document, "optimizer")[-1] == "_local_scalar_dense.default"


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda parameters: torch.optim.AdamW(parameters, fused=True), "_fused_adamw_.default"),
        (lambda parameters: torch.optim.AdamW(parameters), "_foreach_addcdiv_.ScalarList"),
        (lambda parameters: torch.optim.AdamW(parameters, foreach=False), "addcdiv_.default"),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), "_foreach_add_.List"),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True), "_fused_sgd_.default"),
        (lambda parameters: torch.optim.RMSprop(parameters), "_foreach_addcdiv_.Scalar"),
        (lambda parameters: torch.optim.Adagrad(parameters), "_foreach_addcdiv_.Scalar"),
    ],
)
def test_optimizers_run_the_kernels_of_cuda(make: Any, op: str, stats: Stats) -> None:
    model = Stack()
    made = capture(model, TOKENS, optimizer=make)
    assert op in names(json.loads(made), "optimizer")
    # The user's own optimizer, with its settings, is the same.
    own = capture(model, TOKENS, optimizer=make(model.parameters()))
    assert timeline(json.loads(own)) == timeline(json.loads(made))
    stats(made)


def test_without_optimizer() -> None:
    document = json.loads(capture(Stack(), TOKENS, optimizer=False))
    assert not names(document, "optimizer")
    assert not any(category == "optimizer" for _, category, *_ in document["storages"])


@dataclass
class Answer:
    score: Tensor
    extra: dict[str, Any]


class Nested(nn.Module):
    """Called twice a step, once without gradients; nested inputs and outputs; writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer(WIDTH)
        self.norm = nn.BatchNorm1d(32)
        self.register_buffer("table", torch.ones(WIDTH))
        self.constant = torch.arange(WIDTH)

    def forward(self, x: Tensor, *, more: dict[str, list[Tensor]], factor: float = 2.0) -> Answer:
        with torch.no_grad():
            target = self.layer(x)
        y = self.norm(self.layer(self.layer(x) + target)) * self.table + self.constant
        y[:, 0] = 0
        y.mul_(factor)
        return Answer(y.relu_(), {"mean": (y.mean() + more["bias"][0].sum(), 3)})


def test_nested_values_and_modules_called_twice(stats: Stats) -> None:
    model, x = Nested(), torch.zeros(8, 32, WIDTH)
    document = capture(model, x, more={"bias": [torch.ones(3)]}, loss=lambda answer: answer.extra["mean"][0])
    read = json.loads(document)
    stats(document)
    layer = next(row for row, module in enumerate(read["modules"]) if module["name"] == "layer")
    calls = [row for row, call in enumerate(read["calls"]) if call["module"] == layer]
    assert len(calls) == 3
    assert len(read["calls"][0]["keywords"]) == 1 and len(read["calls"][0]["outputs"]) == 2
    # Nothing of the call without gradients is saved.
    inside = [op for op in read["ops"] if op["phase"] == "forward" and op.get("call") in (calls[0], calls[0] + 1)]
    assert inside and not any("saves" in op for op in inside)
    assert any(op.get("mutates") for op in read["ops"] if op["phase"] == "forward")


def test_sequence_output_is_held_by_the_loop() -> None:
    """The previous step's output lives until this step's forward is over."""
    document = json.loads(capture(Stack(), TOKENS))
    previous = [
        row
        for row, (_, category, birth, *_) in enumerate(document["storages"])
        if category == "activation" and birth is None
    ]
    assert [document["storages"][row][0] for row in previous] == [8 * 32 * 16 * 4]
    events = document["events"]
    assert events.index({"drop": previous[0]}) == events.index({"exit": 0}) + 1


def test_rms_norm_and_batch_norm_run_the_kernels_of_cuda() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rms = nn.RMSNorm(WIDTH)
            self.batch = nn.BatchNorm1d(32)

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.batch(self.rms(x)).half(), -1, dtype=torch.float32)

    x = torch.zeros(8, 32, WIDTH)
    on_cuda = names(json.loads(capture(Norms(), x)), "forward")
    assert {"_fused_rms_norm.default", "cudnn_batch_norm.default"} <= set(on_cuda)
    assert on_cuda.count("_to_copy.default") == 1
    on_cpu = names(json.loads(capture(Norms(), x, device="cpu")), "forward")
    assert {"rsqrt.default", "native_batch_norm.default"} <= set(on_cpu)
    assert on_cpu.count("_to_copy.default") == 2


@pytest.mark.parametrize(
    ("dtype", "shapes", "options", "kernel"),
    [
        (torch.float32, (4, 4), {}, "_scaled_dot_product_efficient_attention.default"),
        (torch.bfloat16, (4, 4), {"is_causal": True}, "_scaled_dot_product_flash_attention.default"),
        (torch.bfloat16, (4, 2), {"enable_gqa": True}, "_scaled_dot_product_flash_attention.default"),
        (torch.bfloat16, (4, 4), {"attn_mask": True}, "_scaled_dot_product_efficient_attention.default"),
        (torch.float32, (4, 2), {"enable_gqa": True}, "_scaled_dot_product_efficient_attention.default"),
        (torch.float32, (4, 1), {}, "_scaled_dot_product_efficient_attention.default"),
        (torch.float64, (4, 4), {}, "_safe_softmax.default"),
    ],
)
def test_attention_is_routed_by_the_rules_of_cuda(
    dtype: torch.dtype, shapes: tuple[int, int], options: dict[str, Any], kernel: str
) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.zeros(2, shapes[0], 32, 16, dtype=dtype))

        def forward(self, k: Tensor) -> Tensor:
            given = {key: torch.ones(32, 32, dtype=torch.bool, device=k.device) if key == "attn_mask" else value
                     for key, value in options.items()}  # fmt: skip
            return nn.functional.scaled_dot_product_attention(self.q, k, k, **given)

    document = json.loads(capture(Attention(), torch.zeros(2, shapes[1], 32, 16, dtype=dtype)))
    assert kernel in names(document, "forward")


def test_a_document_is_the_same_twice() -> None:
    model = Stack()
    assert capture(model, TOKENS) == capture(model, TOKENS)


def test_a_batch_that_the_step_moves_to_the_device() -> None:
    def step(model: nn.Module, optimizer: Any) -> None:
        batch = TOKENS.to("cuda", non_blocking=True)
        weight = torch.ones(16, device=torch.device("cuda:0"))
        (model(batch) * weight).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    document = json.loads(capture_step(step, Stack()))
    assert names(document, "forward")[:2] == ["_to_copy.default", "ones.default"]


def test_compiled_models_run_as_they_are_written() -> None:
    model = Stack()
    plain = capture(model, TOKENS)
    model.layers[0].compile()
    assert json.loads(capture(torch.compile(model), TOKENS))["ops"] == json.loads(plain)["ops"]


def test_inference_mode_inside() -> None:
    class Teacher(Stack):
        def forward(self, tokens: Tensor) -> Tensor:
            with torch.inference_mode():
                counts = torch.ones_like(tokens).sum(-1)
                length = int(counts[0])
            return super().forward(tokens)[:, : length // 2]

    capture(Teacher(), TOKENS)


def test_gradients_that_outlive_the_step() -> None:
    """Zeroed at the start of the next step, they are there when it begins."""

    def first(model: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(TOKENS).mean().backward()
        optimizer.step()

    def last(model: nn.Module, optimizer: Any) -> None:
        model(TOKENS).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    model = Stack()
    early, late = (json.loads(capture_step(step, model)) for step in (first, last))
    gradients = [size for size, category, birth, *_ in early["storages"] if category == "gradient" and birth is None]
    assert sum(gradients) == sum(4 * parameter.numel() for parameter in model.parameters())
    assert early["events"][0] == {"drop": early["storages"].index([16 * WIDTH * 4, "gradient", None])}
    assert [total for _, _, total in timeline(early)] == [total for _, _, total in timeline(late)]


def others(document: dict[str, Any]) -> list[int]:
    return [size for size, category, birth, *_ in document["storages"] if category == "other" and birth is None]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_step_brings_along_counts_once(device: str) -> None:
    batch, target = torch.zeros(64, 8), torch.zeros(64, 1000)

    def step(model: nn.Module, optimizer: Any) -> None:
        (model(batch) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert others(json.loads(capture_step(step, nn.Linear(8, 1000), device=device))) == [4 * 64 * 8, 4 * 64 * 1000]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_averages_of_weights(device: str) -> None:
    model, logged = nn.Linear(64, 64), torch.ones(())
    average = [torch.ones_like(parameter) for parameter in model.parameters()]

    def step(model: nn.Module, optimizer: Any) -> None:
        loss = model(torch.zeros(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        logged.copy_(loss.detach())
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.copy_(parameter.detach())
            mean.lerp_(parameter.detach(), 0.1)

    sizes = others(json.loads(capture_step(step, model, device=device)))
    assert sizes.count(4 * 64 * 64) == sizes.count(4 * 64) == 1
    assert all(torch.equal(mean, torch.ones_like(mean)) for mean in (*average, logged))


@pytest.mark.parametrize("begun", [False, True])
def test_scalers_and_schedulers_of_the_step_are_as_they_were(begun: bool) -> None:
    model, batch = nn.Linear(64, 64), torch.ones(8, 64)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5)

    class Trainer:
        def __init__(self) -> None:
            self.scaler = torch.amp.GradScaler("cpu")

        def step(self, model: nn.Module, optimizer: Any) -> None:
            self.scaler.scale(model(batch).square().mean()).backward()
            self.scaler.step(optimizer)
            self.scaler.update()
            optimizer.zero_grad()
            scheduler.step()

    trainer = Trainer()
    if begun:
        trainer.step(model, own)
    scale, lr, schedule = trainer.scaler.get_scale(), own.param_groups[0]["lr"], scheduler.state_dict()
    capture_step(trainer.step, model, own, device="cpu")
    assert (trainer.scaler.get_scale(), own.param_groups[0]["lr"]) == (scale, lr)
    assert scheduler.state_dict() == schedule
    weight = model.weight.detach().clone()
    trainer.step(model, own)
    assert own.param_groups[0]["lr"] == lr / 2 and not torch.equal(model.weight, weight)
