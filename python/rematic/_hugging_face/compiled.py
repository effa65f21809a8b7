"""`python -m rematic._hugging_face.compiled FILE FOUND` trains the model of a request under `torch.compile`, and writes what it took.

It is a script to be rehearsed.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

from .__main__ import OFFLINE

# The first compiles, and holds memory while it measures kernels that are in no cache; it makes the optimizer's state.
STEPS = 3


def main() -> None:
    os.environ.update(OFFLINE)
    import torch

    from .batch import batch_of
    from .model import DTYPES, build, change, class_of, config_of
    from .optimizer import optimizer_of
    from .request import Request

    request = Request.read(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    make = optimizer_of(request.optimizer)
    config = config_of(request)
    change(config, request)
    model = build(class_of(config, request.config.get("architectures")), config, request, device="cuda")
    optimizer = make(model.parameters()) if make else None
    batch = batch_of(model, config, request.batch or 1, request.seq)
    given = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in batch.arguments.items()}
    compiled = torch.compile(model)
    half = DTYPES.get(request.autocast or "")
    for step in range(STEPS):
        if step == 1:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            output = compiled(**given)
            loss = output.loss if getattr(output, "loss", None) is not None else output[0].sum()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad()
    found = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    pathlib.Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
