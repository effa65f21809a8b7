"""Steps of training on the fake GPU: what torch's own allocator says.

    run real.py DIR NAME...     a line of JSON for the plain step and each plan of predicted.py, to DIR/NAME.CAPABILITY

The third step is measured. With REQUESTS=DIR, what is asked of the allocator from the start on is written to
DIR/PLAN.real, with the lines of Python that asked; `differing.py` compares it with what the example `reserved` asks for.
"""
import functools
import json
import os
import sys

import torch

import models

# Before PyTorch's test models are imported, which forbid it. The runtime of rehearsals answers cuDNN, the fake GPU does not.
torch.backends.cudnn.enabled = "CUDNN" in os.environ


def train(model: models.Model, plan: str) -> dict[str, object]:
    """Three steps; the counters of the third."""
    without_values()
    if "REQUESTS" in os.environ:
        torch.cuda.memory._record_memory_history(max_entries=10**7, context="all", stacks="python")
    module = models.built(model, "cuda")
    if plan != "-":
        import rematic

        # Nothing is computed on the fake GPU, so there are no numbers to compare.
        rematic.apply(module, rematic.Plan.load(plan), audit=0)
    stats = three_steps(model, module)
    if "REQUESTS" in os.environ:
        write_requests(f"{os.environ['REQUESTS']}/{os.path.basename(plan)}.real")
    return {
        "plan": plan,
        **peaks(stats),
        "retries": stats["num_alloc_retries"],
    }


def without_values() -> None:
    """What asks the device for values is answered as for batches that are neither packed nor padded, where zeros would say they are."""
    import transformers.masking_utils as masks

    def unpadded(mask: torch.Tensor | None, keys: int, window: int | None = None) -> bool:
        if mask is not None:
            mask.all()
        return window is None or keys < window

    summed = masks.fast_all
    masks.fast_all = lambda mask: summed(mask) is not None
    masks._ignore_bidirectional_mask_sdpa = unpadded
    masks.find_packed_sequence_indices = lambda *_, **__: None
    torch.backends.cuda.enable_cudnn_sdp(False)


def three_steps(model: models.Model, module: torch.nn.Module) -> dict[str, int]:
    """Trains; what the allocator counts, its peaks those of the third step."""
    batch = model.batch()
    moved = {value: value.to("cuda") for value in set(filter(torch.is_tensor, batch.values()))}
    batch = {name: moved[value] if torch.is_tensor(value) else value for name, value in batch.items()}
    optimizer = models.OPTIMIZERS[model.optimizer](module.parameters())
    for step in range(3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        output = module(**batch) if "tokens" not in batch else module(batch["tokens"])
        # As the trace has it: no name holds the loss into the next step.
        models.loss(output).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.memory_stats()


def peaks(stats: dict[str, int]) -> dict[str, int]:
    return {kind: stats[f"{kind}_bytes.all.peak"] for kind in ("requested", "allocated", "reserved")}


def write_requests(path: str) -> None:
    """As the example `reserved` does: who, address, and bytes if they are taken."""
    with open(path, "w") as file:
        for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
            frames = [f"{frame['filename'].rsplit('/', 1)[-1]}:{frame['line']}" for frame in entry["frames"][:4]]
            if entry["action"] == "alloc":
                file.write(f"{' '.join(frames)}\t{entry['addr']}\t{entry['size']}\n")
            elif entry["action"] == "free_completed":
                file.write(f"{' '.join(frames)}\t{entry['addr']}\t-\n")


def made_once(model: models.Model) -> None:
    """Imports all that a model is made of, before the processes part."""
    # PyTorch's test models use the device as soon as they are imported, and processes must not.
    if model.forks and not isinstance((model.native or {}).get("source"), str):
        models.built(model, "meta")


def in_child(function):
    """What a function returns in a process of its own, which uses the device for the first time."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            try:
                answer = function()
            except torch.OutOfMemoryError as error:
                answer = {"error": str(error).split(". ")[1]}
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text or '{"failed": "the process ended"}')


def main() -> None:
    place, *names = sys.argv[1:]
    import rematic  # noqa: F401  (once, before the processes part, as all that the model is made of)

    for name in names:
        path = f"{place}/{name}.{os.environ['FAKEGPU_SM']}"
        if os.path.exists(path):
            continue
        model = models.MODELS[name]()
        made_once(model)
        plans = ("-", *(f"{place}/{name}-{share}.json" for share in models.SHARES))
        there = [plan for plan in plans if plan == "-" or os.path.exists(plan)]
        answers = [{"plan": plan, **in_child(functools.partial(train, model, plan))} for plan in there]
        # At once: what an interrupted run has left is whole, and not made again.
        with open(path, "w") as file:
            file.writelines(json.dumps(answer) + "\n" for answer in answers)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
