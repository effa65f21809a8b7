"""Modules that make a table when they first need one, and keep it: plans are for the steps that find it."""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic

WIDTH = 48


def angles(length: int, device: Any) -> Tensor:
    places = torch.arange(length, device=device).float()[:, None]
    return torch.cos(places * torch.arange(WIDTH, device=device).float() / WIDTH)


@functools.lru_cache(None)
def remembered(length: int, device: Any) -> Tensor:
    return angles(length, device)


@functools.lru_cache(2)
def lately(length: int, device: Any) -> Tensor:
    return angles(length, device)


TABLES: dict[int, Tensor] = {}


class Layer(nn.Module):
    """Mixes, with dropout before and after the table is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.after = nn.Linear(WIDTH, WIDTH)

    def table(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(torch.tanh(self.before(x)))
        return x + self.dropout(torch.tanh(self.after(hidden * self.table(x))))


class Attribute(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def table(self, x: Tensor) -> Tensor:
        if self.kept is None or len(self.kept) < x.shape[1]:
            self.kept = angles(x.shape[1], x.device)
        return self.kept[: x.shape[1]]


class Buffer(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", None, persistent=False)

    def table(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = angles(x.shape[1], x.device)
        return self.kept


class Items(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Tensor] = {}

    def table(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.kept:
            self.kept[x.shape[1]] = angles(x.shape[1], x.device)
        return self.kept[x.shape[1]]


class Remembered(Layer):
    def table(self, x: Tensor) -> Tensor:
        return remembered(x.shape[1], x.device)


class Lately(Layer):
    def table(self, x: Tensor) -> Tensor:
        return lately(x.shape[1], x.device)


class Global(Layer):
    def table(self, x: Tensor) -> Tensor:
        if x.shape[1] not in TABLES:
            TABLES[x.shape[1]] = angles(x.shape[1], x.device)
        return TABLES[x.shape[1]]


class Written(Attribute):
    """Fills its table in place, with operators that the layer itself runs too."""

    def table(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.zeros(x.shape[1], WIDTH, device=x.device)
            self.kept[:, ::2] = torch.tanh(angles(x.shape[1], x.device)[:, ::2])
            self.kept += 1
            self.kept.mul_(0.5)
        return self.kept


class First(Attribute):
    """Looks at its table before all else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.table(x))


KINDS = [Attribute, Buffer, Items, Remembered, Lately, Global, Written, First]


def clear() -> None:
    remembered.cache_clear()
    lately.cache_clear()
    TABLES.clear()


def built(kind: Callable[[], nn.Module]) -> nn.Module:
    clear()
    torch.manual_seed(0)
    return nn.Sequential(*(kind() for _ in range(4)))


def steps(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    found = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters()), torch.rand(1)]
        optimizer.zero_grad()
    return found


