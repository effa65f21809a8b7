"""`rematic.cluster`: a place in a mesh that is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import rematic


def test_a_rank_has_its_place_and_the_group_is_taken_down() -> None:
    with rematic.cluster(gpus=64, rank=13, mesh={"dp": 8, "tp": 8}) as mesh:
        assert mesh.shape == (8, 8) and mesh.mesh_dim_names == ("dp", "tp")
        assert list(mesh.get_coordinate()) == [1, 5]
        assert (dist.get_rank(), dist.get_world_size()) == (13, 64)
        assert dist.get_process_group_ranks(mesh["tp"].get_group()) == list(range(8, 16))
    assert not dist.is_initialized()
    with rematic.cluster(1024, rank=1023) as mesh:
        assert mesh.shape == (1024,) and mesh.mesh_dim_names == ("dp",)
    assert not dist.is_initialized()


def test_the_group_is_taken_down_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), rematic.cluster(4):
        raise ZeroDivisionError
    assert not dist.is_initialized()
    with rematic.cluster(4):
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 64, "mesh": {"dp": 8, "tp": 4}}, r"dp 8 × tp 4 has 32 places, but there are 64 GPUs; the sizes must multiply"),
        ({"gpus": 8, "rank": 8}, "no rank 8; 8 GPUs have the ranks 0 to 7"),
        ({"gpus": 8, "rank": -1}, "no rank -1; 8 GPUs"),
        ({"gpus": 8, "rank": True}, "no rank True"),
        ({"gpus": 0}, "how many GPUs there are, 1 or more, not 0"),
        ({"gpus": 8, "mesh": {"dp": 0}}, "names axes with their sizes"),
        ({"gpus": 8, "mesh": [8]}, "names axes with their sizes"),
        ({"gpus": 8, "mesh": {"dp+cp": 8}}, r"a name without `\+`, but one is 'dp\+cp'"),
    ],
)
def test_what_is_no_place_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(rematic.RematicError, match=f"cluster: .*{said}"), rematic.cluster(**options):
        pass
    assert not dist.is_initialized()


def test_a_group_that_is_there_stays() -> None:
    with rematic.cluster(gpus=2, rank=1):
        with pytest.raises(rematic.RematicError, match="rank 1 of 2 in a process group already"), rematic.cluster(gpus=4):
            pass
        assert dist.get_world_size() == 2


def test_a_mesh_is_not_taken_for_one_that_is_gone() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for rank, rows in ((0, 2), (3, 1)):
        with rematic.cluster(4, rank, {"dp": 2, "tp": 2}) as mesh:
            spread = distribute_tensor(torch.zeros(3, 4), mesh["tp"], [Shard(0)], src_data_rank=None)
            twice = spread * 2
            assert twice.device_mesh is spread.device_mesh
            assert twice.to_local().shape == (rows, 4)
            assert twice.redistribute(placements=[Replicate()]).to_local().shape == (3, 4)
