"""The module tree of the trace, and the calls of its modules."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from rematic._model.forwards import STEP, forward_word
from rematic._model.signature import Signature
from rematic._model.trees import device_tensors, map_tensors

from .recorder import Recorder

_graph_task = torch._C._current_graph_task_id

_GLOBAL_HOOKS = (modules._global_forward_pre_hooks, modules._global_forward_hooks)

class ModuleTree:
    """The modules of one model, with the storages of their parameters and buffers."""

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self.model = model
        self.rows: list[dict[str, Any]] = []
        self.row_of: dict[int, int] = {}
        self.paths: list[str] = []
        self.modules: list[nn.Module] = []
        self._add(model, type(model).__name__, None, recorder)

    def _add(self, module: nn.Module, name: str, parent: int | None, recorder: Recorder) -> None:
        if id(module) in self.row_of:
            return  # a module that stands in two places is listed where it is met first
        index = self.row_of[id(module)] = len(self.rows)
        self.modules.append(module)
        row: dict[str, Any] = {"name": name, "class": type(module).__name__, "parent": parent}
        self.paths.append(name if parent is None else f"{self.paths[parent]}.{name}")
        for kind, category, tensors in (
            ("parameters", "parameter", module._parameters),
            ("buffers", "buffer", module._buffers),
        ):
            held = [
                [key, recorder.storage_before_step(tensor, category), recorder.layout(tensor)]
                for key, tensor in tensors.items()
                if tensor is not None and tensor.is_meta
            ]
            if held:
                row[kind] = held
        self.rows.append(row)
        for key, child in module._modules.items():
            if child is not None:
                self._add(child, key, index, recorder)


def _remove(handles: list[RemovableHandle]) -> None:
    # The collector of cycles does not see through hooks: what they lead to, even the user's weights, would stay.
    for handle in handles:
        handle.remove()
    handles.clear()


class CallWatch:
    """Notes when modules are called and return, and when the gradients of their outputs and inputs are there."""

    def __init__(self, tree: ModuleTree, recorder: Recorder) -> None:
        self._tree = tree
        self._recorder = recorder
        # Calls whose positional inputs need no gradient: their backward ends with the whole backward.
        self._open_ended: list[int] = []
        self._entered: dict[int, bool] = {}
        self._callback_queued = False
        self._handles: list[RemovableHandle] = []
        self.first_exit: int | None = None
        self._trains = tree.model.training
        self.forwards: list[str] = []
        # What each of them is given.
        self.inputs: list[str] = []
        # Whether the whole model was in evaluation mode in the first forward with gradients.
        self.evaluates = False
        # The innermost module in which something failed.
        self.failed: str | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it is entered, the calls of all modules of the tree are noted."""
        original = nn.Module.__call__
        rows = self._tree.row_of
        watch = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            row = rows.get(id(module))
            # A forward that runs again during backward belongs to that backward.
            if row is None or _graph_task() != -1:
                if not watch._recorder.in_optimizer:
                    watch._recorder.after_optimizer = False
                return original(module, *args, **kwargs)
            if not watch._recorder.call_stack:
                args, kwargs = map_tensors((args, kwargs), watch._recorder.on_device)
            if module._forward_pre_hooks or module._forward_hooks or any(_GLOBAL_HOOKS):
                with watch._inside_hooks(module, row):
                    return original(module, *args, **kwargs)
            return watch._noted(row, functools.partial(original, module), args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            _remove(self._handles)

    def _noted(self, row: int, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = self._enter(row, args, kwargs)
        try:
            result = run(*args, **kwargs)
        except Exception:
            if self.failed is None:
                self.failed = self._tree.paths[row]
            raise
        self._exit(number, result)
        return result

    @contextlib.contextmanager
    def _inside_hooks(self, module: nn.Module, row: int) -> Iterator[None]:
        """While it is entered, the module's next forward is noted. Its forward hooks run outside of a checkpoint, so they
        belong to the caller."""
        own = module.__dict__.get("forward")
        forward = module.forward

        def restore() -> None:
            module.__dict__.pop("forward", None)
            if own is not None:
                module.__dict__["forward"] = own

        def noted(*args: Any, **kwargs: Any) -> Any:
            restore()
            return self._noted(row, forward, args, kwargs)

        module.__dict__["forward"] = noted
        try:
            yield
        finally:
            restore()

    def _enter(self, row: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        if not self._recorder.call_stack:
            self._begin_forward(row)
            self.inputs.append(str(Signature.of(self._tree.modules[row], args, kwargs)))
        inputs = device_tensors(args)
        number = self._recorder.enter(row, inputs, device_tensors(kwargs) if kwargs else [])
        events = self._recorder.events
        last: list[int] = []

        def arrived(_: Tensor) -> None:
            # The last gradient counts, and only the engine knows which will be the last.
            if last:
                events[last.pop()] = None
            last.append(len(events))
            events.append({"exit_backward": number})
            self._entered[number] = True

        watched = [tensor for tensor in inputs if tensor.requires_grad]
        for tensor in watched:
            self._handles.append(tensor.register_hook(arrived))
        if not watched:
            self._open_ended.append(number)
        return number

    def _begin_forward(self, row: int) -> None:
        if self.forwards and self._recorder.stepped:
            self.forwards.append(STEP)
        self._recorder.stepped = False
        if not self.forwards and torch.is_grad_enabled():
            # Parts of a model in training may evaluate, as batch norm that is frozen.
            self.evaluates = not any(module.training for module in self._tree.model.modules())
        evaluates = self._trains and not self._tree.model.training
        trains = torch.is_grad_enabled() and not evaluates
        self.forwards.append(forward_word(trains, self._tree.paths[row].partition(".")[2]))

    def _exit(self, number: int, result: Any) -> None:
        outputs = device_tensors(result)
        recorder = self._recorder
        recorder.exit(number, outputs)
        if not recorder.call_stack and self.first_exit is None:
            self.first_exit = len(recorder.events)

        def arrived(_: Tensor) -> None:
            if number not in self._entered:
                self._entered[number] = False
                recorder.events.append({"enter_backward": number})
                if not self._callback_queued:
                    self._callback_queued = True
                    torch.autograd.Variable._execution_engine.queue_callback(self._backward_over)

        for tensor in outputs:
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(arrived))

    def _backward_over(self) -> None:
        self._callback_queued = False
        missing = [number for number, left in self._entered.items() if not left and number not in self._open_ended]
        for number in missing + self._open_ended[::-1]:
            self._recorder.events.append({"exit_backward": number})
            self._entered[number] = True
        self._open_ended.clear()


class GradientWatch:
    """Notes when a parameter's gradient comes to be."""

    def __init__(self, parameters: Iterable[Tensor], recorder: Recorder) -> None:
        self._recorder = recorder
        self.rows: set[int] = set()
        self.trained: set[int] = set()
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it is entered, the gradients of the parameters are noted."""
        handles: list[RemovableHandle] = []
        for parameter in self._parameters:
            if parameter.is_leaf:
                handles.append(parameter.register_hook(self._arrived))
                handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
        try:
            yield
        finally:
            _remove(handles)

    def _arrived(self, gradient: Tensor) -> None:
        if not gradient.is_meta or gradient.layout is not torch.strided:
            return
        row = self._recorder.row_of(gradient)
        if row is not None:
            self.rows.add(row)
            self._recorder.recategorize(gradient, "gradient")

    def look_at(self, parameters: Iterable[Tensor]) -> None:
        """Notes gradients that were set by hand."""
        for parameter in parameters:
            if parameter.grad is not None and id(parameter) not in self.trained:
                self._accumulated(parameter)

    def _accumulated(self, parameter: Tensor) -> None:
        self.trained.add(id(parameter))
        gradient = parameter.grad
        if gradient is not None and self._recorder.row_of(gradient) not in self.rows:
            self._arrived(gradient)
