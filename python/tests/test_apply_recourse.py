"""Where something reads what a plan does not make again, the module runs again in full, and nothing is different but time."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from plans import WIDTH, Layers, Runs, X, check_equal, deciding, edited, results, whole
from rematic._apply.recourse import Recomputation


@contextlib.contextmanager
def told(*modules: str) -> Iterator[list[str]]:
    """What is warned of, which must be of these modules, each once."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(one.message) for one in caught if issubclass(one.category, rematic.RematicWarning)]
    assert [text.split("`")[1] for text in texts] == list(modules), texts


BOTH = ("Layers.layers.1", "Layers.layers.0")


def check(kind: Callable[[], nn.Module], decisions: dict[str, str], reader: str, audit: int = 3) -> None:
    """Trains under a plan that leaves out what is read, for two steps."""
    model = Layers(kind)
    expected = results(model, X, passes=2)
    rematic.apply(model, deciding(whole(model, X), decisions), audit=audit)
    with told(*BOTH) as texts:
        check_equal(results(model, X, passes=2), expected)
    assert all(f"`{reader}`" in text and "more memory and time than the plan says" in text for text in texts), texts


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.tanh(torch.sin(y * 2) + y.exp().mean(-1, keepdim=True))


@pytest.mark.parametrize("audit", [0, 3])
@pytest.mark.parametrize(
    "decisions, reader",
    [
        ({"addmm.default": "skip"}, "aten.mul.Tensor"),
        ({"exp.default": "skip"}, "aten.mean.dim"),
        # What backward needs of an operator that a plan skips, though it must not.
        ({"tanh.default": "skip"}, "autograd"),
        # What is saved is handed back once more, or made again where nothing holds it.
        ({"addmm.default": "save", "mean.dim": "skip"}, "aten.add.Tensor"),
        ({"addmm.default": "save", "sin.default": "save", "exp.default": "save", "add.Tensor": "skip"}, "aten.tanh.default"),
        ({"mul.Tensor": "save", "mean.dim": "save", "add.Tensor": "skip"}, "aten.tanh.default"),
    ],
)
def test_gradients_are_those_of_the_plain_step(decisions: dict[str, str], reader: str, audit: int) -> None:
    check(Chain, decisions, reader, audit)


class Drawing(nn.Module):
    """Draws random numbers before and behind what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.linear(x)).sin()
        z = y.exp()
        return torch.tanh(self.dropout(z) * torch.rand_like(y))


# What is drawn into a mask is drawn in place, so what makes the mask is saved with it.
DRAWN = {"empty_like.default": "save", "bernoulli_.float": "save", "div_.Scalar": "save", "rand_like.default": "save"}


@pytest.mark.parametrize("saved, reader", [({}, "aten.empty_like.default"), (DRAWN, "aten.mul.Tensor")])
def test_the_same_numbers_are_drawn(saved: dict[str, str], reader: str) -> None:
    check(Drawing, {"exp.default": "skip", **saved}, reader)


class Counting(nn.Module):
    """Counts in a buffer, in Python, and in batch norm's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("total", torch.zeros(WIDTH))
        self.calls = 0
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(self.linear(x))
        with torch.no_grad():
            self.total.sub_(y.mean(0))  # type: ignore[operator]
        self.seen.append(self.calls)
        return torch.tanh(y.sin() + y.exp() * self.calls)


def test_what_is_outside_changes_once() -> None:
    decisions = {"sub_.Tensor": "save", "add_.Tensor": "save", "exp.default": "skip"}
    plain, planned = Layers(Counting), Layers(Counting)
    rematic.apply(planned, deciding(whole(planned, X), decisions))
    expected = results(plain, X, passes=3)
    with told(*BOTH):
        check_equal(results(planned, X, passes=3), expected)
    for one, other in zip(plain.layers, planned.layers, strict=True):
        assert (one.calls, one.seen) == (other.calls, other.seen) == (3, [1, 2, 3])


READS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda y: float(y.detach().numpy()[0, 0]),
    "tolist": lambda y: y.tolist()[0][0],
    "data_ptr": lambda y: float(y.data_ptr() > 0),
}


def silent(read: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def tried(y: Tensor) -> Any:
        try:
            return read(y)
        except Exception:
            return 0.0

    return tried


class Looking(nn.Module):
    """Looks at numbers behind PyTorch's back."""

    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        y = x.detach().exp()
        return torch.tanh(self.linear(x) * self.read(y))


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("read", READS)
def test_whoever_reads_is_seen(read: str, is_silent: bool) -> None:
    """Also if it looks away from errors."""
    function = silent(READS[read]) if is_silent else READS[read]
    # As in a step for which no trace shows the read.
    check(lambda: Looking(function), {"exp.default": "skip"}, read)


def test_a_run_of_calls_begins_once_more() -> None:
    model = Layers(Chain)
    expected = results(model, X, passes=2)
    plan = deciding(whole(model, X), {"exp.default": "skip", "addmm.default": "save"})

    def as_one(document: dict[str, Any]) -> None:
        first, second = document["regions"]
        first["policy"] = [{**op, "index": at} for at, op in enumerate(first["policy"] + second["policy"])]
        first["then"] = [{"module": second["module"], "call": 0}]
        document["regions"] = [first]

    rematic.apply(model, edited(plan, as_one))
    with told("Layers.layers.0"):
        check_equal(results(model, X, passes=2), expected)


def test_it_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Layers(Chain)
    rematic.apply(model, deciding(whole(model, X), {"exp.default": "skip"}))
    runs = Runs(monkeypatch, Chain)
    with told(*BOTH):
        results(model, X)
    assert runs.count == 6
    with told():
        results(model, X)
    assert runs.count == 10


class Noisy(nn.Module):
    """Draws numbers that nothing holds when it comes to what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + torch.rand_like(x)
        return torch.tanh(torch.sin(y) + y.exp().mean(-1, keepdim=True))


def test_what_cannot_be_drawn_again_is_refused() -> None:
    model = Layers(Noisy)
    rematic.apply(model, deciding(whole(model, X), {"rand_like.default": "save", "exp.default": "skip"}))
    with pytest.raises(rematic.PlanError, match=r"`aten.mean.dim` reads what the plan does not make again"):
        results(model, X)


def test_without_pytorchs_notes_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Layers(Chain)
    rematic.apply(model, deciding(whole(model, X), {"exp.default": "skip"}))
    monkeypatch.setattr(Recomputation, "under_way", staticmethod(lambda: None))
    with pytest.raises(rematic.PlanError, match=r"`aten.mean.dim` reads what the plan does not make again"):
        results(model, X)


def test_other_errors_are_raised_as_they_are() -> None:
    """What fails for another reason fails in full too."""

    class Failing(Chain):
        def forward(self, x: Tensor) -> Tensor:
            x.detach().cos()
            out = super().forward(x)
            if torch._C._current_graph_task_id() != -1:
                raise ValueError("only when it runs again")
            return out.tanh()

    model = Layers(Failing)
    rematic.apply(model, deciding(whole(model, X), {"cos.default": "skip"}))
    with told(), pytest.raises(ValueError, match="only when it runs again"):
        results(model, X)


def test_memory_goes_when_it_begins_once_more() -> None:
    """Nothing of the first try is held until garbage is collected."""
    model = Layers(Chain)
    rematic.apply(model, deciding(whole(model, X), {"exp.default": "skip"}))
    gc.collect()
    gc.disable()
    try:
        results(model, X)
        assert not any(type(found).__name__ == "Hollow" for found in gc.get_objects())
    finally:
        gc.enable()
