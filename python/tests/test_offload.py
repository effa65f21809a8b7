"""Plans that move outputs to the host and back, followed by real training on the CPU: peaks, bytes and numbers."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
import rematic
from models import DECODER, causal
from reality import Training, check_peak, loss_of, sgd
from rematic._apply.host import Away, Host
from rematic._capture.step import document as capture

# Deep enough that the copies of a layer are hidden behind the next ones.
DEEP = {**DECODER, "num_hidden_layers": 6}
MODELS = {
    "llama": causal("llama", **DEEP),
    "gpt2": causal("gpt2", vocab_size=512, n_positions=128, n_embd=64, n_layer=6, n_head=4),
}
# Small tensors, so that launching kernels takes most of the time: a link that is fast enough to move them meanwhile.
FAST = 2000.0


class Case(Training):
    """A deep model with its step."""

    def __init__(self, name: str) -> None:
        with mock.patch.dict(models.MODELS, {name: MODELS[name]}):
            super().__init__(name)
        self.trace = rematic.Trace.from_bytes(
            capture(self.model, *self.args, loss=loss_of, optimizer=sgd, device="cpu", **self.kwargs)
        )
        self.kernels = {op.name.split(".")[0] for op in self.trace.ops}

    def plan(self, share: float, **options: Any) -> rematic.Plan:
        options = {"host_memory": "1GiB", "host_bandwidth": FAST, **options}
        return rematic.plan(self.trace, int(share * self.trace.peak()), **options)


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture(scope="module")
def llama() -> Case:
    return Case("llama")


class Copies(TorchDispatchMode):
    """Counts the bytes that are copied into memory that is not PyTorch's own, and out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = self.back = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            to, source = args[:2]
            self.out += to.nbytes * (not to.untyped_storage().resizable())
            self.back += to.nbytes * (not source.untyped_storage().resizable())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def applied(llama: Case) -> Iterator[tuple[rematic.Plan, Host]]:
    plan = llama.plan(0.6)
    rematic.apply(llama.model, plan)
    yield plan, host_of(llama.model)
    rematic.remove(llama.model)


def host_of(model: nn.Module) -> Host:
    return model.__dict__["forward"].root.movements.host


def test_peaks_bytes_and_numbers(case: Case) -> None:
    expected = case.train()
    moved = 0
    for share in (0.6, 0.45):
        plan, without = case.plan(share), case.plan(share, host_memory=None, host_bandwidth=None)
        assert plan.recompute_ms + plan.stall_ms <= without.recompute_ms and without.offload_bytes == 0
        if not plan.offload_bytes:
            continue
        moved += 1
        rematic.apply(case.model, plan)
        try:
            host = host_of(case.model)
            check_peak(case.name, plan.peak, case.peak())
            # Two steps ran.
            assert host.sent == host.received == 2 * plan.offload_bytes
            assert host.taken == plan.host_bytes
            found = case.train()
            assert host.sent == host.received == 5 * plan.offload_bytes
            assert host.taken == plan.host_bytes
        finally:
            rematic.remove(case.model)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), share
    assert moved


def test_copies_are_what_the_plan_says(llama: Case, applied: tuple[rematic.Plan, Host]) -> None:
    plan, _ = applied
    assert plan.offload_bytes == sum(region.offload_bytes for region in plan.regions) > 0
    with Copies() as copies:
        llama.step(llama.optimizer())
    assert copies.out == copies.back == plan.offload_bytes


def test_a_saved_plan_says_the_same(llama: Case, tmp_path: Any) -> None:
    plan = llama.plan(0.6)
    plan.save(tmp_path / "plan.json")
    assert rematic.Plan.load(tmp_path / "plan.json") == plan
    replay = rematic.replay(llama.trace, plan)
    assert replay.peak == plan.peak
    assert "to the host and back at 2000.0 GB/s" in str(plan)
    region = next(region for region in plan.regions if region.offloaded)
    names = [name for name, _ in region.policy]
    assert all(region.policy[at][1] for at in region.offloaded) and names


def test_forwards_without_backward_hold_nothing(llama: Case, applied: tuple[rematic.Plan, Host]) -> None:
    plan, host = applied
    for _ in range(2):
        llama.output = llama.model(*llama.args, **llama.kwargs)
    llama.output = None
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item) is Away]
    llama.step(llama.optimizer())
    assert host.taken <= 2 * plan.host_bytes


