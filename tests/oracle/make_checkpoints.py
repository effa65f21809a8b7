"""Writes what torch's MemTracker says about steps with checkpointed modules, as a fixture for the Rust tests.

    python make_checkpoints.py

Each case names the modules that are checkpointed and the operators whose outputs the policy saves. The fixture holds
the bytes in use after every operator but `detach`, which PyTorch sprinkles over saved tensors and which moves no memory.
"""
import functools
import json
import pathlib

import torch
import torch_tools
import zstandard
from make_golden import GPT2, LLAMA, QWEN3, SEED
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

FIXTURE = pathlib.Path(__file__).resolve().parents[2] / "crates/rematic-torch/tests/checkpoints.json.zst"
ATTENTION = "_scaled_dot_product_efficient_attention.default"
FLASH = "_scaled_dot_product_flash_attention.default"
LAYERS = ["model.layers.0", "model.layers.1"]


def config(fields, **options):
    return {"model": "config", "config": fields, "batch": 2, "seq": 64, "dtype": "fp32"} | options


CASES = [
    (SEED, ["layers.0", "layers.1"], []),
    (SEED, ["layers.0", "layers.1"], ["mm.default"]),
    (SEED, ["layers.0"], ["gelu.default", "native_layer_norm.default"]),
    (SEED, ["layers.0.feed_forward", "layers.1.attention"], ["gelu.default", "addmm.default"]),
    (SEED, ["layers.0", "layers.1.feed_forward"], ["native_layer_norm.default", ATTENTION, "native_dropout.default"]),
    (SEED | {"dropout": 0.0, "batch": 3, "seq": 33}, ["layers.0.attention", "layers.0.feed_forward", "layers.1"], []),
    (SEED | {"dtype": "bf16"}, ["layers.1"], [FLASH]),
    (config(GPT2), ["transformer.h.0", "transformer.h.1"], ["addmm.default"]),
    (config(GPT2), ["transformer.h.1.mlp", "transformer.h.0.attn"], ["tanh.default", "pow.Tensor_Scalar"]),
    (config(LLAMA, dtype="bf16"), LAYERS, []),
    (config(LLAMA, dtype="bf16"), LAYERS, ["mm.default", "silu.default"]),
    (config(LLAMA, dtype="bf16"), ["model"], ["mm.default"]),
    (config(LLAMA, attention="math"), ["model.layers.1.mlp", "model.layers.0.self_attn"],
     ["mul.Tensor", "_safe_softmax.default"]),
    (config(LLAMA), ["model.layers.1.mlp", "model.layers.0.self_attn"], ["mul.Tensor", ATTENTION]),
    (config(QWEN3, dtype="bf16"), LAYERS, ["rsqrt.default", "cat.default", FLASH]),
]


def wrapped(forward, saved, kernel):
    def policy(context, op, *args, **kwargs):
        name = str(op).removeprefix("aten.")
        return CheckpointPolicy.MUST_SAVE if name in saved else CheckpointPolicy.PREFER_RECOMPUTE

    # Backward runs outside the function mode that picks CUDA's operators.
    def as_on_cuda(*args, **kwargs):
        with torch_tools.CudaDispatch(kernel):
            return forward(*args, **kwargs)

    contexts = {"context_fn": functools.partial(create_selective_checkpoint_contexts, policy)} if saved else {}
    return functools.partial(checkpoint, as_on_cuda, use_reentrant=False, preserve_rng_state=False, **contexts)


def run(setup, units, saved):
    with torch_tools.as_on_cuda(setup["attention"]):
        model, forward, loss_of, tokens = torch_tools.build(setup)
        for unit in units:
            module = model.get_submodule(unit)
            module.forward = wrapped(module.forward, saved, setup["attention"])
        optimizer = torch_tools.OPTIMIZERS[setup["optimizer"]](model.parameters())
        tracker = torch_tools.StepTracker()
        tracker.track_external(model, optimizer, tokens)
        with tracker:
            for step in range(2):
                if step == 1:
                    tracker.reset_mod_stats()
                    tracker.start()
                output = forward()
                loss_of(output).backward()
                optimizer.step()
                optimizer.zero_grad()
    return [[name, total] for name, _, total in tracker.timeline if name != "detach.default"]


def main():
    cases = []
    for case, units, saved in CASES:
        setup = {"dtype": "fp32", "optimizer": "adam", "attention": "auto"} | case
        cases.append({"setup": setup, "units": units, "saved": saved, "timeline": run(setup, units, saved)})
        print(setup["model"], units, saved, len(cases[-1]["timeline"]), max(total for _, total in cases[-1]["timeline"]))
    text = json.dumps({"torch": torch.__version__.split("+")[0], "cases": cases}, separators=(",", ":"))
    FIXTURE.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))


if __name__ == "__main__":
    main()
