"""Drop-in for `torch.distributed._tools.mod_tracker`: which modules run, forward or backward."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

__all__ = ["ModTracker"]

_OUTSIDE = "Global"


class ModTracker:
    """A context manager that knows which modules run, forward or backward, by their full names.

    `parents` has the names of all that run now, and always "Global". A module's backward begins with the first gradient of
    its outputs and ends when all of its positional inputs have theirs; without inputs that need one, it lasts until the whole
    backward is over.
    """

    parents: set[str]
    """The names of the modules that run now."""

    def __init__(self) -> None:
        self.parents = {_OUTSIDE}
        self._active_module_cnt: dict[str, int] = {}
        self._known_modules: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._seen_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._has_callback = False
        self._post_bw_callbacks_to_enqueue: list[Callable[..., None]] = []
        self._handles: tuple[Any, ...] = ()
        self.clear_user_hooks()

    # What a subclass may want to hear of.

    def _entered(self, name: str) -> None:
        """A module of this name runs that did not."""

    def _left(self, name: str) -> None:
        """No module of this name runs any more."""

    def _left_all(self) -> None:
        """A backward is over: no module runs any more."""

    @property
    def is_bw(self) -> bool:
        """Whether a backward runs."""
        return torch._C._current_graph_task_id() != -1

    def get_known_fqn(self, mod: nn.Module) -> str | None:
        """The full name of a module: the class of the model that was called, and the path in it. None if it never ran."""
        return self._known_modules.get(mod)

    def register_user_hooks(
        self,
        pre_fw_hook: Callable[..., Any] | None = None,
        post_fw_hook: Callable[..., Any] | None = None,
        pre_bw_hook: Callable[..., Any] | None = None,
        post_bw_hook: Callable[..., Any] | None = None,
    ) -> None:
        """Calls these around the forward and the backward of every module.

        They get `(module, inputs)`, `(module, inputs, outputs)`, `(module, gradients of outputs)` and `(module, gradients of
        inputs)`; in backward the module is None if it is gone. While they run, the module is among `parents`.
        """
        given = {"pre_fw": pre_fw_hook, "post_fw": post_fw_hook, "pre_bw": pre_bw_hook, "post_bw": post_bw_hook}
        for name, hook in given.items():
            if hook is not None and getattr(self, f"_user_{name}_hook") is not None:
                raise AssertionError(
                    f"Only one {name}_hook can be registered at a time"
                    " Clear the existing hook by calling ``clear_user_hooks`` before registering a new one"
                )
            setattr(self, f"_user_{name}_hook", hook)

    def clear_user_hooks(self) -> None:
        """Calls no hooks any more."""
        self._user_pre_fw_hook: Callable[..., Any] | None = None
        self._user_post_fw_hook: Callable[..., Any] | None = None
        self._user_pre_bw_hook: Callable[..., Any] | None = None
        self._user_post_bw_hook: Callable[..., Any] | None = None

    def _name(self, module: nn.Module) -> str:
        name = self._known_modules.get(module)
        if name is None:
            name = self._known_modules[module] = type(module).__name__
        if module not in self._seen_modules:
            for child, part in module.named_children():
                self._known_modules[part] = f"{name}.{child}"
                self._name(part)
            self._seen_modules.add(module)
        return name

    def _enter(self, name: str) -> None:
        if name in self.parents:
            if not self.is_bw:
                warnings.warn(
                    "The module hierarchy tracking maybe be messed up. Please file a bug to PyTorch, if it is the case.",
                    stacklevel=3,
                )
            self._active_module_cnt[name] += 1
        else:
            self._active_module_cnt[name] = 1
            self.parents.add(name)
            self._entered(name)

    def _leave(self, name: str) -> None:
        if name in self.parents:
            self._active_module_cnt[name] -= 1
            if self._active_module_cnt[name] == 0:
                self.parents.remove(name)
                self._left(name)
        elif not self.is_bw:
            # In backward it may be: some inputs and outputs have no gradients.
            raise RuntimeError("The Module hierarchy tracking is wrong. Report a bug to PyTorch")

    def _begins_backward(self, module: weakref.ref[nn.Module], name: str) -> Callable[..., None]:
        def begin(*gradients: Any) -> None:
            self._await_end_of_backward()
            self._enter(name)
            if self._user_pre_bw_hook is not None:
                self._user_pre_bw_hook(module(), gradients)

        return begin

    def _ends_backward(self, module: weakref.ref[nn.Module], name: str) -> Callable[..., None]:
        def end(*gradients: Any) -> None:
            if self._user_post_bw_hook is not None:
                self._user_post_bw_hook(module(), gradients)
            self._leave(name)

        return end

    def _await_end_of_backward(self) -> None:
        if self._has_callback:
            return
        engine = torch.autograd.Variable._execution_engine
        for callback in reversed(self._post_bw_callbacks_to_enqueue):
            engine.queue_callback(callback)
        self._post_bw_callbacks_to_enqueue.clear()

        def over() -> None:
            self.parents = {_OUTSIDE}
            self._has_callback = False
            self._left_all()

        engine.queue_callback(over)
        self._has_callback = True

    def _fw_pre_hook(self, module: nn.Module, inputs: Any) -> None:
        if _is_compiled():
            return
        name = self._name(module)
        self._enter(name)
        if self._user_pre_fw_hook is not None:
            self._user_pre_fw_hook(module, inputs)
        if self.is_bw:
            return
        ends = self._ends_backward(weakref.ref(module), name)
        if tensors := _with_gradients(inputs):
            register_multi_grad_hook(tensors, ends)
        else:
            self._post_bw_callbacks_to_enqueue.append(ends)

    def _fw_post_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if _is_compiled():
            return
        name = self._name(module)
        if self._user_post_fw_hook is not None:
            self._user_post_fw_hook(module, inputs, outputs)
        self._leave(name)
        if not self.is_bw and (tensors := _with_gradients(outputs)):
            register_multi_grad_hook(tensors, self._begins_backward(weakref.ref(module), name), mode="any")

    def __enter__(self) -> ModTracker:
        self._handles = (
            register_module_forward_pre_hook(self._fw_pre_hook),
            register_module_forward_hook(self._fw_post_hook, always_call=True),
        )
        return self

    def __exit__(self, *args: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = ()


def _with_gradients(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.requires_grad]


def _is_compiled() -> bool:
    """Whether a module that was compiled runs. Where the compiler was never imported, there is none."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._is_in_optimized_module()
