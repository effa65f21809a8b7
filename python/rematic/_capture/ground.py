"""The mesh of ranks that a model is spread over, and this rank's place in it."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from rematic._model.meshes import axes_of, mesh_of

from .errors import CaptureError


class Ground:
    """A mesh with all its axes."""

    def __init__(self, mesh: Any) -> None:
        import torch.distributed as dist

        self._ranks_of = dist.get_process_group_ranks
        self._mesh = mesh.mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise CaptureError(
                f"The model is spread over the ranks {mesh.mesh.flatten().tolist()}, and this is rank {dist.get_rank()}; capture it "
                "in a process, or a rematic.cluster, whose rank is among them"
            )
        self._coordinate = list(coordinate)
        # As the trace has them: name, size, and where on it this rank stands.
        self.axes = [
            [name.replace("+", "_"), size, at] for name, size, at in zip(axes_of(mesh), mesh.mesh.shape, self._coordinate, strict=True)
        ]
        self._known: dict[str, tuple[int, str] | None] = {}

    @staticmethod
    def of(model: nn.Module) -> Ground | None:
        """That of a model's parameters; nothing if they are not spread."""
        mesh = mesh_of(model)
        return None if mesh is None else Ground(mesh)

    def along(self, group: Any) -> tuple[int, str] | None:
        """How many ranks a process group has, and along which axes they stand; nothing if along none."""
        if group.group_name not in self._known:
            self._known[group.group_name] = self._found(sorted(self._ranks_of(group)))
        return self._known[group.group_name]

    def _found(self, ranks: list[int]) -> tuple[int, str] | None:
        for count in range(1, len(self.axes) + 1):
            for chosen in itertools.combinations(range(len(self.axes)), count):
                at = tuple(slice(None) if axis in chosen else self._coordinate[axis] for axis in range(len(self.axes)))
                if sorted(self._mesh[at].flatten().tolist()) == ranks:
                    return len(ranks), "+".join(self.axes[axis][0] for axis in chosen)
        return None
