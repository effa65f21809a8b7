"""Values for models that look at them.

Meta tensors have none. But what comes from inputs and buffers that are real, or from operators like `arange`, can be
known: its storage carries how it was made, and if its value is asked for, it is computed on the CPU. What depends on weights is
told by a real run of the step, if there can be one. Where a model routes by such numbers (the experts of a mixture), an even
spread is assumed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rematic._model.trees import tensors_in

from .choices import CHOICES
from .contents import CERTAIN, CHOSEN, ON_META, RANDOM, WEIGHTS, Content, NotComputed, Operation, Unknown, View
from .effects import Effect
from .errors import UnknownValue
from .reading import reader_of
from .readings import MOVES, ONE_HOT, Place, Reading, shapes_of

aten = torch.ops.aten
_HOST = torch.device("cpu")
_PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer)
# A fact of the trace.
SEEN = "values that depend on weights or random numbers are those of one real run"
# The attribute of a storage that says what it holds.
_CONTENT = "_rematic_content"


class Values(TorchDispatchMode):
    """Answers operators that need values, and follows what storages hold."""

    def __init__(self, inside_model: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.assumptions: set[str] = set()
        self.inside_model = inside_model
        # Whether the CPU is imitated.
        self.is_on_cpu = False
        # Told which tensors Python looks at.
        self.sees: Callable[[Tensor], None] = lambda tensor: None
        # What a real run has read, if there was one.
        self.place = Place()
        # Optimizers read other numbers on other devices: what they read is not counted.
        self.is_counting: Callable[[], bool] = lambda: True
        # A tensor whose value is known for the moment, and whether it is to what is computed from it too.
        self._told: tuple[Tensor, Tensor, bool] | None = None
        self._effects: dict[Any, Effect] = {}
        # Real storages and those that stand for them: a write into one is a write into the other.
        self._stand_ins: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self._originals: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self._outdated: weakref.WeakSet[Any] = weakref.WeakSet()
        # Contents that are what a real storage holds, until somebody writes it.
        self._shared: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Content]] = weakref.WeakKeyDictionary()

    # ---- what is known ----

    def know(self, tensor: Tensor, value: Tensor, on_meta: Unknown = ON_META) -> None:
        """The tensor stands for another one. What that holds is known if it is real."""
        storage = tensor.untyped_storage()
        if hasattr(storage, _CONTENT):
            return
        if value.is_meta:
            # A sketch of it knows how it was made.
            made = getattr(value.untyped_storage(), _CONTENT, None)
            setattr(storage, _CONTENT, made if isinstance(made, Content) else on_meta)
            return
        original = value.untyped_storage()
        setattr(storage, _CONTENT, self._shared_content(original, held=True))
        self._stand_ins[original] = weakref.ref(storage)
        self._originals[storage] = weakref.ref(original)

    def have(self, tensor: Tensor, value: Tensor) -> None:
        """The tensor was made with this value."""
        setattr(tensor.untyped_storage(), _CONTENT, Content.of(value.untyped_storage(), held=True))

    def meet(self, storage: torch.UntypedStorage) -> None:
        """The step uses a storage on the meta device that it has not made."""
        if not hasattr(storage, _CONTENT):
            setattr(storage, _CONTENT, ON_META)

    def forget(self, storage: torch.UntypedStorage) -> None:
        """What the storage holds depends on weights."""
        storage.__dict__.pop(_CONTENT, None)

    def content_of(self, storage: torch.UntypedStorage) -> Content | Unknown | None:
        """What a storage of the step holds now. None if that depends on weights."""
        return getattr(storage, _CONTENT, None)

    def hold(self, storage: torch.UntypedStorage, content: Content | Unknown | None) -> None:
        """A storage of the step holds this now."""
        if content is not None:
            setattr(storage, _CONTENT, content)
        else:
            self.forget(storage)

    def view_of(self, tensor: Tensor) -> View | Unknown:
        """How to compute the tensor's value, or why that cannot be."""
        if type(tensor) not in _PLAIN_TYPES or tensor.layout is not torch.strided:
            return WEIGHTS
        if self._told is not None and self._told[0] is tensor:
            return View(self._told[1], Content.of(self._told[1].untyped_storage(), held=True))
        storage = tensor.untyped_storage()
        if not tensor.is_meta:
            return View(tensor, self._shared_content(storage, held=False))
        content = getattr(storage, _CONTENT, None)
        if content is None:
            return WEIGHTS
        return content if type(content) is Unknown else View(tensor, content)

    def is_known(self, tensor: Tensor) -> bool:
        """Whether the tensor's value can be asked for."""
        if type(tensor) in _PLAIN_TYPES and not tensor.is_meta:
            return tensor.layout is torch.strided
        return isinstance(self.view_of(tensor), View)

    def need(self, tensor: Tensor, func: Any) -> Tensor:
        """The tensor's value, on the CPU, which an operator needs. It is not to be written to."""
        found = self.view_of(tensor)
        if isinstance(found, View):
            if self._told is not None and self._told[0] is tensor:
                self._use_run()
            try:
                return found.compute()
            except NotComputed as error:
                found = error.unknown
        raise self._unknown(tensor, func, found)

    def _unknown(self, tensor: Tensor, func: Any, why: Unknown) -> UnknownValue:
        return UnknownValue(
            f"The model looks at the value of a {str(tensor.dtype).removeprefix('torch.')} tensor of shape "
            f"{tuple(tensor.shape)} (`{func}`), which {why.cause}",
            why.remedy,
            is_told_by_run=why.rank >= RANDOM.rank,
        )

    def read(self, tensor: Tensor, func: Any) -> Tensor:
        """The tensor's value, on the CPU. Around the model a number is read to be logged, or to ask whether something
        went wrong: nothing did, and what is not known reads as zero."""
        if not self.inside_model() and not self.is_known(tensor):
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=_HOST)
        return self.need(tensor, func)

    # ---- what a real run has read ----

    def reading(self, name: str, shapes: tuple[tuple[int, ...], ...]) -> Reading | None:
        """The step reads: what a real run has read here, if there was one."""
        return self.place.next(name, shapes) if self.is_counting() else None

    def told_by(self, reading: Reading) -> Any:
        """Takes what a real run has read."""
        self._use_run()
        return reading.result

    def _use_run(self) -> None:
        self.place.is_used = True
        self.assumptions.add(SEEN)

    def assumed(self, tensors: Iterable[Any]) -> int:
        """What the values of some tensors hang on, if all are known, and otherwise more than that."""
        worst = CERTAIN
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.is_meta:
                view = self.view_of(tensor)
                worst = max(worst, view.content.assumed if isinstance(view, View) else CHOSEN)
        return worst

    def check_choice(self, tensors: Iterable[Any], func: Any) -> None:
        """Refuses a value that is no more than assumed, where a real run would tell it."""
        if not self.place.can_run or not self.inside_model():
            return
        for tensor in tensors:
            if self.is_known(tensor) and self.assumed((tensor,)) == CHOSEN:
                raise self._unknown(tensor, func, WEIGHTS)

    @contextlib.contextmanager
    def telling(self, name: str, tensor: Tensor) -> Iterator[None]:
        """While it is entered, a function brings the tensor's value to Python."""
        reading = self.reading(name, shapes_of((tensor,)))
        outer = self._told
        if reading is not None and reading.result is not None and tensor.is_meta and self.assumed((tensor,)):
            self._told = (tensor, reading.result, name == ONE_HOT)
        try:
            if reading is None and name not in MOVES:
                self.check_choice((tensor,), name)
            if self._told is not outer and name == ONE_HOT:
                self._use_run()
            yield
        except UnknownValue as error:
            if reading is None:
                self.place.miss(error)
            raise
        finally:
            self._told = outer

    def is_current(self, tensor: Tensor) -> None:
        """A real tensor may be read though its stand-in was written."""
        self._outdated.discard(tensor.untyped_storage())

    def check_current(self, tensor: Tensor, func: Any) -> None:
        """Refuses to read a real tensor whose stand-in was written."""
        if self._outdated and self.inside_model() and tensor.untyped_storage() in self._outdated:
            raise UnknownValue(
                f"The model looks at the value of a tensor of shape {tuple(tensor.shape)} on the CPU (`{func}`), into "
                "which the step has written",
                "Read it before it is written, or give it to the model as an input.",
            )

    # ---- real storages ----

    def _shared_content(self, storage: torch.UntypedStorage, held: bool) -> Content:
        content = Content.of(storage, held)
        self._shared.setdefault(storage, weakref.WeakSet()).add(content)
        return content

    def _before_write(self, storage: torch.UntypedStorage) -> None:
        for content in self._shared.pop(storage, ()):
            content.part_from(storage)

    def _after_write(self, storage: torch.UntypedStorage) -> None:
        found = self._stand_ins.get(storage)
        stand_in = None if found is None else found()
        if stand_in is not None:
            setattr(stand_in, _CONTENT, self._shared_content(storage, held=True))

    # ---- operators ----

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator."""
        effect = self._effect(func)
        hosts: list[torch.UntypedStorage] = []
        if effect.writes:
            targets = effect.targets(args, kwargs)
            hosts = [tensor.untyped_storage() for tensor in targets if not tensor.is_meta and _is_plain(tensor)]
            for storage in hosts:
                self._before_write(storage)
        reader = reader_of(func)
        out = func(*args, **kwargs) if reader is None else reader(self, func, args, kwargs)
        for storage in hosts:
            self._after_write(storage)
        self.follow(func, args, kwargs, out)
        return out

    def _effect(self, func: Any) -> Effect:
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = Effect(func)
        return effect

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator has run."""
        effect = self._effect(func)
        if effect.is_none:
            return
        if effect.leaves_blank:
            if out.is_meta:
                setattr(out.untyped_storage(), _CONTENT, Content(out.untyped_storage().nbytes()))
            return
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        if effect.filling is not None:
            self._fill(out, effect.filling(args, kwargs))
            return
        unknown = self._unknown_among(args)
        if unknown is not WEIGHTS and kwargs:
            unknown = _worse(unknown, self._unknown_among(kwargs.values()))
        blank: Tensor | None = None
        if unknown is not None and effect.overwrites and args[0].is_meta and _is_whole(args[0]):
            # What lay there does not matter.
            blank = args[0]
            unknown = self._unknown_among(args[1:])
        if unknown is None or unknown.rank < RANDOM.rank:
            unknown = effect.unknown or unknown
        if unknown is not None:
            self._leave_unknown(unknown, effect, args, kwargs, outputs)
            choose = CHOICES.get(func)
            if choose is not None:
                choose(self, args, kwargs, outputs)
        elif effect.writes or any(type(output) is Tensor and output.is_meta for output in outputs):
            self._remember(effect, func, args, kwargs, outputs, blank)

    def _unknown_among(self, items: Iterable[Any]) -> Unknown | None:
        """Why the value of any of some arguments is not known."""
        worst: Unknown | None = None
        for item in items:
            if isinstance(item, Tensor):
                if item.layout is not torch.strided:
                    return WEIGHTS
                if not item.is_meta:
                    if type(item) not in _PLAIN_TYPES:
                        return WEIGHTS
                    continue
                if self._told is not None and self._told[0] is item and self._told[2]:
                    continue
                content = getattr(item.untyped_storage(), _CONTENT, None)
                if content is None:
                    return WEIGHTS
                if type(content) is Unknown:
                    worst = _worse(worst, content)
            elif isinstance(item, (list, tuple)):
                worst = _worse(worst, self._unknown_among(item))
                if worst is WEIGHTS:
                    return worst
        return worst

    def _fill(self, out: Tensor, filling: Any) -> None:
        if out.is_meta:
            keywords = {"dtype": out.dtype, "device": _HOST}
            operation = Operation(aten.full.default, (list(out.shape), filling), keywords)
            setattr(out.untyped_storage(), _CONTENT, operation.makes(0, out))

    def _leave_unknown(self, unknown: Unknown, effect: Effect, args: Any, kwargs: Any, outputs: Any) -> None:
        content = None if unknown is WEIGHTS else unknown
        if effect.writes:
            for tensor in effect.targets(args, kwargs):
                if tensor.is_meta:
                    self._write(tensor.untyped_storage(), content)
        if content is not None:
            for tensor in tensors_in(outputs):
                if tensor.is_meta and tensor.layout is torch.strided:
                    storage = tensor.untyped_storage()
                    if not hasattr(storage, _CONTENT):
                        setattr(storage, _CONTENT, content)

    def _write(self, storage: torch.UntypedStorage, content: Content | Unknown | None) -> None:
        if hasattr(storage, _CONTENT):
            original = self._originals.get(storage)
            real = None if original is None else original()
            if real is not None:
                self._outdated.add(real)
        elif content is None:
            return
        self.hold(storage, content)

    def _remember(
        self, effect: Effect, func: Any, args: Any, kwargs: Any, outputs: Any, blank: Tensor | None
    ) -> None:
        if blank is not None:
            setattr(blank.untyped_storage(), _CONTENT, Content(blank.untyped_storage().nbytes()))
        positional, keywords = self._described(args), self._described(kwargs)
        operation = Operation(func, positional, keywords, effect.filled(positional, keywords))
        written: dict[int, tuple[torch.UntypedStorage, Content]] = {}
        if effect.writes:
            for tensor in effect.targets(args, kwargs):
                if tensor.is_meta:
                    storage = tensor.untyped_storage()
                    written[storage._cdata] = (storage, operation.writes(getattr(storage, _CONTENT)))
            for storage, content in written.values():
                self._write(storage, content)
        for position, output in enumerate(outputs):
            if type(output) is Tensor and output.is_meta and output.layout is torch.strided:
                storage = output.untyped_storage()
                # Not every view says so in its schema.
                if not hasattr(storage, _CONTENT):
                    setattr(storage, _CONTENT, operation.makes(position, output))

    def _described(self, value: Any) -> Any:
        """Arguments with views of contents in place of tensors, for the CPU."""
        if isinstance(value, Tensor):
            return self.view_of(value)
        if isinstance(value, (list, tuple)):
            return [self._described(item) for item in value]
        if isinstance(value, dict):
            return {key: self._described(item) for key, item in value.items() if key != "pin_memory"}
        return _HOST if isinstance(value, torch.device) else value


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and type(tensor) in _PLAIN_TYPES


def _is_whole(tensor: Tensor) -> bool:
    """Whether the tensor covers its storage."""
    return tensor.is_contiguous() and tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def _worse(one: Unknown | None, other: Unknown | None) -> Unknown | None:
    if one is None or other is None:
        return one or other
    return one if one.rank >= other.rank else other
