"""What weights decide is what one real run of the step decides, and nothing is different after it."""

from __future__ import annotations

import contextlib
import copy
import json
import pathlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rematic
from rematic import CaptureError, RematicWarning, UnknownValue
from rematic._capture.step import document as capture
from rematic._capture.step import document_of_step as capture_step
from rematic._capture.values import SEEN

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
DEVICES = ["cuda", "cpu"]


class Reads(nn.Module):
    """A layer whose output is looked at."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.read = read
        self.register_buffer("calls", torch.zeros(()))
        self.kept: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.inner(x)
        self.kept.append(tuple(y.shape))
        return self.read(y)


def by_nonzero(y: Tensor) -> Tensor:
    rows, columns = torch.where(y > 0.2)
    return y[rows, columns]


def by_mask(y: Tensor) -> Tensor:
    return y[y > 0.2] * 2


def by_masked_select(y: Tensor) -> Tensor:
    return y.masked_select(y > 0.2)


def by_unique(y: Tensor) -> Tensor:
    found, counts = torch.unique(y.round(), return_counts=True)
    return y.sum() * torch.ones(len(found), device=y.device) * counts


def by_loop(y: Tensor) -> Tensor:
    while y.abs().max() > 0.1:
        y = y * 0.7
    return y


def by_list(y: Tensor) -> Tensor:
    first, *_ = y.detach().argmax(1).tolist()
    return y[: first + 1]


def by_numbers(y: Tensor) -> Tensor:
    sizes = torch.tensor([y[0].argmax(), y[1].argmax()], device=y.device)
    return y.repeat_interleave(sizes.clamp(min=1).repeat(3), 0)


def by_assignment(y: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(y.detach().cpu())
    return y[rows, columns][: int(columns[0]) + 1]


def by_one_hot(y: Tensor) -> Tensor:
    return F.one_hot((y * 4).long().abs()).float() * y[..., None]


def by_assigned_mask(y: Tensor) -> Tensor:
    mask = y > 0.2
    out = torch.zeros_like(y)
    out[mask] = y[mask] * 2
    return out


def by_random(y: Tensor) -> Tensor:
    return y[torch.rand(6, device=y.device) > 0.5]


def by_checkpoint(y: Tensor) -> Tensor:
    return checkpoint(by_mask, y, use_reentrant=False)


def by_few_that_choose(y: Tensor) -> Tensor:
    return y.roll(int(y.detach().mean(0).topk(2).indices[1]) + 1, 1) if y.mean(0).argmax() else y


READS = {
    read.__name__: read
    for read in (
        by_nonzero, by_mask, by_masked_select, by_unique, by_loop, by_list, by_numbers, by_assignment, by_one_hot,
        by_assigned_mask, by_random, by_checkpoint, by_few_that_choose,
    )
}  # fmt: skip


def captured(model: nn.Module, device: str, *args: Any, **options: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RematicWarning)
        return json.loads(capture(model, *(args or (X,)), device=device, **options))


def operators(document: dict[str, Any]) -> list[tuple[str, list[list[int]]]]:
    """The forward's operators, with the shapes of what they make."""
    return [
        (document["names"][op["name"]], [document["layouts"][layout][1] for _, layout in op.get("outputs", [])])
        for op in document["ops"]
        if op["phase"] == "forward"
    ]


class Ran(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, list[list[int]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [list(item.shape) for item in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(item, Tensor)]
        self.operators.append((str(func).removeprefix("aten."), made))
        return out


@pytest.mark.parametrize("name", READS)
def test_the_operators_and_shapes_are_those_of_a_real_run(name: str) -> None:
    model = Reads(READS[name])
    torch.manual_seed(1)
    document = captured(model, "cpu")
    torch.manual_seed(1)
    with Ran() as ran:
        model(X).sum()
    # The gradient of the loss is made before its backward begins.
    assert operators(document)[:-1] == ran.operators
    assert SEEN in document["origin"]["assumptions"]


@pytest.mark.parametrize("name", READS)
def test_a_gpu_sees_the_same(name: str) -> None:
    model = Reads(READS[name])
    torch.manual_seed(1)
    on_cpu, on_cuda = captured(model, "cpu"), captured(model, "cuda")
    assert operators(on_cpu)[-2][1] == operators(on_cuda)[-2][1]
    assert SEEN in on_cuda["origin"]["assumptions"]


def test_boxes_that_overlap() -> None:
    ops = pytest.importorskip("torchvision.ops")

    def read(y: Tensor) -> Tensor:
        corners = y[:, :2]
        boxes = torch.cat([corners, corners + 1 + y[:, 2:4].abs()], 1)
        return y[ops.nms(boxes, y[:, 4], 0.3)]

    for device in DEVICES:
        model = Reads(read)
        torch.manual_seed(1)
        shapes = [made for op, made in operators(captured(model, device)) if op == "torchvision.nms.default"]
        torch.manual_seed(1)
        assert shapes == [[[len(model(X))]]]


# ---- nothing is different afterwards ----


def state_of(model: Reads) -> list[Any]:
    return [
        *(tensor.clone() for tensor in (*model.parameters(), *model.buffers())),
        torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64)), random.getstate(), list(model.kept),
        torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), [parameter.grad for parameter in model.parameters()],
    ]  # fmt: skip


