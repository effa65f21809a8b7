"""Plans by hand for small models, and what such models give with and without them."""

from __future__ import annotations

import copy
import json
import queue
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer
from rematic._capture.step import document as capture

WIDTH = 16


def layer() -> Layer:
    return Layer(WIDTH, dropout=0.2)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * scale


class Block(nn.Module):
    """In-place operators, running statistics, and a counter."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.relu = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.first(x)))
        z = self.second(y)
        z.mul_(2)
        z += y
        return z.tanh()


class Around(nn.Module):
    """Calls one block several times, and once without gradients."""

    def __init__(self, block: nn.Module, calls: int = 3) -> None:
        super().__init__()
        self.block = block
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = x + self.block(x)
        for _ in range(self.calls):
            x = self.block(x)
        return x


class Cast(nn.Module):
    """Runs another under autocast."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)


X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))


def whole(model: nn.Module, *args: Any, only: str = "layers.*", optimizer: Any = False) -> rematic.Plan:
    """A plan that recomputes all of some modules, at each of their calls that needs a gradient."""
    document = json.loads(capture(model, *args, device="cpu", optimizer=optimizer))
    regions = [region for region in calls_of(document) if fnmatch(region["module"].partition(".")[2], only)]
    assert regions
    return plan_of(document, [region for region in regions if not any(is_inside(region, other) for other in regions)])


def calls_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of modules that need a gradient as regions that recompute all, in the order in which they return; `ops`
    are their operators."""
    paths: list[str] = []
    for module in document["modules"]:
        paths.append(module["name"] if module["parent"] is None else f"{paths[module['parent']]}.{module['name']}")
    calls: Counter[int] = Counter()
    open_calls: dict[int, dict[str, Any]] = {}
    found = []
    for event in document["events"]:
        if "enter" in event:
            module = document["calls"][event["enter"]]["module"]
            open_calls[event["enter"]] = {"module": paths[module], "call": calls[module], "policy": [], "ops": []}
            calls[module] += 1
        elif "op" in event and document["ops"][event["op"]]["phase"] == "forward":
            name = document["names"][document["ops"][event["op"]]["name"]]
            for region in open_calls.values():
                region["policy"].append({"index": len(region["policy"]), "op": name, "decision": "recompute"})
                region["ops"].append(event["op"])
        elif "exit" in event:
            region = open_calls.pop(event["exit"])
            if any("saves" in document["ops"][op] for op in region["ops"]):
                found.append(region)
    return found


def plan_of(document: dict[str, Any], regions: list[dict[str, Any]]) -> rematic.Plan:
    """A plan with these regions, which must not contain each other."""
    plan = json.loads(rematic.plan(rematic.Trace.from_bytes(json.dumps(document).encode()), "1GiB").to_json())
    for region in sorted(regions, key=lambda region: region["ops"][0]):
        kept = {key: region[key] for key in ("module", "call", "policy")}
        plan["regions"].append({**kept, "discard": 1.0, "freed_bytes": 0, "recompute_ms": 0.0})
        if any(op["decision"] == "skip" for op in region["policy"]):
            plan["version"] = 6
    return rematic.Plan.from_json(json.dumps(plan))


def is_inside(region: dict[str, Any], other: dict[str, Any]) -> bool:
    return region["module"].startswith(other["module"] + ".")


def least(model: nn.Module, *args: Any, **options: Any) -> rematic.Plan:
    trace = rematic.Trace.from_bytes(capture(model, *args, device="cpu", optimizer=False))
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, **options)
    return rematic.plan(trace, infeasible.value.least_budget, **options)


def edited(plan: rematic.Plan, edit: Callable[[dict[str, Any]], None]) -> rematic.Plan:
    document = json.loads(plan.to_json())
    edit(document)
    return rematic.Plan.from_json(json.dumps(document))


def saving(plan: rematic.Plan, *names: str) -> rematic.Plan:
    """The same plan, but the outputs of these operators are saved."""

    def edit(document: dict[str, Any]) -> None:
        for region in document["regions"]:
            for op in region["policy"]:
                op["decision"] = "save" if op["op"] in names else "recompute"

    return edited(plan, edit)


def results(model: nn.Module, *args: Any, passes: int = 1, **kwargs: Any) -> list[Tensor]:
    """Losses, gradients and buffers of some passes; and what the generator gives afterwards."""
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    losses = []
    for _ in range(passes):
        loss = model(*args, **kwargs).square().mean()
        loss.backward()
        losses.append(loss.detach())
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    buffers = [buffer.clone() for buffer in model.buffers()]
    model.zero_grad()
    model.load_state_dict(state)
    return [*losses, *gradients, *buffers, torch.rand(2)]


def check_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


class Runs:
    """Counts how often a module's own forward runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module]) -> None:
        # A number would be put back after each recomputation.
        self._runs: queue.SimpleQueue[None] = queue.SimpleQueue()
        forward = kind.forward

        def counted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._runs.put(None)
            return forward(module, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", counted)

    @property
    def count(self) -> int:
        return self._runs.qsize()


class Layers(nn.Module):
    """Two layers of a kind."""

    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(kind() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def deciding(plan: rematic.Plan, decisions: dict[str, str]) -> rematic.Plan:
    """The same plan with other decisions for the operators with these names."""

    def edit(document: dict[str, Any]) -> None:
        document["version"] = 6
        for region in document["regions"]:
            for op in region["policy"]:
                op["decision"] = decisions.get(op["op"], op["decision"])

    return edited(plan, edit)
