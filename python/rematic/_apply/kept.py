"""What one run of a region leaves for its recomputation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .audit import Audit
from .errors import changed
from .host import Movements, Sent
from .nested import mapped, storages_of, tensors_of, versions_of
from .policy import Policy
from .snapshot import Snapshot
from .weights import Weights


class Kept:
    """What one run of a region leaves for its recomputation."""

    def __init__(
        self,
        snapshot: Snapshot | None,
        weights: Weights,
        policy: Policy,
        audit: Audit | None,
        movements: Movements | None = None,
        told: set[str] | None = None,
    ) -> None:
        # What it found around it; of a run, what each of its calls did, and the call that is under way.
        self.snapshots = [snapshot] if snapshot is not None else []
        self._snapshot = snapshot
        self.audit = audit
        # The modules of which was said that they run again in full.
        self.told = set() if told is None else told
        # What was followed: what is handed back and what is recomputed goes by it.
        self.policy = policy
        # What the region reads and an optimizer may change.
        self.weights = weights
        # Whether modules inside it gather their parameters themselves: no cache is filled by that.
        self.is_sharded_inside = False
        # What saved operators have made.
        self.values: dict[int, Any] = {}
        self.versions: dict[int, list[int]] = {}
        # What of it goes to the host, and whether it is there.
        self.movements = movements
        self.sent: dict[int, Sent] = {}
        self.is_away = False
        # The states of generators before operators that draw again; where the state follows from the draws before,
        # none is needed.
        self.states: dict[int, bytes] = {}
        # Where parameters are cast, and which.
        self.casts: dict[int, Tensor] = {}
        # The shapes of what is not made again; incomplete where a shape cannot stand for it.
        self.outlines: dict[int, Any] = {}

    def close(self) -> None:
        """The region has run. What it changed in place itself is as it should be; from now on nothing may change it."""
        self.versions = {at: versions_of(value) for at, value in self.values.items()}
        self.weights.close()
        for snapshot in self.snapshots:
            snapshot.close()

    @property
    def skips(self) -> frozenset[int]:
        """The operators that do not run again: all that the policy skips, or none."""
        skips = self.policy.skips
        return skips if skips <= self.outlines.keys() else frozenset()

    @property
    def snapshot(self) -> Snapshot:
        """What the call that is under way found."""
        assert self._snapshot is not None
        return self._snapshot

    def begin(self, snapshot: Snapshot) -> None:
        """A call of a run begins, for the first time or again."""
        self._snapshot = snapshot

    def leave(self) -> None:
        """What was sent to the host is there; its bytes go."""
        if self.is_away:
            return
        self.is_away = True
        for at, sent in self.sent.items():
            if at not in self.values:
                continue
            if versions_of(self.values[at]) != sent.versions:
                raise changed(self.policy, at)
            self.values[at] = sent.leave(self.values[at], mapped)

    def fetch(self) -> None:
        """What is on the host comes back."""
        for at, sent in self.sent.items():
            if self.is_away and at in self.values:
                sent.fetch()

    def outside(self) -> set[int]:
        """The memory that was there before the region."""
        found = storages_of(tensors_of(list(self.values.values())))
        return found.union(self.weights.storages(), *(snapshot.storages() for snapshot in self.snapshots))

    def tensors(self, at: int) -> list[Tensor]:
        """What a saved operator has made."""
        return tensors_of(self.values[at])