def planned(model: nn.Module, batch: Tensor, **options: Any) -> rematic.Plan:
    trace = rematic.capture(model, batch, loss=lambda output: output.square().mean(), optimizer=False, device="cpu")
    try:
        return rematic.plan(trace, 1, **options)
    except rematic.Infeasible as infeasible:
        return rematic.plan(trace, infeasible.least_budget, **options)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_equal_to_the_bit(kind: Callable[[], nn.Module], whole: bool) -> None:
    batches = [torch.randn(3, 16, WIDTH) for _ in range(3)]
    expected = steps(built(kind), batches)
    model = built(kind)
    plan = planned(model, batches[0], whole=whole)
    names = [name for region in plan.regions for name, _ in region.policy]
    assert plan.regions and "arange.default" not in names and "cos.default" not in names
    rematic.apply(model, plan)
    found = steps(model, batches)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_table_may_grow_later() -> None:
    batches = [torch.randn(3, length, WIDTH) for length in (12, 16, 12, 24)]
    expected = steps(built(Attribute), batches)
    model = built(Attribute)
    rematic.apply(model, planned(model, batches[1]))
    assert all(torch.equal(one, other) for one, other in zip(steps(model, batches), expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_counted_once(kind: Callable[[], nn.Module]) -> None:
    """As in the second of two real steps."""
    model = built(kind)
    batch = torch.randn(3, 16, WIDTH)
    cold = rematic.capture(model, batch, optimizer=False, device="cpu")
    clear()
    model(batch)
    assert rematic.capture(model, batch, optimizer=False, device="cpu").peak() == cold.peak()
    clear()


def test_caches_of_functions_hold_nothing_without_data() -> None:
    for kind in (Remembered, Lately, Global):
        model = built(kind)
        batch = torch.randn(3, 16, WIDTH)
        with warnings.catch_warnings():
            warnings.simplefilter("error", rematic.RematicWarning)
            rematic.capture(model, batch, device="cuda")
        assert remembered.cache_info().currsize == lately.cache_info().currsize == len(TABLES) == 0
        model(batch).sum().backward()


@functools.lru_cache(None)
def foreign() -> dict[str, Any]:
    """What holds itself, in a cache that is not the model's."""
    found: dict[str, Any] = {}
    found["self"] = [found]
    return found


class Held:
    """Not a module."""

    table: Tensor | None = None


# Further away than what is put back.
HELD = types.SimpleNamespace(inner=Held())


class Elsewhere(Layer):
    def table(self, x: Tensor) -> Tensor:
        if HELD.inner.table is None:
            HELD.inner.table = angles(x.shape[1], x.device)
        return HELD.inner.table


def test_what_cannot_be_taken_out_is_said() -> None:
    foreign()
    with pytest.warns(rematic.RematicWarning, match="tensor of shape \\(16, 48\\) without data in an attribute of Held"):
        rematic.capture(built(Elsewhere), torch.randn(3, 16, WIDTH), device="cuda")
    HELD.inner.table = None


class Drawn(Attribute):
    """Draws its table: other numbers come if it is made again."""

    def table(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.randn(x.shape[1], WIDTH, device=x.device)
        return self.kept


def test_a_table_of_random_numbers_is_not_silently_other() -> None:
    batches = [torch.randn(3, 16, WIDTH) for _ in range(3)]
    expected = steps(built(Drawn), batches)
    model = built(Drawn)
    rematic.apply(model, planned(model, batches[0]))
    with pytest.raises(rematic.Mismatch, match="runs `randn"):
        steps(model, batches)
    # Once the table is there, all goes well.
    rematic.remove(model)
    model = built(Drawn)
    torch.manual_seed(0)
    model(batches[0])
    rematic.apply(model, planned(model, batches[0]))
    assert all(torch.equal(one, other) for one, other in zip(steps(model, batches)[1:], steps_of_warm(batches)[1:], strict=True))
    assert len(expected) == 3 * (2 + len(list(model.parameters())))


def steps_of_warm(batches: list[Tensor]) -> list[Tensor]:
    model = built(Drawn)
    torch.manual_seed(0)
    model(batches[0])
    return steps(model, batches)


class Switched(Layer):
    """Runs more operators when told to, in every run."""

    more = False

    def table(self, x: Tensor) -> Tensor:
        table = torch.ones(WIDTH)
        return torch.cos(table) if self.more else table


def test_other_operators_are_refused_as_ever() -> None:
    model = built(Switched)
    batch = torch.randn(3, 16, WIDTH)
    rematic.apply(model, planned(model, batch))
    for layer in model:
        layer.more = True
    with pytest.raises(rematic.Mismatch):
        steps(model, [batch])


class Spoken(Layer):
    """Writes about its tensors."""

    def table(self, x: Tensor) -> Tensor:
        self.words = f"{x.sum():.3f} {x[0, 0]} {x.mean()}"
        return torch.ones(WIDTH)


def test_texts_are_in_no_plan() -> None:
    batches = [torch.randn(3, 16, WIDTH) for _ in range(2)]
    expected = steps(built(Spoken), batches)
    model = built(Spoken)
    rematic.apply(model, planned(model, batches[0], whole=True))
    assert all(torch.equal(one, other) for one, other in zip(steps(model, batches), expected, strict=True))


@torch.jit.script
def scripted(x: Tensor, limit: int) -> Tensor:
    half = torch.tensor(limit // 2).type_as(x)
    return torch.where(x > half, torch.sin(x), torch.tanh(x) * half)


class Scripted(Layer):
    def table(self, x: Tensor) -> Tensor:
        return scripted(scripted(x, 1), 3)


@pytest.mark.parametrize("whole", [False, True])
def test_torchscript_may_be_where_recomputation_ends(whole: bool) -> None:
    batches = [torch.randn(3, 16, WIDTH) for _ in range(4)]
    expected = steps(built(Scripted), batches)
    model = built(Scripted)
    rematic.apply(model, planned(model, batches[0], whole=whole))
    assert all(torch.equal(one, other) for one, other in zip(steps(model, batches), expected, strict=True))


class Counting(Attribute):
    """Counts in a view of a buffer, once the table is there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(2))

    def table(self, x: Tensor) -> Tensor:
        found = super().table(x)
        self.counts[0].add_(1)
        return found * self.counts[0].clone()


class Halving(Attribute):
    """Changes a part of a parameter."""

    def table(self, x: Tensor) -> Tensor:
        found = super().table(x)
        with torch.no_grad():
            self.after.weight[0].mul_(0.5)
        return found


class Normed(Attribute):
    """With a batch norm before the table."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class Detached(Attribute):
    def table(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = angles(x.shape[1], x.device).detach()
        return self.kept


@functools.cache
def hidden() -> dict[str, Tensor]:
    return {}


class Rounded(Layer):
    """Keeps another table than it uses the first time, where nobody looks."""

    def table(self, x: Tensor) -> Tensor:
        if "table" not in hidden():
            table = angles(x.shape[1], x.device)
            hidden()["table"] = table.bfloat16()
            return table
        return hidden()["table"].float()


@pytest.mark.parametrize("audit", [0, 3])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", [Counting, Halving, Normed, Detached, Rounded])
def test_nothing_is_changed_twice_or_made_otherwise(kind: Callable[[], nn.Module], whole: bool, audit: int) -> None:
    batches = [torch.randn(3, 16, WIDTH) for _ in range(3)]
    hidden.cache_clear()
    plain = built(kind)
    expected = steps(plain, batches)
    hidden.cache_clear()
    model = built(kind)
    plan = planned(model, batches[0], whole=whole)
    rematic.apply(model, plan, audit=audit)
    hidden.cache_clear()
    if kind is Rounded:
        with pytest.raises((rematic.Mismatch, rematic.AuditError)):
            steps(model, batches)
        return
    found = steps(model, batches)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), plain.buffers(), strict=True))


class Branching(nn.Module):
    """Weights decide whether something outside is changed in place."""

    def __init__(self, changes: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.changes = changes
        self.seen = torch.zeros(1)
        self.register_buffer("counted", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if float(h.detach().mean()) > LIMIT[0]:
            if self.changes == "attribute":
                h = h * self.seen.add_(1)
            elif self.changes == "buffer":
                h = h * self.counted.add_(1).clone()
            h = h.sin()
        return x + torch.tanh(self.b(h))


LIMIT = [0.0]


@pytest.mark.parametrize("audit", [0, 3])
@pytest.mark.parametrize("changes", ["attribute", "buffer", "nothing"])
def test_a_branch_that_comes_later_changes_nothing_twice(changes: str, audit: int) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(Branching(changes) for _ in range(4)))

    def run(model: nn.Module) -> list[Tensor]:
        found = []
        for limit in (1e9, -1e9, -1e9):
            LIMIT[0] = limit
            found += steps(model, [batch])
        return found + [buffer.clone() for buffer in model.buffers()]

    batch = torch.randn(3, 16, WIDTH)
    expected = run(build())
    LIMIT[0] = 1e9
    model = build()
    with pytest.warns(rematic.RematicWarning, match="one real run"):
        plan = planned(model, batch, whole=True)
    assert plan.regions
    rematic.apply(model, plan, audit=audit)
    if changes == "attribute":
        with pytest.raises(rematic.PlanError, match="changes in place what the module has not made"):
            run(model)
        return
    assert all(torch.equal(one, other) for one, other in zip(run(model), expected, strict=True))


class OnClass(Layer):
    made: Tensor | None = None

    def table(self, x: Tensor) -> Tensor:
        if OnClass.made is None:
            OnClass.made = angles(x.shape[1], x.device)
        return OnClass.made


NAMED: dict[str, Any] = {"table": None, "other": torch.ones(3)}


class Named(Layer):
    def table(self, x: Tensor) -> Tensor:
        if NAMED["table"] is None:
            NAMED["table"] = angles(x.shape[1], x.device)
            NAMED["other"] = torch.zeros(3, device=x.device)
        return NAMED["table"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_code_reaches_is_as_it_was(device: str) -> None:
    other = NAMED["other"]
    dead = weakref.proxy(Held())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (OnClass, Named, Remembered):
            rematic.capture(built(kind), torch.randn(3, 16, WIDTH), device=device)
    assert OnClass.made is None and NAMED == {"table": None, "other": other} and NAMED["other"] is other
    assert list(NAMED) == ["table", "other"] and type(dead) is weakref.ProxyType
