"""What capture says when it cannot."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from rematic import CaptureError, UnknownValue
from rematic._capture.step import document as capture
from rematic._capture.step import document_of_step as capture_step


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Outer(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.inner = Inner()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.inner(x))


def says(error: pytest.ExceptionInfo[Any], *parts: str) -> None:
    for part in parts:
        assert re.search(part, str(error.value)), f"{part!r} is not in: {error.value}"


def test_an_operator_that_fails_on_meta_is_named() -> None:
    library = torch.library.Library("rematic_tests", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x.clone(), "CPU")
    with pytest.raises(CaptureError) as error:
        capture(Outer(lambda x: torch.ops.rematic_tests.opaque(x)), torch.zeros(2, 8))
    says(error, r"module `Outer`", r"rematic_tests\.opaque", r"test_capture_mistakes\.py:\d+", "register_fake")


def test_shapes_that_do_not_fit_name_the_module() -> None:
    with pytest.raises(CaptureError) as error:
        capture(Outer(lambda x: x), torch.zeros(2, 7))
    says(
        error,
        r"module `Outer\.inner\.linear`",
        r"test_capture_mistakes\.py:\d+: return self\.linear\(x\)",
        "2x7 and 8x8|7",
    )


def test_inputs_on_two_devices() -> None:
    class Sum(Outer):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            return self.inner(x) * mask

    with pytest.raises(CaptureError) as error:
        capture(Sum(None), torch.zeros(2, 8), mask=torch.zeros(2, 8, device="meta"))
    says(error, "2 devices", "argument 0 on cpu", "mask on meta", "move them")


def test_nothing_needs_a_gradient() -> None:
    model = Outer(lambda x: x)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(CaptureError, match="needs a gradient.*requires_grad"):
        capture(model, torch.zeros(2, 8))
    with pytest.raises(CaptureError, match="needs no gradient.*requires_grad"):
        capture(model, torch.zeros(2, 8), loss=lambda output: output.sum())
    with pytest.raises(CaptureError, match="needs a gradient"):
        capture(Outer(lambda x: x.detach()), torch.zeros(2, 8))


def test_a_step_without_backward() -> None:
    with pytest.raises(CaptureError, match="no parameter a gradient.*calls backward"):
        capture_step(lambda model, optimizer: model(torch.zeros(2, 8)), Outer(lambda x: x))


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_that_uses_the_model_from_outside(where: str, device: str) -> None:
    with torch.device(where):
        outside, batch = Outer(lambda x: x), torch.ones(2, 8)
    optimizer = torch.optim.SGD(outside.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in outside.parameters()]

    def step(model: nn.Module, _: Any) -> None:
        outside(batch).sum().backward()
        optimizer.step()

    with pytest.raises(CaptureError) as error:
        capture_step(step, outside, optimizer, device=device)
    says(error, "uses the model from outside", r"parameter `inner\.linear\.weight`", "arguments `model, optimizer`")
    assert all(parameter.grad is None for parameter in outside.parameters())
    if where == "cpu":
        assert all(torch.equal(*pair) for pair in zip(outside.parameters(), before, strict=True))


def test_buffers_from_outside_are_read_and_not_written() -> None:
    model = Outer(lambda x: x)
    model.register_buffer("classes", torch.ones(8))
    capture(model, torch.zeros(2, 8), loss=lambda output: (output * model.classes).sum())

    def step(copied: nn.Module, optimizer: Any) -> None:
        copied(torch.zeros(2, 8)).sum().backward()
        model.classes.mul_(2)

    with pytest.raises(CaptureError, match=r"`aten\.mul_\.Tensor` writes its buffer `classes`"):
        capture_step(step, model)
    assert torch.equal(model.classes, torch.ones(8))


def test_a_loss_that_is_no_scalar() -> None:
    with pytest.raises(CaptureError, match=r"one element, but gave \(2, 8\)"):
        capture(Outer(lambda x: x), torch.zeros(2, 8), loss=lambda output: output)


def test_a_value_that_cannot_be_known() -> None:
    def branch(x: Tensor) -> Tensor:
        if x.mean() > 0:
            return x
        return -x

    with torch.device("meta"):
        model = Outer(branch)
    with pytest.raises(UnknownValue) as error:
        capture(model, torch.zeros(2, 8))
    says(error, r"bool tensor of shape \(\)", r"module `Outer`", r"test_capture_mistakes\.py:\d+: if x\.mean\(\) > 0")


def test_values_of_real_inputs_are_known() -> None:
    class Lengths(Outer):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
            rows = [self.inner(x)[row, :length].sum() for row, length in enumerate(lengths.tolist())]
            picked = x[lengths > 4]
            return sum(rows) + picked.sum() * int(lengths.max())  # type: ignore[return-value]

    capture(Lengths(None), torch.zeros(2, 8), torch.tensor([3, 5]))
    with pytest.raises(UnknownValue, match="an input on the meta device, which has no values.*\n.*\n.*\nGive the inputs as real tensors on the CPU"):
        capture(Lengths(None), torch.zeros(2, 8, device="meta"), torch.zeros(2, dtype=torch.long, device="meta"))


def test_an_unknown_device() -> None:
    with pytest.raises(rematic.RematicError, match="no device `tpu`; give cuda, cpu, or one of .*: v100, a100-40"):
        capture(Outer(lambda x: x), torch.zeros(2, 8), device="tpu")


def test_an_optimizer_of_another_model() -> None:
    other = torch.optim.Adam(nn.Linear(3, 5).parameters())
    with pytest.raises(CaptureError, match=r"2 parameters that are not the model's \(shapes \(5, 3\), \(5,\)\)"):
        capture(Outer(lambda x: x), torch.zeros(2, 8), optimizer=other)


@pytest.mark.parametrize("choice", ["sgd", True, [torch.optim.SGD], 0])
def test_what_is_no_optimizer(choice: Any) -> None:
    with pytest.raises(CaptureError) as error:
        capture(Outer(lambda x: x), torch.zeros(2, 8), optimizer=choice)
    says(error, re.escape(f"`optimizer` cannot be {choice!r}"), "an optimizer of this model, a function", "False")


def test_a_function_that_makes_another_optimizer() -> None:
    model = Outer(lambda x: x)
    with pytest.raises(CaptureError, match="must make one, but made a NoneType"):
        capture(model, torch.zeros(2, 8), optimizer=lambda parameters: None)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(CaptureError, match="2 parameters that it was not given; use its argument"):
        capture(model, torch.zeros(2, 8), optimizer=lambda parameters: torch.optim.Adam(model.parameters()))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_follows_a_plan() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.GELU()) for _ in range(6)))
    batch = torch.zeros(512, 64)
    trace = rematic.capture(model, batch, device="cpu")
    rematic.apply(model, rematic.plan(trace, int(0.8 * trace.peak())))
    with pytest.raises(rematic.PlanError, match=r"already applied to .*; call rematic\.remove\(model\) first"):
        rematic.capture(model, batch, device="cpu")
    with pytest.raises(rematic.PlanError, match="already applied"):
        rematic.capture_step(lambda model, optimizer: model(batch).sum().backward(), torch.compile(model))
    rematic.remove(model)
    assert rematic.capture(model, batch, device="cpu").peak() == trace.peak()


def test_what_is_no_model() -> None:
    batch = torch.zeros(2, 8)
    with pytest.raises(TypeError, match=r"the class Outer; make a model of it: Outer\(\.\.\.\)"):
        capture(Outer, batch)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, but is of type function; give the module"):
        capture(lambda x: x, batch)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="type function; capture_step takes the step's function, then the model"):
        capture_step(Outer(None), lambda model, optimizer: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`fn` must be a function of `model, optimizer`, but is of type NoneType"):
        capture_step(None, Outer(None))  # type: ignore[arg-type]


def test_a_loss_by_name() -> None:
    with pytest.raises(CaptureError, match="`loss` must be a function from the model's output.*'mse'.*mse_loss"):
        capture(Outer(lambda x: x), torch.zeros(2, 8), loss="mse")  # type: ignore[arg-type]


def test_a_missing_argument() -> None:
    with pytest.raises(CaptureError) as error:
        capture(Outer(lambda x: x))
    says(error, "missing 1 required positional argument: 'x'", "Check that the model runs with these inputs")
    assert "register_fake" not in str(error.value)


def test_without_gradients() -> None:
    def step(model: nn.Module, optimizer: Any) -> None:
        model(torch.zeros(2, 8)).sum().backward()

    for off in (torch.no_grad, torch.inference_mode):
        with off():
            with pytest.raises(CaptureError, match="Gradients are off here.*outside of it"):
                capture(Outer(lambda x: x), torch.zeros(2, 8))
            with pytest.raises(CaptureError, match="Gradients are off.*capture outside of it"):
                capture_step(step, Outer(lambda x: x))


def test_a_model_that_cannot_be_copied() -> None:
    model = Outer(lambda x: x)
    model.generator = (number for number in range(3))  # type: ignore[assignment]
    with pytest.raises(CaptureError, match="structure of Outer cannot be copied.*generator"):
        capture(model, torch.zeros(2, 8))


def test_a_failure_leaves_nothing_behind() -> None:
    before = nn.Module.__call__
    with pytest.raises(CaptureError):
        capture(Outer(lambda x: x), torch.zeros(2, 7))
    assert nn.Module.__call__ is before
    assert nn.functional.dropout(torch.ones(8, device="meta"), 0.5).device.type == "meta"
    capture(Outer(lambda x: x), torch.zeros(2, 8))


class Changed(Outer):
    """Torch refuses its backward."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x + self.inner(x))
        z = self.inner(y)
        self.change(y)
        return z + y


