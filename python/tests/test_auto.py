"""Capture, plan and apply in one line."""

from __future__ import annotations

import warnings

import pytest
import torch

import rematic
from models import Layer
from plans import Runs, Stack, X, check_equal, results


def test_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    expected = results(model, X)
    plan = rematic.auto(model, X, budget="1GiB")
    assert plan.outcome == "fits" and plan.regions == [] and plan.device == "h100"
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


def test_auto_for_several_devices() -> None:
    model = Stack()
    one, four = (rematic.auto(model, X, budget="1GiB", world_size=count) for count in (1, 4))
    assert (one.world_size, four.world_size) == (1, 4)
    assert four.baseline_peak < one.baseline_peak


def test_auto_on_cuda_plans_for_the_real_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name = "NVIDIA A100-SXM4-40GB"
        total_memory = 42_298_834_944

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    with warnings.catch_warnings():
        # The driver reports more than the data sheet's 40 GB.
        warnings.simplefilter("error")
        plan = rematic.auto(Stack(), X, optimizer=False)
    assert plan.device == "a100-40" and plan.memory is not None
    assert plan.memory["usable_bytes"] == Properties.total_memory and plan.memory["fits"]
    # A step that fits may take what the CUDA context leaves.
    assert plan.budget == Properties.total_memory - plan.memory["context_bytes"]
    with pytest.warns(rematic.RematicWarning, match="larger than the memory of NVIDIA A100 SXM4 40GB"):
        rematic.auto(Stack(), X, optimizer=False, budget="50GiB")
    Properties.name = "NVIDIA Unheard Of"
    with pytest.raises(rematic.PlanError, match="This machine's NVIDIA Unheard Of is not among the known devices"):
        rematic.auto(Stack(), X)


def test_a_model_in_evaluation_mode() -> None:
    model = Stack().eval()
    with pytest.raises(rematic.CaptureError, match=r"Stack is in evaluation mode.*call model\.train\(\) before rematic.auto"):
        rematic.auto(model, X, budget="1GiB", device="cpu")
    assert rematic.auto(model, X, budget="1GiB", device="cpu", eval_mode=True).outcome == "fits"
    with pytest.warns(rematic.RematicWarning, match="in evaluation mode") as caught:
        rematic.capture(model, X, device="cpu")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rematic.capture(model, X, device="cpu", eval_mode=True)
        # The step's function has the last word, and parts may evaluate.
        rematic.capture_step(lambda copied, _: copied.train()(X).sum().backward(), model, device="cpu")
        model.train()
        next(model.children()).eval()
        rematic.capture(model, X, device="cpu")


def test_warnings_point_at_the_users_line() -> None:
    model = Stack()
    with pytest.warns(rematic.RematicWarning, match="larger than the memory") as caught:
        rematic.auto(model, X, budget="100GiB", device="a100-80", optimizer=False)
    assert caught[0].filename == __file__
    with pytest.warns(rematic.RematicWarning, match="in evaluation mode") as caught:
        rematic.capture_step(lambda copied, _: copied(X).sum().backward(), model.eval())
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("device", "kind"),
    [("cuda", "cuda"), ("cuda:0", "cuda"), (torch.device("cuda", 1), "cuda"), (torch.device("cpu"), "cpu"), ("cpu", "cpu"),
     ("h100", "cuda"), ("H100 PCIe", "cuda")],
)  # fmt: skip
def test_one_vocabulary_of_devices(device: object, kind: str, tmp_path: object) -> None:
    trace = rematic.capture(Stack(), X, device=device)
    assert trace.facts["device"] == kind
    plan = rematic.plan(trace, "1GiB", device=device)
    assert plan.device == ({"H100 PCIe": "h100-pcie"}.get(device, "h100") if isinstance(device, str) else "h100")
    assert rematic.replay(trace, plan, device=device).peak == plan.peak
    assert len(rematic.curve(trace, 2, device=device)) > 0
    assert trace.stats(device=device)
    assert rematic.auto(Stack(), X, budget="1GiB", device=device).device == plan.device


def test_devices_that_are_refused() -> None:
    trace = rematic.capture(Stack(), X)
    for call in (rematic.plan, rematic.curve):
        with pytest.raises(rematic.RematicError, match="no device `tpu`.*v100, a100-40.*cuda and cpu are understood"):
            call(trace, device="tpu")
        with pytest.raises(TypeError, match="not int"):
            call(trace, device=0)
    with pytest.raises(rematic.PlanError, match="How much memory the CPU may use is not known"):
        rematic.plan(trace, device=torch.device("cpu"))
    with pytest.raises(rematic.RematicError, match="no device `tpu`"):
        rematic.auto(Stack(), X, device="tpu")
    with pytest.raises(rematic.RematicError, match="no device `mps`"):
        rematic.benchmark(trace, "mps")


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
    from rematic._device import device_of

    assert device_of(product, memory) == name
