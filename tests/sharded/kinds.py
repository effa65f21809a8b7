"""What torch's FSDPMemTracker would call every byte of a step, from its trace alone: what is in memory where it is highest, by kind."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import rematic

BLOCK = 512
BEFORE = {"parameter": "Sharded Param", "buffer": "Buffer", "optimizer": "OptState", "other": "Inputs", "activation": "Activation"}
MADE = {"forward": "Activation", "backward": "Temp", "optimizer": "OptState"}


class Kinds:
    """A replay that knows kinds, which torch's tracker gives at certain operators of FSDP2."""

    def __init__(self, trace: rematic.Trace) -> None:
        self.trace: dict[str, Any] = json.loads(trace.to_bytes())
        self.storages: list[list[Any]] = self.trace["storages"]
        self.kinds: list[str] = []
        self.held = Counter[int]()
        self.released: set[int] = set()
        # What a reduction has written, whoever made the memory for it.
        self.reduced: set[int] = set()
        self.births: dict[int, list[int]] = {}
        self.use = Counter[str]()
        self.peak = Counter[str]()
        for storage, (_, category, birth, *words) in enumerate(self.storages):
            self.kinds.append(BEFORE.get(category, ""))
            if birth is not None:
                self.births.setdefault(birth, []).append(storage)
                continue
            if "released" in words:
                self.kinds[storage] = "Unsharded Param"
                self.released.add(storage)
            self._hold(storage)

    def at_peak(self) -> dict[str, int]:
        for event in self.trace["events"]:
            ((kind, value),) = event.items()
            if kind == "op":
                self._op(value)
            elif kind == "drop":
                self._let_go(value)
            elif kind == "unsave":
                for storage, _ in self.trace["ops"][value].get("saves", []):
                    self._let_go(storage)
            elif kind == "release":
                self._count(value, -1)
                self.released.add(value)
            elif kind == "restore":
                self.released.discard(value)
                self._count(value, 1)
            elif kind == "recategorize" and value[0] in self.reduced:
                self._call(value[0], "Sharded Grad")
        return dict(self.peak)

    def _op(self, id: int) -> None:
        op = self.trace["ops"][id]
        name = self.trace["names"][op["name"]]
        for storage in self.births.get(id, []):
            self.kinds[storage] = MADE[op["phase"]]
            self._hold(storage)
        for storage, _ in op.get("saves", []):
            self._hold(storage)
        called = {
            "_allgather_base_.default": "All Gather",
            "_chunk_cat.out": "Unsharded Grad",
            "_reduce_scatter_base_.default": "Reduce Scatter",
        }
        if name == "_reduce_scatter_base_.default":
            self.reduced.update(storage for storage, _ in op["outputs"])
        if name in called:
            for storage, _ in op["inputs"]:
                self._call(storage, called[name])
        if self.use.total() > self.peak.total():
            self.peak = Counter(self.use)

    def _call(self, storage: int, kind: str) -> None:
        self._count(storage, -1)
        self.kinds[storage] = kind
        self._count(storage, 1)

    def _hold(self, storage: int) -> None:
        self.held[storage] += 1
        if self.held[storage] == 1:
            self._count(storage, 1)

    def _let_go(self, storage: int) -> None:
        if self.held[storage] == 1:
            self._count(storage, -1)
        self.held[storage] -= 1

    def _count(self, storage: int, sign: int) -> None:
        if self.held[storage] and storage not in self.released and "pinned" not in self.storages[storage][3:]:
            self.use[self.kinds[storage]] += sign * -(-self.storages[storage][0] // BLOCK) * BLOCK
