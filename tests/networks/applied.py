"""Compares what native plans promise with real steps; see `run`."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import torch
import transformers.masking_utils

import rematic
from rematic._hugging_face.batch import batch_of
from rematic._hugging_face.model import class_of, config_of
from rematic._hugging_face.request import Request

WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1000}
LATENT = {
    **WIDE, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2, "max_position_embeddings": 512,
}  # fmt: skip
# Config, batch and length.
STEPS: dict[str, tuple[dict[str, Any], int, int]] = {
    "bert": ({"model_type": "bert", **WIDE, "max_position_embeddings": 256}, 16, 256),
    "roberta": ({"model_type": "roberta", **WIDE, "max_position_embeddings": 258}, 16, 256),
    "t5": ({"model_type": "t5", "vocab_size": 1000, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4}, 8, 256),
    "gpt_oss": (
        {
            "model_type": "gpt_oss", **WIDE, "num_key_value_heads": 2, "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
            "sliding_window": 64, "max_position_embeddings": 512, "intermediate_size": 256,
        },
        4,
        256,
    ),
    "deepseek_v2": ({"model_type": "deepseek_v2", **LATENT}, 8, 256),
    "deepseek_v3": ({"model_type": "deepseek_v3", **LATENT}, 8, 256),
}  # fmt: skip
BUDGETS = (0.8, 0.6)
# Causal language models are given their tokens as labels.
OWN_LABELS = ("gpt_oss", "deepseek_v2", "deepseek_v3")


def allocated(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> int:
    """The most bytes that are given out in the third step."""
    output = None
    for step in range(3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        output = model(**batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()


def predicted(config: dict[str, Any], batch: int, seq: int, *verb: str) -> int:
    """What the command says of it."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        size = ["--batch", str(batch), "--seq", str(seq), "--dtype", "bf16", "--optimizer", "adamw", "--device", "h100", "--json"]
        command = [os.environ.get("REMATIC", "rematic"), verb[0], file.name, *verb[1:], *size]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return said["memory"]["allocated_bytes"]


def compare(name: str) -> None:
    config, count, seq = STEPS[name]
    request = Request(name, config, "adamw", "auto", batch=count, seq=seq, dtype="bf16")
    made = config_of(request)
    with torch.device("cuda"):
        model = class_of(made, None)._from_config(made, dtype=torch.bfloat16).train()
    given = batch_of(model, made, count, seq).arguments
    batch = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
    if name in OWN_LABELS:
        batch["labels"] = batch["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    trace = rematic.Trace.model(config, batch=count, seq=seq, dtype="bf16", optimizer="adamw")

    def say(what: str, found: int, expected: int) -> None:
        print(f"{name}, {what}: predicted {expected:,}, real {found:,}: {found / expected - 1:+.3%}", flush=True)

    say("as it is", allocated(model, optimizer, batch), predicted(config, count, seq, "stats"))
    for share in BUDGETS:
        budget = int(share * trace.peak())
        # Nothing is computed there, so that what runs again gives other numbers.
        rematic.apply(model, rematic.plan(trace, budget), audit=0)
        say(f"{share:.0%} of the peak", allocated(model, optimizer, batch), predicted(config, count, seq, "plan", "--budget", str(budget)))
        rematic.remove(model)


if __name__ == "__main__":
    # It reads positions, which are none there.
    transformers.masking_utils.find_packed_sequence_indices = lambda *args, **kwargs: None
    # On the fake GPU there is no cuDNN.
    torch.backends.cuda.enable_cudnn_sdp(False)
    for name in sys.argv[1:] or STEPS:
        compare(name)
        gc.collect()