@pytest.mark.parametrize("change", [lambda y: y.mul_(2), lambda y: y[0].zero_(), lambda y: y.t().detach().add_(1)])
def test_what_backward_needs_is_changed_in_place(change: Any) -> None:
    model = Changed(change)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(torch.zeros(2, 8)).sum().backward()
    with pytest.raises(CaptureError) as error:
        capture(model, torch.zeros(2, 8))
    says(
        error,
        r"float32 tensor of shape \(2, 8\)",
        r"when `(addmm|mul|sigmoid|t)\S*` in module `Changed\.?\S*` saved it",
        r"in module `Changed` has written it since",
        r"test_capture_mistakes\.py:\d+: ",
    )


def test_changes_that_torch_allows() -> None:
    model = Changed(lambda y: y.data.mul_(2))
    model(torch.zeros(2, 8)).sum().backward()
    capture(model, torch.zeros(2, 8))


def test_the_hint_fits_the_cause() -> None:
    def fails(output: Tensor) -> Tensor:
        raise ValueError("no")

    with pytest.raises(CaptureError, match="The model has run; check the loss"):
        capture(Outer(lambda x: x), torch.zeros(2, 8), loss=fails)

    class Unwritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

    with pytest.raises(CaptureError) as error:
        capture(Unwritten(), torch.zeros(2, 8))
    says(error, "forward")
    assert "meta kernel" not in str(error.value)


def test_sparse_gradients() -> None:
    with pytest.raises(CaptureError, match="sparse=False"):
        capture(nn.Embedding(10, 4, sparse=True), torch.zeros(3, dtype=torch.long))


def test_an_optimizer_that_cannot_begin() -> None:
    with pytest.raises(CaptureError, match=r"SparseAdam cannot take its first step.*dense gradients"):
        capture(Outer(lambda x: x), torch.zeros(2, 8), optimizer=torch.optim.SparseAdam)
