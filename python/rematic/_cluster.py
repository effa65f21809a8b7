"""A cluster that is not there: one rank's place in a mesh of any size, in this process alone."""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from rematic._core import RematicError

# Names of axes are joined by it where a group stands along several.
_JOINS = "+"

_TENSOR = "torch.distributed.tensor"
# What empties the tables that DTensor keeps by mesh.
_EMPTIES = (
    (f"{_TENSOR}.debug", "_clear_sharding_prop_cache"),
    (f"{_TENSOR}._redistribute", "clear_redistribute_planner_cache"),
    (f"{_TENSOR}._redistribute", "_gen_transform_infos.cache_clear"),
    (f"{_TENSOR}._collective_utils", "MeshTopoInfo.build_from_mesh.cache_clear"),
)


@contextlib.contextmanager
def cluster(gpus: int, rank: int = 0, mesh: Mapping[str, int] | None = None) -> Iterator[Any]:
    """A `DeviceMesh` of so many GPUs, seen from one of them, on a process group that sends nothing.

    `mesh` names its axes with their sizes, the outermost first, as in `{"dp": 8, "tp": 8}`; without it there is one axis, "dp".
    While it is entered, models can be sharded with `fully_shard` and `parallelize_module` and captured, and what is captured is
    the step of this rank. Afterwards the process group is gone, also after an error.
    """
    axes = {"dp": gpus} if mesh is None else mesh
    _check(gpus, rank, axes)
    # The second makes the backend known.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("fake", rank=rank, world_size=gpus, store=FakeStore())
    try:
        yield init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
    finally:
        # The step's own code may have taken it down.
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Meshes of one shape are the same to DTensor, which would go on with the groups and the rank of one that is gone."""
    if _TENSOR not in sys.modules:
        return
    for module, name in _EMPTIES:
        # Other versions of PyTorch have other tables.
        with contextlib.suppress(AttributeError, ImportError):
            operator.attrgetter(name)(importlib.import_module(module))()


def _check(gpus: Any, rank: Any, axes: Any) -> None:
    """Refuses what is no place in a cluster, before anything is set up."""
    if not dist.is_available():
        raise RematicError("This build of PyTorch has no torch.distributed, which a cluster needs; install one that has")
    if not _is_count(gpus):
        raise RematicError(f"cluster: `gpus` is how many GPUs there are, 1 or more, not {gpus!r}")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < gpus:
        raise RematicError(f"cluster: there is no rank {rank!r}; {gpus} GPUs have the ranks 0 to {gpus - 1}")
    if not isinstance(axes, Mapping) or not axes or not all(_is_count(size) for size in axes.values()):
        raise RematicError(f'cluster: `mesh` names axes with their sizes, as {{"dp": 8, "tp": 8}}, but is {axes!r}')
    for name in axes:
        if not isinstance(name, str) or not name or _JOINS in name:
            raise RematicError(f"cluster: an axis of `mesh` has a name without `{_JOINS}`, but one is {name!r}")
    if math.prod(axes.values()) != gpus:
        sizes = " × ".join(f"{name} {size}" for name, size in axes.items())
        raise RematicError(
            f"cluster: the mesh {sizes} has {math.prod(axes.values())} places, but there are {gpus} GPUs; the sizes must "
            "multiply to `gpus`"
        )
    if dist.is_initialized():
        raise RematicError(
            f"cluster: this process is rank {dist.get_rank()} of {dist.get_world_size()} in a process group already; shard the "
            "model on a mesh of that one, or call torch.distributed.destroy_process_group() first"
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
