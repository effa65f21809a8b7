"""Plans of native steps under tensor parallelism, on the models of transformers that they are for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rematic

fsdp = pytest.importorskip("torch.distributed.fsdp")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")
placements = pytest.importorskip("torch.distributed.tensor")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
BATCH, SEQ, SHARED, SPREAD = 2, 64, 2, 4


def share(model: Any, mesh: Any) -> None:
    """As torchtitan deals a Llama out."""
    columns, rows, sequence = parallel.ColwiseParallel, parallel.RowwiseParallel, parallel.SequenceParallel
    part, whole = placements.Shard(1), placements.Replicate()
    outside = {
        "model.embed_tokens": rows(input_layouts=whole, output_layouts=part),
        "model.norm": sequence(),
        "lm_head": columns(input_layouts=part, output_layouts=whole),
    }
    inside = {
        "input_layernorm": sequence(),
        "self_attn": parallel.PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": part}, desired_input_kwarg_layouts={"hidden_states": whole}
        ),
        "self_attn.q_proj": columns(), "self_attn.k_proj": columns(), "self_attn.v_proj": columns(),
        "self_attn.o_proj": rows(output_layouts=part),
        "post_attention_layernorm": sequence(),
        "mlp": parallel.PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": columns(), "mlp.up_proj": columns(), "mlp.down_proj": rows(output_layouts=part),
    }  # fmt: skip
    parallel.parallelize_module(model, mesh, outside)
    for layer in model.model.layers:
        parallel.parallelize_module(layer, mesh, inside)


def fully_shard(model: Any, mesh: Any) -> None:
    for layer in model.model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("late", [True, False])
def test_a_plan_is_followed_before_and_after_sharding(late: bool) -> None:
    step = rematic.Trace.model({"model_type": "llama", **SIZES}, batch=BATCH, seq=SEQ, dtype="fp32", tp=SHARED).fsdp(SPREAD)
    # Attention has other kernels on the CPU, where this runs.
    try:
        plan = rematic.plan(step, 1, only="*.mlp", device="h100")
    except rematic.Infeasible as error:
        plan = rematic.plan(step, error.least_budget, only="*.mlp", device="h100")
    assert {region.module.rsplit(".", 1)[-1] for region in plan.regions} == {"mlp"}
    with rematic.cluster(SHARED * SPREAD, 5, {"dp": SPREAD, "tp": SHARED}) as mesh:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        share(model, mesh["tp"])
        if not late:
            rematic.apply(model, plan, audit=0)
        fully_shard(model, mesh["dp"])
        if late:
            rematic.apply(model, plan, audit=0)
        positions = torch.arange(SEQ)[None]
        output = model(input_ids=torch.zeros(BATCH, SEQ, dtype=torch.long), position_ids=positions, use_cache=False)
        output.logits.sum().backward()


def test_a_plan_for_other_gpus_is_refused() -> None:
    step = rematic.Trace.model({"model_type": "llama", **SIZES}, batch=BATCH, seq=SEQ, dtype="fp32", tp=SHARED).fsdp(2)
    plan = rematic.plan(step, "1TiB", device="h100")
    with rematic.cluster(SHARED * SPREAD, 5, {"dp": SPREAD, "tp": SHARED}) as mesh:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        share(model, mesh["tp"])
        with pytest.raises(rematic.PlanError, match="one of 4 GPUs, and this model is spread over 2 of them"):
            rematic.apply(model, plan)
