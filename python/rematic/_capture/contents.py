"""What storages without data would hold.

Values live in storages: a view needs no care, and a write through any alias is a write into what all of them show. A
storage of the step carries its content: how it came to be, as operators on other contents. It is computed on the CPU if
somebody asks, and holds no tensor of the step. What a storage without a content holds depends on weights.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

# No tensor of more bytes is computed.
MAX_BYTES = 1 << 28
# Bytes up to this many are kept; what is larger is computed again if it is asked for again.
KEPT_BYTES = 1 << 20


class Unknown:
    """Why a value is not known. Of several reasons the one of the highest rank counts: it would be left."""

    __slots__ = ("rank", "cause", "remedy")

    def __init__(self, rank: int, cause: str, remedy: str) -> None:
        self.rank = rank
        self.cause = cause
        self.remedy = remedy


WEIGHTS = Unknown(
    4,
    "depends on the model's weights",
    "Change the model so that shapes and branches do not hang on what it computes, or leave this line out while it is "
    "captured.",
)
RANDOM = Unknown(
    3,
    "depends on random numbers",
    "Draw them on the CPU before the step, and give them as an input.",
)
ON_META = Unknown(
    2,
    "depends on a tensor on the meta device, which has no values",
    "Make it on the CPU: for a buffer, build the model outside of torch.device('meta').",
)
META_INPUT = Unknown(
    1,
    "depends on an input on the meta device, which has no values",
    "Give the inputs as real tensors on the CPU.",
)


class NotComputed(Exception):
    """A value is known, but cannot be computed."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.unknown = Unknown(0, cause, remedy)


# What a value depends on: nothing but what is known; something assumed; or a choice that real weights would rather make.
CERTAIN, ASSUMED, CHOSEN = range(3)


class Content:
    """What one storage holds at one time: bytes, or a result of an operation. Without either nobody has written it."""

    __slots__ = ("nbytes", "assumed", "_operation", "_position", "_bytes", "__weakref__")

    def __init__(self, nbytes: int, operation: Operation | None = None, position: int = 0) -> None:
        self.nbytes = nbytes
        # How much of it is an assumption.
        self.assumed = CERTAIN if operation is None else operation.assumed
        self._operation = operation
        self._position = position
        self._bytes: Any = None

    @classmethod
    def of(cls, storage: torch.UntypedStorage, held: bool) -> Content:
        """What a real storage holds now. If it must not be held, it is copied if it is small, and may go otherwise."""
        made = cls(storage.nbytes())
        if held:
            made._bytes = storage
        else:
            made._bytes = copied(storage) if made.nbytes <= KEPT_BYTES else weakref.ref(storage)
        return made

    def bytes(self) -> torch.UntypedStorage | None:
        """The bytes, if they need not be computed."""
        if not callable(self._bytes):
            return self._bytes
        storage: torch.UntypedStorage | None = self._bytes()
        if storage is None:
            raise NotComputed(
                f"comes from a tensor of {self.nbytes} bytes on the CPU that was written or is gone",
                "Keep that tensor until its value is read.",
            )
        return storage

    def keep(self, storage: torch.UntypedStorage) -> None:
        """From now on it is these bytes."""
        self._bytes = storage
        self._operation = None

    def part_from(self, storage: torch.UntypedStorage) -> None:
        """The storage is about to be written."""
        held = self._bytes() if callable(self._bytes) else self._bytes
        if held is storage:
            self._bytes = copied(storage) if self.nbytes <= MAX_BYTES else _gone

    @property
    def operation(self) -> Operation | None:
        """What makes it."""
        return self._operation

    @property
    def position(self) -> int:
        """Which of the operation's results it is."""
        return self._position