def test_two_forwards_before_their_backwards(llama: Case, applied: tuple[rematic.Plan, Host]) -> None:
    def gradients() -> list[Tensor]:
        llama.restore()
        torch.manual_seed(3)
        losses = [loss_of(llama.model(*llama.args, **llama.kwargs)) for _ in range(2)]
        (losses[0] + losses[1]).backward()
        found = [parameter.grad.clone() for parameter in llama.model.parameters()]
        llama.model.zero_grad()
        return found

    found = gradients()
    rematic.remove(llama.model)
    assert all(torch.equal(*pair) for pair in zip(found, gradients(), strict=True))
    rematic.apply(llama.model, applied[0])


def test_models_with_such_a_plan_are_copied_and_pickled(llama: Case, applied: tuple[rematic.Plan, Host]) -> None:
    llama.step(llama.optimizer())
    for other in (copy.deepcopy(llama.model), pickle.loads(pickle.dumps(llama.model))):
        host = host_of(other)
        assert (host.sent, host.taken) == (0, 0)
        loss_of(other(*llama.args, **llama.kwargs)).backward()
        assert host.sent == host.received == applied[0].offload_bytes


def test_what_is_changed_before_it_has_left_is_an_error(llama: Case, applied: tuple[rematic.Plan, Host]) -> None:
    movements = llama.model.__dict__["forward"].root.movements
    ended = movements.ended

    def changing(number: int, run: Any) -> None:
        ended(number, run)
        if run.sent and not run.is_away:
            with torch.no_grad():
                run.tensors(next(iter(run.sent)))[0].add_(1)

    with mock.patch.object(movements, "ended", changing), pytest.raises(rematic.PlanError, match="changed in place"):
        llama.step(llama.optimizer())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def test_a_model_of_a_few_layers_moves_too() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(32, 128)), torch.randn(256, 32)
    trace = rematic.capture(model, x, loss=loss_of, device="cpu", optimizer=sgd)
    plan = rematic.plan(trace, int(0.8 * trace.peak()), host_memory="1GiB", host_bandwidth=FAST)
    assert plan.offload_bytes > 0

    def gradients() -> list[Tensor]:
        model.zero_grad()
        loss_of(model(x)).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    rematic.apply(model, plan)
    assert all(torch.equal(*pair) for pair in zip(gradients(), expected, strict=True))
    assert host_of(model).sent == plan.offload_bytes


def test_bad_options(llama: Case) -> None:
    budget = int(0.6 * llama.trace.peak())
    for options, words in [
        ({"host_memory": 0}, "host_memory is 0: nothing can be moved there"),
        ({"host_memory": "lots"}, "is not a size"),
        ({"host_memory": "1GiB", "planner": "greedy"}, "host_memory is for the planner exact, and greedy moves nothing"),
        ({"host_memory": "1GiB", "host_bandwidth": "nvlink4"}, "host_bandwidth: `nvlink4` is none; give pcie3"),
        ({"host_memory": "1GiB", "host_bandwidth": -1.0}, "host_bandwidth: `-1` is none"),
    ]:
        with pytest.raises(rematic.RematicError, match=words):
            rematic.plan(llama.trace, budget, **options)
    with pytest.raises(rematic.RematicError, match="for one step, and there are 2 variants"):
        rematic.plan([llama.trace, llama.trace], budget, host_memory="1GiB")
    with pytest.raises(rematic.RematicError, match="which the emitted Python cannot; train with rematic.apply"):
        llama.plan(0.6).to_python()


def test_a_compiled_model_refuses_it(llama: Case, applied: tuple[rematic.Plan, Host]) -> None:
    compiled = torch.compile(llama.model, backend="eager")
    with pytest.raises(Exception, match="which a compiled model cannot; plan without host_memory"):
        compiled(*llama.args, **llama.kwargs)


def test_auto_takes_what_plan_takes() -> None:
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12)]
    x = torch.randn(512, 64)
    settings: dict[str, Any] = {"device": "cpu", "loss": loss_of, "optimizer": sgd}
    # Of modules without children only runs can be checkpointed.
    flat = nn.Sequential(*(module for block in blocks for module in block))
    budget = int(0.7 * rematic.capture(flat, x, **settings).peak())
    assert '"then"' in rematic.auto(flat, x, budget=budget, **settings).to_json()
    rematic.remove(flat)
    with pytest.raises(rematic.Infeasible):
        rematic.auto(flat, x, budget=budget, runs=False, **settings)
    model = nn.Sequential(*blocks)
    trace = rematic.capture(model, x, **settings)
    plan = rematic.auto(model, x, budget=int(0.8 * trace.peak()), host_memory="1GiB", host_bandwidth=FAST, **settings)
    assert '"offload"' in plan.to_json()
    rematic.remove(model)
    with pytest.raises(rematic.RematicError, match="is not a size"):
        rematic.auto(model, x, budget=budget, host_memory="lots", **settings)
