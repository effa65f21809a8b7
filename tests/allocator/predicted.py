"""The steps of `models.py` as Rematic sees them: traces, and plans for 75 %, 60 % and the least budget.

    python predicted.py DIR NAME...      DIR/NAME.rmt, DIR/NAME-75.json, ...
"""
import os
import sys
import warnings

import torch

import models
import rematic


def trace(model: models.Model) -> rematic.Trace:
    """Native, or captured."""
    if model.native:
        return rematic.Trace.model(**model.native)
    import transformers.masking_utils

    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    module = models.built(model, "meta")
    return rematic.capture(module, **model.batch(), optimizer=models.OPTIMIZERS[model.optimizer], device="cuda")


def main() -> None:
    place, *names = sys.argv[1:]
    os.makedirs(place, exist_ok=True)
    for name in names:
        try:
            step = trace(models.MODELS[name]())
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        step.save(f"{place}/{name}.rmt")
        peak = step.peak("cuda")
        for share in models.SHARES:
            try:
                plan = rematic.plan(step, peak * share // 100 or 1, device="h100")
            except rematic.Infeasible as error:
                plan = rematic.plan(step, error.least_budget, device="h100")
            plan.save(f"{place}/{name}-{share}.json")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
