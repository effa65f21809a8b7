"""Trains a model from its text, plain or under a plan, and says whether all that can be seen is the same."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import json
import random
import re
import sys
import types
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

import rematic
from rematic._capture.step import document as captured

STEPS = 2
NAME = "fuzz_case"
# What modules have by themselves.
INTERNAL = frozenset(nn.Module().__dict__) - {"training", "_buffers", "_parameters"} | {"forward"}


class World:
    """A model from its text, in a namespace of its own; everything random begins anew."""

    def __init__(self, source: str) -> None:
        module = sys.modules[NAME] = types.ModuleType(NAME)
        self.space = vars(module)
        exec(compile(source, "<case>", "exec"), self.space)
        seed()
        self.model: nn.Module = self.space["Root"]()

    def train(self, plan: rematic.Plan | None = None) -> dict[str, Any]:
        """Some steps: all that can be seen of them."""
        if plan is not None:
            rematic.apply(self.model, plan)
        seed()
        seen: dict[str, Any] = {}
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for step in range(STEPS):
            args, kwargs = self.space["inputs"]()
            out = self.model(*args, **kwargs)
            loss = loss_of(out)
            if "after" in self.space:
                self.space["after"](self.model, args, kwargs)
            loss.backward()
            seen[f"step {step}: loss"] = bits(loss)
            for name, parameter in self.model.named_parameters():
                look(parameter.grad, f"step {step}: gradient of {name}", seen)
            look((args, kwargs, out), f"step {step}: inputs and output", seen)
            optimizer.step()
            optimizer.zero_grad()
        self.look_around(seen)
        return seen

    def look_around(self, seen: dict[str, Any]) -> None:
        """What is left of training: weights, buffers, attributes, globals, generators, modes."""
        for path, module in self.model.named_modules():
            for name, value in module.__dict__.items():
                if name not in INTERNAL:
                    look(value, f"{path}.{name}", seen)
            if type(module).__module__ == NAME:
                look({k: v for k, v in vars(type(module)).items() if is_data(k, v)}, f"class of {path}", seen)
        for name, value in self.space.items():
            if is_data(name, value):
                look(value, f"global {name}", seen)
            elif getattr(value, "__module__", None) == NAME and getattr(value, "__closure__", None):
                look([cell.cell_contents for cell in value.__closure__], f"closure {name}", seen)
        seen["generator of torch"] = bits(torch.get_rng_state())
        seen["generator of random"] = random.getstate()
        seen["generator of numpy"] = str(numpy.random.get_state())
        seen["modes"] = modes()


def loss_of(out: Any) -> Tensor:
    """The loss of whatever a model returns: all tensors in it count."""
    found = vars(out) if hasattr(out, "side") else out
    found = list(found.values()) if isinstance(found, Mapping) else found if isinstance(found, tuple) else [found]
    tensors = [value for value in found if isinstance(value, Tensor) and value.requires_grad]
    return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum()


def seed() -> None:
    """All generators begin anew."""
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)


def modes() -> tuple[Any, ...]:
    """What contexts set."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch._C._len_torch_dispatch_stack(),
    )


def clean() -> None:
    """Puts modes back that an error has left."""
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_default_dtype(torch.float32)


def is_data(name: str, value: Any) -> bool:
    """Whether it is a global that a model may change."""
    kinds = (type, types.FunctionType, types.ModuleType, staticmethod, classmethod, types.GetSetDescriptorType)
    return not name.startswith("__") and not isinstance(value, kinds) and not callable(value)


