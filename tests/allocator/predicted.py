"""The steps of `models.py` as Rematic sees them: traces, and plans for the least budget, and 30 % and 60 % of the way from there to the peak.

    python predicted.py DIR NAME...      DIR/NAME.rmt, DIR/NAME-75.json, ...
"""
import os
import sys
import warnings

import torch

import models
import rematic

# The card that a step is traced for.
DEVICE = os.environ.get("DEVICE", "h100")


def trace(model: models.Model) -> rematic.Trace:
    """Native, or captured."""
    if model.native:
        return rematic.Trace.model(**model.native, device=DEVICE)
    import transformers.masking_utils

    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    module = models.built(model, "meta")
    return rematic.capture(module, **model.batch(), optimizer=models.OPTIMIZERS[model.optimizer], device=DEVICE)


def main() -> None:
    place, *names = sys.argv[1:]
    os.makedirs(place, exist_ok=True)
    for name in names:
        # What an interrupted run has left is not made again; the last plan comes last.
        if os.path.exists(f"{place}/{name}-{models.SHARES[-1]}.json"):
            continue
        try:
            step = trace(models.MODELS[name]())
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        step.save(f"{place}/{name}.rmt")
        peak, least = step.peak("cuda"), least_budget(step)
        for share in models.SHARES:
            plan = rematic.plan(step, least + (peak - least) * share // 100, device="h100")
            plan.save(f"{place}/{name}-{share}.json")


def least_budget(step: rematic.Trace) -> int:
    try:
        rematic.plan(step, 1, device="h100")
    except rematic.Infeasible as error:
        return error.least_budget
    raise AssertionError("a step in one byte")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
