"""What a region finds around it when it runs again is what it found the first time, whatever has changed since."""

from __future__ import annotations

import argparse
import collections
import contextvars
import copy
import dataclasses
import itertools
import random
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import rematic
from plans import WIDTH, X, check_equal, results, saving, whole
from test_emit import apply as apply_emitted

SCALE = 1.0
QUEUE: collections.deque[float] = collections.deque()
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("CONTEXT")
THREAD = threading.local()


@dataclasses.dataclass
class State:
    """An object with tensors and numbers."""

    x: Tensor | None = None
    scale: float = 1.0


class Slotted:
    """The same without a dictionary."""

    __slots__ = ("x", "scale")

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self.scale = 1.0


class Private:
    """The same, which only its own class can name."""

    __slots__ = ("__scale",)

    def __init__(self) -> None:
        self.__scale = 1.0

    def grow(self) -> None:
        self.__scale = 4.0

    def read(self) -> float:
        return self.__scale


class Pair(tuple):  # type: ignore[type-arg]
    """A tuple of a class of its own."""

    @property
    def second(self) -> float:
        return self[1]


class Helper:
    """Reads what its module does not name."""

    factor = 1.0

    def read(self) -> float:
        return SCALE * type(self).factor


class Inner(nn.Module):
    """The region. How it reads its surroundings, `read` says."""

    calls = 0

    def __init__(self, read: Callable[[Inner, Any], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.linear.register_forward_hook(scaled_by_global)
        self.read = read
        self.count = 0
        self.scale = 1.0
        self.numbers = [1.0]
        self.array = numpy.ones(2)
        self.counter = itertools.count(1)
        self.own_random = random.Random(3)
        self.helper = Helper()
        self.nested = {"many": dict.fromkeys(range(5000), 2.0)}
        self.kept = torch.ones(WIDTH)
        self.register_buffer("average", torch.ones(()))

    def forward(self, x: Tensor, state: Any) -> Tensor:
        # What is read has a part in what backward needs.
        return torch.tanh(torch.tanh(self.linear(x)) * self.read(self, state)) + x


class Outer(nn.Module):
    """Calls the region, and changes what it has read."""

    def __init__(self, read: Any, made: Callable[[], Any], change: Callable[[Outer, Any], None]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner = Inner(read)
        self.made, self.change = made, change

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        state = self.made()
        if isinstance(state, (State, Slotted, types.SimpleNamespace)):
            state.x = x
        elif isinstance(state, (list, dict, collections.deque)):
            state.append(x) if not isinstance(state, dict) else state.update(x=x)
        y = self.inner(x, state)
        self.change(self, state)
        return y


def global_number(inner: Inner, state: Any) -> Any:
    return SCALE


def set_global(outer: Outer, state: Any) -> None:
    global SCALE
    SCALE = 3.0


def scaled_by_global(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * SCALE


def queue(inner: Inner, state: Any) -> Any:
    return 1.0 + sum(QUEUE)


def defaulted(inner: Inner, state: Any, numbers: list[float] = [1.0], *, seen: State = State()) -> Any:  # noqa: B006, B008
    numbers.append(1.0)
    seen.scale += 1
    return sum(numbers) + seen.scale


def counted(inner: Inner, state: Any) -> Any:
    inner.count += 1
    return float(inner.count)


def counted_by_class(inner: Inner, state: Any) -> Any:
    Inner.calls += 1
    return float(Inner.calls)


def average(inner: Inner, state: Any) -> Any:
    inner.average = inner.average * 0.5 + 1
    return inner.average


def appended(inner: Inner, state: Any) -> Any:
    inner.numbers.append(2.0)
    return sum(inner.numbers)


def kept_before(inner: Inner, state: Any) -> Any:
    scale = inner.kept.mean()
    inner.kept = (inner.linear.bias * 2 + 1).detach()
    return scale


def closure() -> tuple[Callable[[Inner, Any], Any], Callable[[Outer, Any], None]]:
    scale = 1.0

    def read(inner: Inner, state: Any) -> Any:
        return scale

    def change(outer: Outer, state: Any) -> None:
        nonlocal scale
        scale = 5.0

    return read, change


def nothing(outer: Outer, state: Any) -> None:
    pass


def set_factor(outer: Outer, state: Any) -> None:
    Helper.factor = 3.0


def swap_weight(outer: Outer, state: Any) -> None:
    outer.inner.linear.weight = nn.Parameter(outer.inner.linear.weight.detach() * 2)


def set_x(outer: Outer, state: Any) -> None:
    state.x = state.x * 2 if state.x is not None else None


CASES: dict[str, tuple[Any, Callable[[], Any], Any]] = {
    "a list that grows": (lambda inner, state: sum(state), list, lambda outer, state: state.append(state[0] * 2)),
    "a list that is cleared": (lambda inner, state: state[0], list, lambda outer, state: state.clear()),
    "a dictionary": (lambda inner, state: state["x"], dict, lambda outer, state: state.update(x=state["x"] * 2)),
    "a deque": (lambda inner, state: state[-1], collections.deque, lambda outer, state: state.pop()),
    "lists in a tuple": (
        lambda inner, state: state[0][0], lambda: ([2.0], 1), lambda outer, state: state[0].insert(0, 7.0),
    ),
    "a data class": (lambda inner, state: state.x, State, set_x),
    "an object without a dictionary": (lambda inner, state: state.x, Slotted, set_x),
    "a namespace": (lambda inner, state: state.x, types.SimpleNamespace, set_x),
    "a number in an object": (
        lambda inner, state: state.scale, State, lambda outer, state: setattr(state, "scale", 4.0),
    ),
    "an iterator": (lambda inner, state: next(state), lambda: iter([2.0, 3.0]), nothing),
    "a cycle": (lambda inner, state: next(state), lambda: itertools.cycle([2.0, 3.0]), nothing),
    "a zip of a map": (
        lambda inner, state: sum(next(state)), lambda: zip(map(abs, iter([2.0, -3.0])), itertools.chain([1.0], [4.0])), nothing,
    ),
    "an attribute": (
        lambda inner, state: inner.scale, State, lambda outer, state: setattr(outer.inner, "scale", 4.0),
    ),
    "a list in an attribute": (
        lambda inner, state: sum(inner.numbers), State, lambda outer, state: outer.inner.numbers.append(1.0),
    ),
    "a list that it appends to": (appended, State, nothing),
    "a numpy array": (
        lambda inner, state: float(inner.array[0]), State, lambda outer, state: outer.inner.array.fill(3),
    ),
    "a counter": (counted, State, nothing),
    "a counter of the class": (counted_by_class, State, nothing),
    "itertools.count": (lambda inner, state: float(next(inner.counter)), State, nothing),
    "a buffer that is replaced": (average, State, nothing),
    "a tensor that it keeps": (kept_before, State, nothing),
    "an ordered dictionary": (
        lambda inner, state: sum(state.values()),
        collections.OrderedDict,
        lambda outer, state: state.update(x=state["x"] * 2),
    ),
    "a namespace of argparse": (
        lambda inner, state: state.scale, lambda: argparse.Namespace(scale=1.0),
        lambda outer, state: setattr(state, "scale", 4.0),
    ),
    "a user's dictionary": (
        lambda inner, state: state["a"], lambda: collections.UserDict(a=1.0), lambda outer, state: state.update(a=4.0),
    ),
    "a private slot": (lambda inner, state: state.read(), Private, lambda outer, state: state.grow()),
    "an attribute that modules have too": (
        lambda inner, state: state._modules, lambda: types.SimpleNamespace(_modules=2.0),
        lambda outer, state: setattr(state, "_modules", 4.0),
    ),
    "a tuple of a class of its own": (lambda inner, state: state.second, lambda: Pair(([1], 3.0)), nothing),
    "what max returns": (lambda inner, state: state.values, lambda: torch.ones(3, WIDTH).max(dim=0), nothing),
    "a long list": (
        lambda inner, state: sum(state[:3]), lambda: [1.0] * 5000, lambda outer, state: state.__setitem__(0, 7.0),
    ),
    "a long dictionary in another": (lambda inner, state: inner.nested["many"][7], State, nothing),
    "a context variable": (
        lambda inner, state: CONTEXT.get(), lambda: CONTEXT.set(1.0), lambda outer, state: CONTEXT.set(4.0) and None,
    ),
    "a variable of the thread": (
        lambda inner, state: THREAD.scale, lambda: setattr(THREAD, "scale", 1.0),
        lambda outer, state: setattr(THREAD, "scale", 4.0),
    ),
    "a global of a helper": (lambda inner, state: inner.helper.read(), State, set_global),
    "an attribute of a helper's class": (lambda inner, state: inner.helper.read(), State, set_factor),
    "a global of a hook": (lambda inner, state: 1.0, State, set_global),
    "a global": (global_number, State, set_global),
    "a global container": (queue, State, lambda outer, state: QUEUE.append(1.0)),
    "a default argument": (defaulted, State, nothing),
    "a closure": (*closure()[:1], State, nothing),
    "random": (lambda inner, state: random.random(), State, nothing),
    "a generator of its own": (lambda inner, state: inner.own_random.random(), State, nothing),
    "numpy.random": (lambda inner, state: float(numpy.random.rand()), State, nothing),
    "evaluation": (
        lambda inner, state: 2.0 if inner.training else 3.0, State, lambda outer, state: outer.inner.eval() and None,
    ),
    "the default dtype": (
        lambda inner, state: torch.ones(()).to(torch.float32) * (2.0 if torch.get_default_dtype() is torch.float32 else 3.0),
        State,
        lambda outer, state: torch.set_default_dtype(torch.float64),
    ),
}  # fmt: skip


def trained(model: Outer) -> list[Any]:
    """Losses, gradients and what is left of the state after two steps."""
    global SCALE
    SCALE, Inner.calls, Helper.factor = 1.0, 0, 1.0
    QUEUE.clear()
    defaulted.__defaults__, defaulted.__kwdefaults__["seen"] = ([1.0],), State()
    random.seed(1)
    numpy.random.seed(1)
    values: list[Any] = []
    for _ in range(2):
        model.train()
        loss = model(X).square().mean()
        loss.backward()
        torch.set_default_dtype(torch.float32)
        values += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        model.zero_grad()
    inner = model.inner
    left = (inner.count, Inner.calls, inner.scale, inner.numbers, SCALE, list(QUEUE), random.random(), numpy.random.rand())
    return [*values, inner.average.clone(), torch.tensor([float(sum(v) if isinstance(v, list) else v) for v in left])]


@pytest.mark.parametrize("emitted", [False, True], ids=["applied", "emitted"])
@pytest.mark.parametrize("name", CASES)
def test_what_has_changed_since_is_put_back(name: str, emitted: bool) -> None:
    read, made, change = CASES[name]
    if name == "a closure":
        read, change = closure()
    model = Outer(read, made, change)
    plan = whole(model, X, only="inner")
    torch.set_default_dtype(torch.float32)
    model.inner.eval()  # as the capture's copy may have been left by a change; training begins anew
    plain, planned = copy.deepcopy(model), model
    if name == "a closure":
        for each in (plain, planned):
            each.inner.read, each.change = closure()
    expected = trained(plain)
    apply_emitted(planned, plan) if emitted else rematic.apply(planned, plan)
    check_equal(trained(planned), expected)


def test_what_cannot_be_gone_through_twice_is_refused() -> None:
    model = Outer(lambda inner, state: next(state), lambda: (float(n) for n in range(1, 9)), nothing)
    rematic.apply(model, whole(model, X, only="inner"))
    with pytest.raises(rematic.PlanError, match="Element 1 of the arguments is a generator, which can be gone through only once"):
        model(X)


def test_a_generator_that_the_region_goes_through_is_refused() -> None:
    numbers = (float(n) for n in range(1, 99))
    model = Outer(lambda inner, state: next(numbers), State, nothing)
    rematic.apply(model, whole(model, X, only="inner"))
    with pytest.raises(rematic.PlanError, match="of a function's closure is a generator, which can be gone through only once"):
        model(X)


def test_what_was_changed_in_place_is_refused_where_it_is_read_again() -> None:
    def change(outer: Outer, state: Any) -> None:
        with torch.no_grad():
            outer.inner.average.add_(1)

    model = Outer(lambda inner, state: inner.average + 0, State, change)
    rematic.apply(model, whole(model, X, only="inner"))
    loss = model(X).square().mean()
    words = r"Operator \d+ \(`add.Tensor`\) of `Outer.inner` is run again .* reads `average` of `Outer.inner`, which was changed in place"
    with pytest.raises(rematic.PlanError, match=words):
        loss.backward()


def test_parameters_that_stop_training_before_backward() -> None:
    def change(outer: Outer, state: Any) -> None:
        outer.inner.linear.weight.requires_grad_(False)

    model = Outer(lambda inner, state: 2.0, State, change)
    plan = whole(model, X, only="inner")
    model.inner.linear.weight.requires_grad_(True)
    rematic.apply(model, plan)
    model(X).sum().backward()
    assert not model.inner.linear.weight.requires_grad


def test_parameters_that_are_replaced_before_backward() -> None:
    model = Outer(lambda inner, state: 2.0, State, swap_weight)
    plan = whole(model, X, only="inner")
    plain = copy.deepcopy(model)
    rematic.apply(model, plan, audit=0)
    for each in (plain, model):
        each(X).square().mean().backward()
    check_equal([model.first.weight.grad], [plain.first.weight.grad])  # type: ignore[list-item]


def test_parameters_that_are_given_for_one_call() -> None:
    model = Outer(lambda inner, state: 2.0, State, nothing)
    plan = whole(model, X, only="inner")

    def gradients() -> list[Tensor]:
        given = {name: (value.detach() * 2).requires_grad_() for name, value in model.named_parameters()}
        loss = torch.func.functional_call(model, given, (X,)).square().mean()
        return list(torch.autograd.grad(loss, list(given.values())))

    expected = gradients()
    rematic.apply(model, plan, audit=0)
    check_equal(gradients(), expected)


def test_parameters_of_other_modules_that_change_are_noticed() -> None:
    def change(outer: Outer, state: Any) -> None:
        with torch.no_grad():
            outer.first.bias.add_(1)

    model = Outer(lambda inner, state: inner.others[0].bias + 0, State, change)
    model.inner.others = [model.first]
    rematic.apply(model, whole(model, X, only="inner"), audit=0)
    loss = model(X).square().mean()
    words = "reads `bias` of element 0 of `others` of `Outer.inner`, which was changed in place"
    with pytest.raises(rematic.PlanError, match=words):
        loss.backward()


def test_switches_are_left_as_they_are() -> None:
    model = Outer(lambda inner, state: 2.0, State, nothing)
    rematic.apply(model, whole(model, X, only="inner"))
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        # After this torch refuses to say how precise products are in one word.
        matmul.fp32_precision = "tf32"
        loss = model(X).sum()
        torch.use_deterministic_algorithms(True, warn_only=True)
        loss.backward()
        assert matmul.fp32_precision == "tf32"
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        matmul.fp32_precision = before


class Product(nn.Module):
    """Multiplies two parameters, of which autocast may remember one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ torch.tanh(self.b @ self.a) @ torch.tanh(self.a @ self.b))


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Product()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x @ self.inner.a).float()


@pytest.mark.parametrize("saved", [(), ("_to_copy.default",)], ids=["recomputed", "saved"])
def test_a_parameter_that_autocast_remembers_is_not_taken_for_another(saved: tuple[str, ...]) -> None:
    model = Products()
    plan = saving(whole(model, X, only="inner"), *saved)
    expected = results(model, X)
    rematic.apply(model, plan)
    check_equal(results(model, X), expected)


def test_attributes_hold_nothing_of_the_second_run() -> None:
    def read(inner: Inner, state: Any) -> Any:
        inner.kept = inner.linear.bias * 2
        return inner.kept

    model = Outer(read, State, nothing)
    rematic.apply(model, whole(model, X, only="inner"))
    loss = model(X).sum()
    kept = model.inner.kept
    loss.backward()
    assert model.inner.kept is kept