class Layout:
    """How a tensor lies on its storage."""

    __slots__ = ("_dtype", "shape", "_strides", "_offset", "_nbytes", "_conjugate", "_negative")

    def __init__(self, tensor: Tensor) -> None:
        self._dtype = tensor.dtype
        self.shape = tensor.shape
        self._strides = tensor.stride()
        self._offset = tensor.storage_offset()
        self._nbytes = tensor.untyped_storage().nbytes()
        self._conjugate = tensor.is_conj()
        self._negative = tensor.is_neg()

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        """The tensor on real bytes."""
        made = torch.empty(0, dtype=self._dtype).set_(storage, self._offset, self.shape, self._strides)
        if self._conjugate:
            made = made.conj()
        return torch._neg_view(made) if self._negative else made

    def marks_on(self, written: torch.UntypedStorage) -> Tensor:
        """Its bytes among those of a storage that marks which are written."""
        size = self._dtype.itemsize
        strides = (*(stride * size for stride in self._strides), 1)
        return torch.empty(0, dtype=torch.uint8).set_(written, self._offset * size, (*self.shape, size), strides)

    def bytes_of(self, real: Tensor) -> torch.UntypedStorage:
        """Bytes on which the tensor equals a real one, which may lie in another way."""
        if real.shape != self.shape or real.dtype != self._dtype:
            raise NotComputed(
                f"cannot be computed: the CPU makes {tuple(real.shape)} of {real.dtype}, and the meta device "
                f"{tuple(self.shape)} of {self._dtype}",
                "Leave this line out while the model is captured.",
            )
        storage = real.untyped_storage()
        lies_so = real.stride() == self._strides and real.storage_offset() == self._offset
        if lies_so and storage.nbytes() == self._nbytes and not real.is_conj() and not real.is_neg():
            return storage
        fresh = torch.UntypedStorage(self._nbytes)
        self.on(fresh).copy_(real)
        return fresh


def _gone() -> None:
    """Stands for bytes that nobody has any more."""


