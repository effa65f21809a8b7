"""Watches a training script in a rehearsal, and writes down what PyTorch's allocator said.

Nothing here imports torch: the script may not, and does it when it likes. What is to be done then waits (`imports`).
"""

from rematic_rehearsal import (
    assumptions,
    cudnn,
    ending,
    groups,
    imports,
    launchers,
    places,
    reads,
    report,
    steps,
    streams,
    values,
    versions,
)


def watch():
    """Called once, before the script."""
    ending.watch()
    imports.after("torch", _torch)
    imports.after("torch.distributed.run", launchers.torchrun)
    imports.after("transformers.masking_utils", assumptions.not_packed)


def _torch(torch):
    versions.check(torch)
    reads.check()
    report.begin(torch)
    steps.count(torch)
    places.watch(torch)
    reads.watch()
    cudnn.watch()
    values.watch(torch)
    streams.watch(torch)
    groups.fake(torch)
