"""What sharding does to the modules that a plan checkpoints."""

from __future__ import annotations

from torch import nn

from rematic._core import PlanError


def check_whole(path: str, module: nn.Module) -> None:
    """Refuses a checkpointed module of which FSDP2 shards parts by themselves: gathering their parameters runs operators
    inside, in forward and when it is recomputed, that no plan has."""
    for name, part in module.named_modules():
        # By name: `torch.distributed` is not in every build of PyTorch, and takes long to import.
        if part is not module and any(kind.__name__ == "FSDPModule" for kind in type(part).__mro__):
            raise PlanError(
                f"The plan checkpoints `{path}`, which contains modules that are sharded by themselves (`{name}`); call "
                "fully_shard on the checkpointed module or on one around it, or plan with only= for modules that are "
                "sharded whole"
            )
