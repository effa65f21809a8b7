"""Copies of a model, its inputs and its optimizer on the meta device. No weight is copied, and nothing of the user's
is changed."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from rematic._model.trees import map_tensors, tensors_in
from rematic._model.wrapped import inner, is_spread, like

from .errors import CaptureError
from .operators import Facts
from .sharding import Sharding
from .streams import Streams


class Replica:
    """Tensors on the meta device that stand for the user's: one for each tensor, one storage for each storage."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        # Holds the user's tensors, so that no address is used again while this lives.
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        # Those that are no weights, with what they stand for.
        self.values: list[tuple[Tensor, Tensor]] = []
        # What the storages of the user's model hold, for errors.
        self._parameters: dict[int, str] = {}
        self._buffers: dict[int, str] = {}
        # How FSDP2 has sharded the model, if it has.
        self.sharding: Sharding | None = None
        # What the copy runs on.
        self.streams = Streams()

    def tensor(self, original: Tensor) -> Tensor:
        """The tensor that stands for this one."""
        known = self._tensors.get(id(original))
        if known is not None:
            return known[1]
        if is_spread(original):
            return self._spread(original)
        if type(original) not in (Tensor, nn.Parameter, nn.Buffer) and hasattr(original, "__tensor_flatten__"):
            raise CaptureError(
                f"A tensor of type {type(original).__name__} cannot be captured; capture the model before it is "
                "quantized or otherwise wrapped"
            )
        if original.layout is not torch.strided:
            raise CaptureError(f"A tensor with layout {original.layout} cannot be captured; make it dense")
        storage = original.untyped_storage()
        with torch.no_grad():
            twin = self._storages.get(storage._cdata)
            if twin is None:
                twin = self._storages[storage._cdata] = self._memory(original)
            made = torch.empty(0, dtype=original.dtype, device=twin.device)
            made.set_(twin, original.storage_offset(), original.size(), original.stride())
        if isinstance(original, nn.Parameter):
            made = nn.Parameter(made, requires_grad=original.requires_grad)
            made.__dict__.update(original.__dict__)
        else:
            made.requires_grad_(original.requires_grad)
        self._tensors[id(original)] = (original, made)
        if not isinstance(original, nn.Parameter):
            self.values.append((made, original))
        return made

    def _spread(self, original: Tensor) -> Tensor:
        """A part of a whole, around what stands for the tensor inside."""
        wrap = like(original)
        local = self.tensor(inner(original))
        assert wrap is not None
        made = wrap(local.detach())
        if isinstance(original, nn.Parameter):
            made = nn.Parameter(made, requires_grad=original.requires_grad)
            self.values = [pair for pair in self.values if pair[0] is not local]
        else:
            made.requires_grad_(original.requires_grad)
        self._tensors[id(original)] = (original, made)
        return made

    def _memory(self, original: Tensor) -> torch.UntypedStorage:
        """What stands for the storage of this tensor."""
        return torch.UntypedStorage(original.untyped_storage().nbytes(), device="meta")

    def is_of_model(self, tensor: Tensor) -> bool:
        """Whether it is one of the user's model's own."""
        if tensor.layout is not torch.strided:
            return False
        address = inner(tensor).untyped_storage()._cdata
        return address in self._parameters or address in self._buffers

    def check_foreigners(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> None:
        """Refuses an operator on the user's own model, which it would train. A buffer may be read: a loss often knows
        the weights of classes."""
        does, kind, name = "reads", "parameter", _first(self._parameters, (args, kwargs))
        if name is None:
            does, kind, name = "writes", "buffer", _first(self._buffers, facts.written(args, kwargs))
        if name is not None:
            raise CaptureError(
                f"The step uses the model from outside: `{func}` {does} its {kind} `{name}`, not that of the copy that "
                "is captured; use the arguments `model, optimizer` of the step's function"
            )

    def model(self, model: nn.Module) -> nn.Module:
        """A copy of the model's structure."""
        memo: dict[int, Any] = {}
        self.sharding = Sharding.of(model)
        if self.sharding is not None:
            self.sharding.prepare(memo)
        for module in model.modules():
            for tensors in (module._parameters, module._buffers, module.__dict__):
                for tensor in tensors_in({k: v for k, v in tensors.items() if not k.startswith("_modules")}):
                    if id(tensor) not in memo:
                        memo[id(tensor)] = self.tensor(tensor)
                    if tensor.grad is not None:
                        memo[id(tensor.grad)] = None
            # A dozen dicts of hooks in every module are empty; to copy them takes longer than all else.
            memo.update((id(hooks), OrderedDict()) for hooks in vars(module).values() if type(hooks) is OrderedDict and not hooks)
        try:
            copied = copy.deepcopy(model, memo)
            if self.sharding is not None:
                self.sharding.fill(memo)
        except Exception as error:
            raise CaptureError(
                f"The structure of {type(model).__name__} cannot be copied ({type(error).__name__}: {error}); "
                "capture works on a copy, so that the model itself stays as it is: make the object that fails "
                "deep-copyable, or build the model anew without it"
            ) from error
        for module in copied.modules():
            module._compiled_call_impl = None
        if self.sharding is not None:
            with self.sharding.running_on(self.streams):
                self._tensors.update(self.sharding.repeat(memo))
        for names, named in (
            (self._parameters, model.named_parameters()),
            (self._buffers, model.named_buffers()),
        ):
            for name, tensor in named:
                names.setdefault(inner(tensor).untyped_storage()._cdata, name)
        return copied

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call."""
        devices: dict[str, str] = {}
        named = [(f"argument {position}", value) for position, value in enumerate(args)] + list(kwargs.items())
        for name, value in named:
            for tensor in tensors_in(value):
                if tensor.dim() > 0:
                    devices.setdefault(str(tensor.device), name)
        if len(devices) > 1:
            where = ", ".join(f"{name} on {device}" for device, name in devices.items())
            raise CaptureError(f"The inputs lie on {len(devices)} devices ({where}); move them to one of them")
        return map_tensors(args, self.tensor), map_tensors(kwargs, self.tensor)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """An optimizer of the same class, with the same settings, over the parameters that stand for its own."""
        made = copy.copy(optimizer)
        # A scheduler puts a `step` on the optimizer that is bound to it.
        made.__dict__ = {key: value for key, value in optimizer.__dict__.items() if key not in ("step", "zero_grad")}
        made.state = defaultdict(dict)
        # Hooks of its own, for the copy is watched.
        made._optimizer_step_pre_hooks = OrderedDict(optimizer._optimizer_step_pre_hooks)
        made._optimizer_step_post_hooks = OrderedDict(optimizer._optimizer_step_post_hooks)
        made.param_groups = []
        for group in optimizer.param_groups:
            unknown = [parameter for parameter in group["params"] if id(parameter) not in self._tensors]
            if unknown:
                shapes = ", ".join(str(tuple(parameter.shape)) for parameter in unknown[:3])
                raise CaptureError(
                    f"The optimizer has {len(unknown)} parameters that are not the model's (shapes {shapes}); "
                    "give the optimizer of this model"
                )
            settings = {
                key: map_tensors(value, lambda tensor: tensor.detach().clone())
                for key, value in group.items()
                if key != "params"
            }
            made.param_groups.append({"params": [self.tensor(parameter) for parameter in group["params"]], **settings})
        return made


def _first(names: dict[int, str], value: Any) -> str | None:
    """The name of the first storage in a nested value that has one."""
    storages = (inner(tensor).untyped_storage()._cdata for tensor in tensors_in(value) if tensor.layout is torch.strided)
    return next((names[address] for address in storages if address in names), None)