class View:
    """A tensor on a content."""

    __slots__ = ("content", "layout")

    def __init__(self, tensor: Tensor, content: Content) -> None:
        self.content = content
        self.layout = Layout(tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the tensor."""
        return self.layout.shape

    def check_written(self, memory: Memory) -> None:
        """Refuses to read bytes that nobody has written."""
        written = memory.written.get(self.content)
        if written is not None and not bool(self.layout.marks_on(written).all()):
            raise NotComputed(
                "depends on memory that was never written (torch.empty)",
                "Fill the tensor before it is read.",
            )

    def compute(self) -> Tensor:
        """The tensor's value, on the CPU. It may be that of others too: whoever asks does not write to it."""
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            memory = _computed(self.content)
            self.check_written(memory)
            return self.layout.on(memory.bytes[self.content])


class Memory:
    """Bytes of contents while others are computed. Where part of them was never written, bytes that mark the others."""

    __slots__ = ("bytes", "written")

    def __init__(self) -> None:
        self.bytes: dict[Content, torch.UntypedStorage] = {}
        self.written: dict[Content, torch.UntypedStorage] = {}

    def free(self, content: Content) -> None:
        """Nobody needs it any more."""
        del self.bytes[content]
        self.written.pop(content, None)


class Operation:
    """An operator on contents. Its results are those of its outputs, and then those of the contents that it writes."""

    __slots__ = ("assumed", "_func", "_args", "_kwargs", "_views", "_written", "_outputs", "_filled", "_assume")

    def __init__(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        filled: tuple[View, ...] = (),
        assume: Callable[[], None] | None = None,
        assumed: int = ASSUMED,
    ) -> None:
        """Among the arguments, views stand for tensors; `filled` are those that it writes and does not read. `assume` is
        told if the result is asked for; `assumed` is what it then depends on."""
        self._func = func
        self._args = args
        self._kwargs = kwargs
        self._views = list(_views_in((args, kwargs)))
        self._written: list[Content] = []
        self._outputs: dict[int, Layout] = {}
        self._filled = filled
        self._assume = assume
        own = CERTAIN if assume is None else assumed
        self.assumed: int = max((own, *(view.content.assumed for view in self._views)))

    @property
    def contents(self) -> Iterator[Content]:
        """What it reads."""
        return (view.content for view in self._views)

    def writes(self, content: Content) -> Content:
        """What becomes of a content that it writes."""
        if content not in self._written:
            self._written.append(content)
        return Content(content.nbytes, self, -1 - self._written.index(content))

    def makes(self, position: int, output: Tensor) -> Content:
        """The content of one of its outputs that has a storage of its own."""
        self._outputs[position] = Layout(output)
        return Content(output.untyped_storage().nbytes(), self, position)

    def run(self, memory: Memory, wanted: Content) -> None:
        """Runs it, for one of its results."""
        if self._assume is not None:
            self._assume()
        for view in self._views:
            if view not in self._filled:
                view.check_written(memory)
        taken = {content: copied(memory.bytes[content]) for content in self._written}
        try:
            out = self._func(*_real(self._args, memory, taken), **_real(self._kwargs, memory, taken))
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            raise NotComputed(
                f"cannot be computed: `{self._func}` fails on the CPU ({type(error).__name__}: {first})",
                "Check the values of the inputs, or leave this line out while the model is captured.",
            ) from error
        if wanted.position >= 0:
            made = out if isinstance(out, (tuple, list)) else (out,)
            memory.bytes[wanted] = self._outputs[wanted.position].bytes_of(made[wanted.position])
            return
        before = self._written[-1 - wanted.position]
        memory.bytes[wanted] = taken[before]
        if before in memory.written:
            marks = copied(memory.written[before])
            for view in self._filled:
                if view.content is before:
                    view.layout.marks_on(marks).fill_(1)
            if not bool(_flat(marks).all()):
                memory.written[wanted] = marks


def copied(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Bytes of its own."""
    with _disable_current_modes():
        return torch.UntypedStorage(storage.nbytes()).copy_(storage, non_blocking=False)


def _flat(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def _views_in(value: Any) -> Iterator[View]:
    if isinstance(value, View):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _views_in(item)
    elif isinstance(value, dict):
        yield from _views_in(list(value.values()))


def _real(value: Any, memory: Memory, taken: dict[Content, torch.UntypedStorage]) -> Any:
    if isinstance(value, View):
        return value.layout.on(taken.get(value.content) or memory.bytes[value.content])
    if isinstance(value, (list, tuple)):
        return [_real(item, memory, taken) for item in value]
    if isinstance(value, dict):
        return {key: _real(item, memory, taken) for key, item in value.items()}
    return value


def _order(wanted: Content) -> list[Content]:
    """The contents that have to be computed, each after those that it is made of. Chains may be long: no recursion."""
    order: list[Content] = []
    seen: set[Content] = set()
    stack: list[tuple[Content, bool]] = [(wanted, False)]
    while stack:
        content, is_ready = stack.pop()
        if is_ready:
            order.append(content)
        elif content not in seen:
            seen.add(content)
            stack.append((content, True))
            if content.operation is not None:
                stack.extend((operand, False) for operand in content.operation.contents)
    return order


def _computed(wanted: Content) -> Memory:
    order = _order(wanted)
    uses = Counter(
        operand for content in order if content.operation is not None for operand in set(content.operation.contents)
    )
    uses[wanted] += 1
    memory = Memory()
    for content in order:
        operation = content.operation
        if operation is None:
            _lay_leaf(content, memory)
            continue
        if content.nbytes > MAX_BYTES:
            raise NotComputed(
                f"is made of a tensor of {content.nbytes} bytes; up to {MAX_BYTES} bytes are computed",
                "Capture a smaller batch, or leave this line out while the model is captured.",
            )
        operands = set(operation.contents)
        operation.run(memory, content)
        if content.nbytes <= KEPT_BYTES and content not in memory.written:
            content.keep(memory.bytes[content])
        for operand in operands:
            uses[operand] -= 1
            if not uses[operand]:
                memory.free(operand)
    return memory


def _lay_leaf(content: Content, memory: Memory) -> None:
    storage = content.bytes()
    if storage is not None:
        memory.bytes[content] = storage
        return
    memory.bytes[content] = _zeros(content.nbytes)
    memory.written[content] = _zeros(content.nbytes)


def _zeros(nbytes: int) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(nbytes)
    _flat(storage).fill_(0)
    return storage
