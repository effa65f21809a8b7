"""Outputs that lie on the host between forward and backward.

Each way has a stream of its own, and copies run beside what is computed. Where bytes go and come back is fixed by the plan, so
that memory does not depend on how fast anything is: when the copy of a tensor has to be over, the compute stream waits for
it. Memory on the device is always taken and given back in the order of the compute stream.

On the CPU there is nothing to run beside: copies go to memory that PyTorch's allocator does not know, so that what it gives out is
what a device would.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rematic._core import Plan

if TYPE_CHECKING:
    from .kept import Kept

# Smaller storages stay where they are, as plans have it.
LEAST_BYTES = 1024

Event = Any


class Block:
    """A piece of the host's memory, of a power of two bytes as PyTorch's allocator of pinned memory has them."""

    def __init__(self, size: int, is_pinned: bool) -> None:
        self.size = size
        if is_pinned:
            self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        else:
            self.bytes = torch.frombuffer(bytearray(size), dtype=torch.uint8)
        # When what was copied from it last has arrived.
        self.read: Event | None = None


class Host:
    """The host's memory that a model's plan takes, and the streams to it and back."""

    def __init__(self) -> None:
        # Bytes that went to the host, and that came back.
        self.sent = 0
        self.received = 0
        # All blocks that were ever taken.
        self.taken = 0
        self._free: dict[tuple[int, bool], list[Block]] = {}
        self._streams: dict[tuple[torch.device, bool], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Host.__init__(self)

    def take(self, size: int, is_pinned: bool) -> Block:
        """A block for so many bytes."""
        rounded = 1 << (size - 1).bit_length()
        free = self._free.get((rounded, is_pinned))
        if free:
            return free.pop()
        self.taken += rounded
        return Block(rounded, is_pinned)

    def give_back(self, block: Block, is_pinned: bool) -> None:
        """The block is used no more, but by copies that are under way."""
        self._free.setdefault((block.size, is_pinned), []).append(block)

    def stream(self, device: torch.device, *, out: bool) -> Any:
        """The stream to the host, or the one back."""
        known = self._streams.get((device, out))
        if known is None:
            known = self._streams[device, out] = torch.cuda.Stream(device)
        return known


class Away:
    """One storage that goes to the host and comes back."""

    def __init__(self, storage: torch.UntypedStorage, host: Host) -> None:
        self.device = storage.device
        self.size = storage.nbytes()
        self._is_cuda = self.device.type == "cuda"
        self._host = host
        self._block: Block | None = host.take(self.size, self._is_cuda)
        self._back: Tensor | None = None
        self._copied: Event | None = None
        host.sent += self.size
        self._copy(self._block.bytes[: self.size], _bytes_of(storage, self.size), out=True)

    def _copy(self, to: Tensor, source: Tensor, *, out: bool) -> None:
        if not self._is_cuda:
            to.copy_(source)
            return
        stream = self._host.stream(self.device, out=out)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        if out and self._block is not None and self._block.read is not None:
            stream.wait_event(self._block.read)
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
            self._copied = stream.record_event()

    def wait(self) -> None:
        """What the compute stream does next comes after the last copy."""
        if self._copied is not None:
            torch.cuda.current_stream(self.device).wait_event(self._copied)

    def fetch(self) -> None:
        """The bytes come back, into new memory."""
        if self._back is None and self._block is not None:
            self._back = torch.empty(self.size, dtype=torch.uint8, device=self.device)
            self._copy(self._back, self._block.bytes[: self.size], out=False)
            self._block.read = self._copied
            self._host.received += self.size

    def storage(self) -> torch.UntypedStorage:
        """What has come back."""
        self.fetch()
        self.wait()
        back = self._back
        assert back is not None
        self._let_go()
        return back.untyped_storage()

    def _let_go(self) -> None:
        self._back = None
        if self._block is not None:
            self._host.give_back(self._block, self._is_cuda)
            self._block = None

    def __del__(self) -> None:
        if self._back is not None:
            # Nobody has waited for it, and its memory is about to go.
            self.wait()
        self._let_go()


class Part:
    """Stands for a tensor whose storage is away."""

    def __init__(self, tensor: Tensor, away: Away) -> None:
        self._away = away
        self._dtype = tensor.dtype
        self._shape = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def tensor(self, storages: dict[int, torch.UntypedStorage]) -> Tensor:
        """The tensor again; what came back of its storage is shared with the others of it."""
        storage = storages.get(id(self._away))
        if storage is None:
            storage = storages[id(self._away)] = self._away.storage()
        empty = torch.empty(0, dtype=self._dtype, device=self._away.device)
        return empty.set_(storage, *self._shape)


class Sent:
    """What one operator has made that goes to the host."""

    def __init__(self, tensors: list[Tensor], host: Host) -> None:
        self._aways: dict[int, Away] = {}
        self.versions = [tensor._version for tensor in tensors]
        with torch.no_grad():
            for tensor in tensors:
                storage = tensor.untyped_storage()
                if storage.nbytes() >= LEAST_BYTES and storage._cdata not in self._aways:
                    self._aways[storage._cdata] = Away(storage, host)

    def leave(self, value: Any, mapped: Callable[[Any, Callable[[Tensor], Any]], Any]) -> Any:
        """The value with what has gone in place of its tensors, when it is there."""

        def part(tensor: Tensor) -> Any:
            away = self._aways.get(tensor.untyped_storage()._cdata)
            return tensor if away is None else Part(tensor, away)

        for away in self._aways.values():
            away.wait()
        return mapped(value, part)

    def fetch(self) -> None:
        """What has gone comes back."""
        with torch.no_grad():
            for away in self._aways.values():
                away.fetch()


def brought_back(value: Any) -> Any:
    """A value with its tensors, once they have come back."""
    with torch.no_grad():
        return _whole(value, {})


def _whole(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    # No function inside another: one that calls itself would hold the storages until garbage is collected.
    if isinstance(value, Part):
        return value.tensor(storages)
    if isinstance(value, (tuple, list)):
        return type(value)([_whole(item, storages) for item in value])
    return value


class Movements:
    """When the regions of a plan let go of what they have sent, and when they fetch it."""

    def __init__(self, plan: Plan) -> None:
        self.host = Host()
        # By the number of a region, those whose outputs leave with the end of its forward, and come back with the beginning of its
        # recomputation.
        self._leaving: dict[int, list[int]] = {}
        self._returning: dict[int, list[int]] = {}
        self.count = 0
        for number, region in enumerate(plan.regions):
            if region.leaves_with is not None and region.returns_with is not None:
                self._leaving.setdefault(region.leaves_with, []).append(number)
                self._returning.setdefault(region.returns_with, []).append(number)
                self.count += 1
        # The last run of each region.
        self._runs: dict[int, weakref.ref[Kept]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runs": {}}

    def ended(self, number: int, kept: Kept) -> None:
        """The forward of a region is over."""
        self._runs[number] = weakref.ref(kept)
        for leaving in self._leaving.get(number, ()):
            run = self._run(leaving)
            if run is not None:
                run.leave()

    def begins_again(self, number: int) -> None:
        """A region is about to run again."""
        for returning in self._returning.get(number, ()):
            run = self._run(returning)
            if run is not None:
                run.fetch()

    def _run(self, number: int) -> Kept | None:
        known = self._runs.get(number)
        return known() if known is not None else None


def _bytes_of(storage: torch.UntypedStorage, size: int) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))