def are_equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def draws(y: Tensor) -> Tensor:
    random.random()
    np.random.rand()
    return by_nonzero(y)


class Writes(Reads):
    """Changes its own weights, as weights that are clamped or normalized in forward are."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.inner[0].weight.mul_(0.5)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Reads, Writes])
@pytest.mark.parametrize("read", [draws, by_checkpoint])
def test_everything_is_as_it_was(kind: type[Reads], read: Callable[[Tensor], Tensor]) -> None:
    model, x = kind(read), X.clone()
    before = state_of(model)
    assert SEEN in captured(model, "cpu", x)["origin"]["assumptions"]
    assert all(map(are_equal, before, state_of(model))) and torch.equal(x, X)


def test_objects_that_the_models_code_reaches_are_as_they_were() -> None:
    steps: list[int] = []
    counts = {"runs": 0}

    def read(y: Tensor) -> Tensor:
        if y.device.type == "cpu":
            counts["runs"] += 1
            steps.append(counts["runs"])
        return by_mask(y)

    captured(Reads(read), "cuda")
    assert (steps, counts) == ([], {"runs": 0})


def test_nothing_runs_if_nothing_is_needed(tmp_path: pathlib.Path) -> None:
    """Files are not put back."""
    runs = tmp_path / "runs"

    def read(y: Tensor) -> Tensor:
        with runs.open("a") as file:
            file.write(f"{y.device.type} ")
        return y * 2 if X.sum() > 0 else by_mask(y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = json.loads(capture(Reads(read), X))
    assert set(runs.read_text().split()) == {"meta"}
    assert SEEN not in document["origin"]["assumptions"]


def test_it_is_warned_of_once_with_the_line() -> None:
    with pytest.warns(RematicWarning, match="depend on weights") as caught:
        capture(Reads(by_mask), X)
    assert len(caught) == 1 and "return y[y > 0.2] * 2" in str(caught[0].message)
    assert "the peaks are those of this step" in str(caught[0].message)


def test_a_step_of_ones_own() -> None:
    critic = nn.Linear(8, 1)
    before = copy.deepcopy(critic.state_dict())
    model = Reads(by_mask)
    weights = [parameter.clone() for parameter in model.parameters()]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(2):
            model(X).sum().backward()
            critic(X).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.warns(RematicWarning):
        document = json.loads(capture_step(step, model, torch.optim.AdamW(model.parameters())))
    assert sum(name == "index.Tensor" for name, _ in operators(document)) == 2
    assert all(map(torch.equal, weights, model.parameters()))
    assert all(torch.equal(value, before[key]) for key, value in critic.state_dict().items())
    assert all(parameter.grad is None for parameter in (*model.parameters(), *critic.parameters()))


# ---- what is refused ----


def test_weights_or_inputs_on_meta() -> None:
    with torch.device("meta"):
        model = Reads(by_mask)
    with pytest.raises(UnknownValue, match="Give the model with real weights on the CPU"):
        capture(model, X)
    with pytest.raises(UnknownValue, match="Give the inputs as real tensors on the CPU"):
        capture(Reads(by_mask), X.to("meta"))


def test_a_run_that_fails() -> None:
    def read(y: Tensor) -> Tensor:
        if y.device.type == "cpu":
            raise RuntimeError("not on the CPU")
        return by_mask(y)

    with pytest.raises(UnknownValue, match="One real run of the step would tell, but fails: RuntimeError: not on the CPU"):
        capture(Reads(read), X)


def test_runs_that_part() -> None:
    def more(y: Tensor) -> Tensor:
        return by_mask(y[y > 0] if y.device.type == "cpu" else y)

    with pytest.raises(UnknownValue, match=r"reads 2 values, and the captured one 1 of them; the next is `aten.index.Tensor`"):
        capture(Reads(more), X)

    def other(y: Tensor) -> Tensor:
        return y[torch.where(y > 0)] if y.device.type == "cpu" else by_mask(y)

    with pytest.raises(UnknownValue, match=r"reads `aten.nonzero.default` of shape \(6, 8\) where the captured one reads"):
        capture(Reads(other), X)

    def drawn(y: Tensor) -> Tensor:
        # The CPU's generator has drawn the dropout by now, and the captured run's has not.
        number = torch.randint(1 << 40, ())
        return by_mask(y) * int(number)

    with pytest.raises(UnknownValue, match="reads `aten._local_scalar_dense.default` of shape .* and the captured one as"):
        capture(Reads(drawn), X)


def test_other_processes_are_not_waited_for() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:

        def read(y: Tensor) -> Tensor:
            with torch.no_grad():
                dist.all_reduce(y.clone())
            return by_mask(y)

        with pytest.raises(CaptureError, match="waits for other processes"):
            capture(Reads(read), X)
    finally:
        dist.destroy_process_group()


# ---- mixtures of experts ----


class Mixture(nn.Module):
    """Many tokens choose among few experts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out


