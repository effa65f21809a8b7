"""The parameters that a region reads: whether they are still what its first run has read."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Weights:
    """A region's parameters as they were when it had run."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._versions: list[int] = []
        # A weak reference keeps the address of a storage from being given to another. FSDP2 empties storages and fills
        # them again, which leaves them the same.
        self._storages: list[StorageWeakRef] = []

    def close(self) -> None:
        """The region has run; from now on they may not change."""
        self._versions = [parameter._version for parameter in self._parameters]
        self._storages = [StorageWeakRef(_storage(parameter)) for parameter in self._parameters]

    def storages(self) -> set[int]:
        """Their memory."""
        return {_storage(parameter)._cdata for parameter in self._parameters}

    def change(self) -> str | None:
        """What has happened since to one of them, if anything has."""
        for parameter, version, storage in zip(self._parameters, self._versions, self._storages, strict=True):
            if parameter._version != version:
                return f"of shape {tuple(parameter.shape)}, was changed"
            if _storage(parameter)._cdata != storage.cdata:
                return f"of shape {tuple(parameter.shape)}, was given other memory (`.data = ...`)"
        return None


def _storage(parameter: Tensor) -> torch.UntypedStorage:
    """A parameter's memory; of one that is spread over ranks, that of its part."""
    local: Tensor = getattr(parameter, "_local_tensor", parameter)
    return local.untyped_storage()
