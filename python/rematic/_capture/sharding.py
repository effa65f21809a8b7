"""How FSDP2 has sharded a model, read so that a copy of the model can be sharded the same way by `fully_shard` itself."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._model.collectives import COLLECTIVES, PACKING, answer, is_wait, waited

from .fully_shard import FullyShard

if TYPE_CHECKING:
    from .recorder import Recorder
    from .streams import Streams

# What may be set on a sharded module beside the arguments of `fully_shard`.
_OF_GROUP = (
    "reduce_grads", "all_reduce_grads", "reshard_after_backward", "reduce_scatter_max_input_buffers", "gradient_divide_factor",
    "reduce_scatter_unused_params", "force_sum_reduction_for_comms", "unshard_async_op", "unshard_in_backward",
)  # fmt: skip
_OF_CONTEXT = ("is_last_backward", "manual_backward_finalization")
_STATE_DICTS = ("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)  # fmt: skip


class Sharding:
    """The modules of a model that were handed to `fully_shard`, the inner ones first."""

    def __init__(self, model: nn.Module, states: list[Any]) -> None:
        self._model = model
        self._states = states
        self._torch = FullyShard()
        for state in states:
            self._torch.check(state)
        # The whole parameters of the copy, by those of the model that are shards of them.
        self._wholes: dict[int, nn.Parameter] = {}
        self._shells: list[tuple[nn.Module, nn.Module]] = []

    @staticmethod
    def of(model: nn.Module) -> Sharding | None:
        """That of a model; nothing if it has none."""
        states: dict[int, Any] = {}
        for module in reversed(list(model.modules())):
            if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
                state = module._get_fsdp_state()  # type: ignore[operator]
                states.setdefault(id(state), state)
        return Sharding(model, list(states.values())) if states else None

    # ---- the copy, before it is sharded ----

    def prepare(self, memo: dict[int, Any]) -> None:
        """Puts whole parameters in the place of shards, and modules as they were in the place of sharded ones."""
        for parameter in self._parameters():
            local = torch.empty(parameter._orig_size, dtype=parameter.sharded_param.dtype, device="meta")
            spec = parameter._unsharded_dtensor_spec
            if spec is not None:
                local = self._torch.spread(local, spec)
            whole = nn.Parameter(local, requires_grad=parameter.sharded_param.requires_grad)
            whole.__dict__.update({k: v for k, v in parameter.sharded_param.__dict__.items() if not k.startswith("_")})
            if parameter._has_sharded_grad_dtype_override:
                whole.grad_dtype = parameter.sharded_grad_dtype
            self._wholes[id(parameter)] = whole
            # Which of them a module has depends on when it is captured.
            for known in (parameter.sharded_param, getattr(parameter, "_unsharded_param", None)):
                if known is not None:
                    memo[id(known)] = whole
        hooks = {number for state in self._states for number in self._torch.hooks(state)}
        for module in (module for state in self._states for module in state._modules):
            kind = type(module).__mro__[module._orig_cls_mro_index]
            shell = memo[id(module)] = kind.__new__(kind)
            self._shells.append((module, shell))
            for name in _HOOKS:
                held = OrderedDict((key, hook) for key, hook in getattr(module, name).items() if key not in hooks)
                memo[id(getattr(module, name))] = copy.copy(held) if not held else copy.deepcopy(held, memo)
            memo.update((id(getattr(module, name)), OrderedDict()) for name in _STATE_DICTS)

    def is_shard(self, tensor: torch.Tensor, memo: dict[int, Any]) -> bool:
        """Whether a whole parameter stands for it."""
        return isinstance(memo.get(id(tensor)), nn.Parameter)

    def fill(self, memo: dict[int, Any]) -> None:
        """Gives the copies of sharded modules what these hold."""
        for module, shell in self._shells:
            held = {name: value for name, value in vars(module).items() if name not in self._torch.keys}
            shell.__dict__.update({name: copy.deepcopy(value, memo) for name, value in held.items()})

    # ---- the copy, sharded ----

    def repeat(self, memo: dict[int, Any]) -> dict[int, tuple[Any, Any]]:
        """Shards the copy. Gives the model's shards, each with the copy's."""
        pairs: dict[int, tuple[Any, Any]] = {}
        wholes = {id(whole) for whole in self._wholes.values()}
        ignored = {parameter for parameter in memo[id(self._model)].parameters() if id(parameter) not in wholes}
        mesh = next((group.mesh_info.mesh for state in self._states for group in state._fsdp_param_groups), None)
        with _Answers():
            made = []
            for state in self._states:
                modules = [memo[id(module)] for module in state._modules]
                made.append(self._torch.shard(state, modules, mesh, self._placement(state), ignored))
            for state, new in zip(self._states, made, strict=True):
                self._set(state, new, made)
                for old, again in zip(_parameters(state), _parameters(new), strict=True):
                    pairs[id(old.sharded_param)] = (old.sharded_param, again.sharded_param)
                    again.keep_unsharded_storage = old.keep_unsharded_storage
            self._begin(made)
        return pairs

    def _placement(self, state: Any) -> Any:
        placements = {id(self._wholes[id(parameter)]): parameter.fsdp_placement for parameter in _parameters(state)}
        return lambda parameter: placements.get(id(parameter))

    def _set(self, state: Any, new: Any, made: list[Any]) -> None:
        for old, again in zip(state._fsdp_param_groups, new._fsdp_param_groups, strict=True):
            for name in _OF_GROUP:
                setattr(again, name, getattr(old, name))
        for name in _OF_CONTEXT:
            setattr(new._state_ctx, name, getattr(state._state_ctx, name))
        for name in ("_states_to_forward_prefetch", "_states_to_backward_prefetch"):
            setattr(new, name, [made[self._states.index(other)] for other in getattr(state, name)])

    def _begin(self, made: list[Any]) -> None:
        """As after the first step: the memory that weights are gathered into is known, and released."""
        inside: set[int] = set()
        for state in reversed(made):
            if id(state) not in inside and len(state._modules) == 1:
                state._lazy_init()
                inside |= {id(other) for other in state._state_ctx.all_states}
        for state in made:
            for group in state._fsdp_param_groups:
                group.lazy_init()
                group.unshard()
                group.wait_for_unshard()
                group.reshard()
        self.made = made

    def _parameters(self) -> list[Any]:
        return [parameter for state in self._states for parameter in _parameters(state)]

    # ---- what the recorder asks for ----

    def running_on(self, streams: Streams) -> contextlib.AbstractContextManager[None]:
        """While it is entered, the copy runs on these streams."""
        return self._torch.running_on(streams)

    def watching(self, recorder: Recorder) -> contextlib.AbstractContextManager[None]:
        """While it is entered, a recorder knows what is done to gather and reduce."""
        return self._torch.watching(recorder)

    def stream_names(self) -> dict[int, str]:
        """What the streams are for."""
        return self._torch.names(self.made)

    def gathered(self) -> list[torch.Tensor]:
        """What the weights of the copy are gathered into."""
        return [tensor for state in self.made for parameter in _parameters(state) for tensor in parameter.all_gather_outputs]

    def unsharded(self) -> list[nn.Parameter]:
        """The whole parameters of the copy."""
        return [parameter.unsharded_param for state in self.made for parameter in _parameters(state)]

    def shards(self) -> list[torch.Tensor]:
        """The padded shards of the copy."""
        return [parameter._sharded_param_data for state in self.made for parameter in _parameters(state)]


def _parameters(state: Any) -> list[Any]:
    return [parameter for group in state._fsdp_param_groups for parameter in group.fsdp_params]


class _Answers(TorchDispatchMode):
    """Answers collectives where nothing is recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in (*COLLECTIVES, PACKING):
            return waited(func, args) if is_wait(func) else answer(func, args, kwargs)
        return func(*args, **kwargs)