def test_experts_are_chosen_evenly_all_the_same() -> None:
    tokens = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    document = captured(Mixture(), "cpu", tokens)
    assert "routing assumed balanced" in document["origin"]["assumptions"]
    assert SEEN not in document["origin"]["assumptions"]
    assert [made for name, made in operators(document) if name == "addmm.default"][1:] == [[[8, 8]]] * 4


# ---- plans ----


class Picks(nn.Module):
    """What is picked takes memory, and how much depends on weights; with `loops`, how often it is halved does too."""

    def __init__(self, loops: bool) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(8, 64), nn.Linear(64, 8)
        self.loops = loops

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.where(x.mean(1) > 0)[0]
        y = self.widen(x[rows]).relu().sigmoid().tanh()
        while self.loops and y.sum() > 64:
            y = y * 0.5
        return x.index_add(0, rows, self.narrow(y))


def picks(loops: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *(Picks(loops) for _ in range(3)))


def trained(model: nn.Module, x: Tensor, rate: float) -> tuple[list[Tensor], list[int]]:
    """The weights after four steps, and how many rows the first layer picks in each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    counts = []
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        counts.append(int((model[0](x).mean(1) > 0).sum()))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()], counts


@pytest.mark.parametrize("loops", [False, True])
def test_a_plan_for_such_a_step_trains_as_the_plain_model(loops: bool) -> None:
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    with pytest.warns(RematicWarning):
        trace = rematic.capture(picks(loops), x, loss=lambda out: out.square().sum(), device="cpu")
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1)
    assert infeasible.value.least_budget < 0.9 * trace.peak()
    plan = rematic.plan(trace, infeasible.value.least_budget)
    for rate in (0.0, 1e-3):
        planned = picks(loops)
        rematic.apply(planned, plan)
        plain, counts = trained(picks(loops), x, rate)
        assert (len(set(counts)) > 1) == (rate > 0)
        assert all(map(torch.equal, plain, trained(planned, x, rate)[0]))


TOTAL = torch.zeros(())


class Counting(nn.Module):
    """Weights decide how much there is; and each forward is counted outside of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out = self.gate(x)
        TOTAL.add_(1)
        return out[out > 0].square().mean()


def test_a_run_that_would_change_a_tensor_outside_of_the_model_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(UnknownValue, match="changes a tensor that lies outside of the model"):
        capture(Counting(), torch.randn(4, 8), device="cpu", optimizer=False)


def test_what_a_whole_run_does_not_tell_is_refused() -> None:
    """An optimizer that evaluates the model by itself: what it reads there is not counted."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            out = model(x)
            loss = out[out > 0].square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    weights = model.weight.detach().clone()
    with contextlib.suppress(rematic.CaptureError), warnings.catch_warnings():
        warnings.simplefilter("ignore", rematic.RematicWarning)
        rematic.capture_step(step, model, optimizer, device="cpu")
    assert torch.equal(model.weight, weights)