def bits(tensor: Tensor) -> Any:
    """All of a tensor's value."""
    tensor = tensor.detach().contiguous()
    return str(tensor.dtype), tuple(tensor.shape), ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def look(value: Any, path: str, seen: dict[str, Any]) -> None:
    """Notes a value with all that is in it."""
    if isinstance(value, Tensor):
        seen[path] = bits(value)
        if not isinstance(value, nn.Parameter) and (value.is_leaf or value.retains_grad):
            look(value.grad, f"{path}.grad", seen)
    elif isinstance(value, nn.Module):
        seen[path] = "module"
    elif isinstance(value, Mapping):
        seen[path] = list(map(str, value))
        for key, item in value.items():
            look(item, f"{path}[{key}]", seen)
    elif isinstance(value, (list, tuple, deque)):
        seen[path] = len(value)
        for index, item in enumerate(value):
            look(item, f"{path}[{index}]", seen)
    elif isinstance(value, torch.Generator):
        seen[path] = bits(value.get_state())
    elif isinstance(value, random.Random):
        seen[path] = value.getstate()
    elif isinstance(value, numpy.random.Generator):
        seen[path] = str(value.bit_generator.state)
    elif isinstance(value, numpy.ndarray):
        seen[path] = value.tobytes()
    elif isinstance(value, (itertools.cycle, types.GeneratorType)) or type(value) is type(iter([])):
        # The whole rest: nothing runs any more that could want it.
        seen[path] = list(itertools.islice(value, 8))
    elif hasattr(value, "__dict__"):
        look(vars(value), path, seen)
    elif hasattr(type(value), "__slots__"):
        look({name: getattr(value, name, None) for name in type(value).__slots__}, path, seen)
    else:
        seen[path] = value


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a comparison ended: `equal`, `refused`, `different`, `error`; or why there was nothing to compare."""

    kind: str
    # What differs first, or the error's class and its words without numbers and names.
    what: str = ""
    # The whole error, or all that differs.
    details: str = ""
    plan: str = ""

    def __str__(self) -> str:
        return " ".join(f"{self.kind}: {self.details[:300] or self.what}".split())

    @property
    def is_bug(self) -> bool:
        """Whether it must not be."""
        return self.kind in ("different", "error")


def plain_run(source: str) -> dict[str, Any] | Outcome:
    """What the model gives without a plan, if it always gives the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            first, second = World(source).train(), World(source).train()
        except Exception as error:
            clean()
            return Outcome("plain run fails", type(error).__name__, str(error))
    if first != second:
        return Outcome("plain run varies", *differing(first, second))
    if any("loss" in name and not _is_finite(value) for name, value in first.items()):
        return Outcome("loss is not finite")
    return first


def _is_finite(value: Any) -> bool:
    return isinstance(value, tuple) and bool(torch.frombuffer(bytearray(value[2]), dtype=torch.float32).isfinite().all())


def trace_of(source: str) -> dict[str, Any]:
    """The trace of one step on the CPU. It is taken in a world of its own: capture runs the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            world = World(source)
            args, kwargs = world.space["inputs"]()
            return json.loads(
                captured(world.model, *args, loss=loss_of, optimizer=False, device="cpu", **kwargs)
            )
        finally:
            clean()


def compare(source: str, plan: rematic.Plan, expected: dict[str, Any]) -> Outcome:
    """Trains under a plan, and compares with the plain run."""
    text = plan.to_json()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = World(source).train(plan)
        except Exception as error:
            found_modes = modes()
            clean()
            if isinstance(error, rematic.RematicError):
                if torch._C._len_torch_dispatch_stack():
                    return Outcome("error", f"modes are left: {found_modes}", str(error), text)
                return Outcome("refused", *described(error), text)
            return Outcome("error", *described(error), text)
    if found == expected:
        return Outcome("equal", plan=text)
    return Outcome("different", *differing(expected, found), text)


def described(error: BaseException) -> tuple[str, str]:
    """An error's class and words without names and numbers; and as it is."""
    words = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", "…", str(error))
    words = re.sub(r"0x[0-9a-f]+|\d+", "N", words).split("\n")[0]
    return f"{type(error).__name__}: {words[:150]}", f"{type(error).__name__}: {error}"


def differing(expected: dict[str, Any], found: dict[str, Any]) -> tuple[str, str]:
    """What differs first, without numbers; and all that differs."""
    names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    gradients = any("gradient of" in name or ": loss" in name for name in names)
    first = re.sub(r"\d+", "N", names[0].rpartition(" of ")[0] or names[0])
    return ("gradients: " if gradients else "state: ") + first, ", ".join(names[:12])
