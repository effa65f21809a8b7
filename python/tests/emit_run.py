"""Trains a model under emitted plans, with torch alone, and prints what happened: `emit_run.py MODEL KERNELS FILE…`."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import torch

from reality import Training


def module_of(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("emitted_plan", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(name: str, kernels: str, *files: str) -> None:
    expected = Training(name).train()
    runs = []
    for file in files:
        training = Training(name)
        training.kernels = set(kernels.split(","))
        module_of(file).apply_plan(training.model)
        peak = training.peak()
        found = training.train()
        equal = [torch.equal(*pair) for pair in zip(found, expected, strict=True)]
        runs.append({"peak": peak, "values": len(equal), "equal": all(equal)})
    print(json.dumps({"runs": runs, "with_rematic": any(name.split(".")[0] == "rematic" for name in sys.modules)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
