"""Compares native and captured steps under FSDP2 with what torch's FSDPMemTracker says of the same step; see `run`."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any

import torch
import torch.distributed as dist
from kinds import BLOCK, Kinds
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed._tools import mod_tracker
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import rematic

BATCH, LENGTH = 2, 128
SMALL = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 1000}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 64}
LATENT = {
    **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "moe_intermediate_size": 96, "num_experts_per_tok": 2, "head_dim": 16,
}  # fmt: skip
# "uneven" has shards of different lengths.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **GROUPED},
    "mistral": {"model_type": "mistral", "sliding_window": None, **GROUPED},
    "qwen2": {"model_type": "qwen2", **{name: value for name, value in GROUPED.items() if name != "head_dim"}},
    "qwen3": {"model_type": "qwen3", **GROUPED},
    "gpt2": {"model_type": "gpt2", "n_embd": 256, "n_head": 4, "n_layer": 3, "n_positions": 256, "vocab_size": 1000},
    "uneven": {"model_type": "llama", **GROUPED, "vocab_size": 1003, "intermediate_size": 701},
    "olmo2": {"model_type": "olmo2", **{name: value for name, value in GROUPED.items() if name != "head_dim"}},
    "gemma2": {"model_type": "gemma2", **GROUPED, "sliding_window": 64},
    "gpt-oss": {"model_type": "gpt_oss", **GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64},
    "mixtral": {"model_type": "mixtral", **GROUPED, "num_local_experts": 4, "sliding_window": None},
    "deepseek-v2": {"model_type": "deepseek_v2", **LATENT, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "deepseek-v3": {"model_type": "deepseek_v3", **LATENT, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
    "bert": {"model_type": "bert", **SMALL, "architectures": ["BertForMaskedLM"]},
    "bert-labels": {"model_type": "bert", **SMALL, "architectures": ["BertForSequenceClassification"]},
    "roberta": {"model_type": "roberta", **SMALL, "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 514},
    "vit": {"model_type": "vit", **{name: value for name, value in SMALL.items() if name != "vocab_size"}, "image_size": 64,
            "architectures": ["ViTForImageClassification"]},
    "t5": {"model_type": "t5", "vocab_size": 1000, "d_model": 256, "d_kv": 64, "d_ff": 688, "num_layers": 3,
           "num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"]},
}  # fmt: skip
RANKS = (2, 8, 64)

# How operators of a trace are called by FSDP2, which calls them through others of its own.
CALLED = {
    "split_with_sizes_copy.out": "split_with_sizes_copy.default",
    "_chunk_cat.out": "chunk_cat_mixed_dtype.default",
}


def register_without_holding(tensors: Any, fn: Any, *, mode: str = "all") -> Any:
    """`register_multi_grad_hook` that does not hold gradients until all are there, which torch's trackers would count: of a module that
    is called with two tensors (BERT's `output`), the gradient of one until the other has its own."""
    if mode != "all":
        return register_multi_grad_hook(tensors, fn, mode=mode)
    nodes = [tensor.grad_fn or torch.autograd.graph.get_gradient_edge(tensor).node for tensor in tensors]
    seen = 0

    def count(_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == sum(map(torch._C._will_engine_execute_node, nodes)):
            seen = 0
            fn([])

    return [tensor.register_hook(count) for tensor in tensors]


class Tracker(FSDPMemTracker):
    """Torch's, which also writes down the total after every operator, without the gradient that it holds itself: a variable of
    it keeps the last gradient of a unit until FSDP2 has reduced the unit."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.timeline: list[tuple[str, int]] | None = None
        self._held = self._own = 0
        self._packed = False

    def _fsdp_param_group_post_backward(self, fsdp_mod: Any, original: Any) -> Any:
        reduce = super()._fsdp_param_group_post_backward(fsdp_mod, original)

        def around(*args: Any, **kwargs: Any) -> None:
            last = fsdp_mod._get_fsdp_state()._fsdp_param_group.fsdp_params[-1]._unsharded_param.grad
            self._held = 0 if last is None else -(-last.untyped_storage().nbytes() // BLOCK) * BLOCK
            del last
            reduce(*args, **kwargs)
            self._held = self._own = 0

        return around

    def start(self) -> None:
        """Begins to write down, and forgets what earlier steps reached."""
        self.timeline = []
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: snapshot["Total"] for device, snapshot in self._peak_mem_snap.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if result is not NotImplemented and self.timeline is not None:
            name = str(func).split(".", 1)[1]
            if self._packed and "chunk_cat" not in name:
                # FSDP2 let go of the gradients when it had packed them.
                self._own, self._packed = self._held, False
            self._packed |= "chunk_cat" in name
            total = self._curr_mem_snap.get(torch.device("cuda:0"), {}).get("Total", 0)
            self.timeline.append((name, total - self._own))
        return result


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The outermost modules of lists."""
    lists = [list(child) if isinstance(child, nn.ModuleList) else layers_of(child) for child in module.children()]
    return [layer for layers in lists for layer in layers]


def batch_of(config: dict[str, Any], device: str) -> dict[str, Any]:
    """What the model is given, beside switches."""
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device)
    labels = torch.zeros(BATCH, dtype=torch.long, device=device)
    if "image_size" in config:
        size = config["image_size"]
        # In mixed precision FSDP2 would make a copy of wider ones.
        pixels = torch.zeros(BATCH, 3, size, size, dtype=torch.bfloat16, device=device)
        return {"pixel_values": pixels, "labels": labels}
    name = config.get("architectures", [""])[0]
    if "Classification" in name:
        return {"input_ids": tokens, "labels": labels}
    # What is masked is not what was there.
    return {"input_ids": tokens, "labels": tokens if name == "" else tokens.clone()}


def switches(config: dict[str, Any]) -> dict[str, Any]:
    return {} if config["model_type"] in ("bert", "roberta", "vit") else {"use_cache": False}


def sharded(config: dict[str, Any], mesh: Any, mixed: bool, reshard: bool, device: str) -> nn.Module:
    import transformers

    raw = dict(config)
    made = transformers.CONFIG_MAPPING[raw.pop("model_type")](**raw)
    name = raw.get("architectures", [None])[0]
    kind = getattr(transformers, name) if name else transformers.AutoModelForCausalLM._model_mapping[type(made)]
    # Attention with sinks or soft-capping has no kernel.
    attention = "sdpa" if kind._supports_sdpa and made.model_type != "gemma2" else "eager"
    with torch.device(device):
        model = kind._from_config(made, attn_implementation=attention, dtype=torch.float32 if mixed else torch.bfloat16)
    model.train()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def theirs(config: dict[str, Any], ranks: int, mixed: bool, reshard: bool) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """The peak by kind, and the total after every operator, of the third step."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    model = sharded(config, dist.init_device_mesh("cuda", (ranks,)), mixed, reshard, "cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = batch_of(config, "cuda")
    tracker = Tracker(model, optimizer)
    tracker.track_inputs(tuple({id(value): value for value in batch.values()}.values()))
    with tracker:
        for step in range(3):
            if step == 2:
                gc.collect()
                tracker.start()
            output = model(**batch, **switches(config))
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.reset_mod_stats()
    dist.destroy_process_group()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cuda:0")]
    assert tracker.timeline is not None
    return {getattr(kind, "value", kind): size for kind, size in peak.items()}, tracker.timeline


def native(config: dict[str, Any], ranks: int, mixed: bool, reshard: bool) -> rematic.Trace:
    sizes = {"batch": BATCH} if "image_size" in config else {"batch": BATCH, "seq": LENGTH}
    step = rematic.Trace.model(config, **sizes, dtype="bf16", optimizer="adamw")
    return step.fsdp(ranks, mixed=mixed, reshard=reshard)


def captured(config: dict[str, Any], ranks: int, mixed: bool, reshard: bool) -> rematic.Trace:
    batch = batch_of(config, "cpu")
    with rematic.cluster(ranks) as mesh:
        model = sharded(config, mesh, mixed, reshard, "meta")
        return rematic.capture(model, **batch, **switches(config), optimizer=torch.optim.AdamW, device="cuda")


def differences(ours: rematic.Trace, peak: dict[str, int], timeline: list[tuple[str, int]]) -> list[str]:
    """What is unlike, in words."""
    found = []
    if ours.peak() != peak["Total"]:
        found.append(f"peak {ours.peak():,} for {peak['Total']:,}")
    kinds = Kinds(ours).at_peak()
    for kind in peak:
        if kind != "Total" and kinds.get(kind, 0) != peak[kind]:
            found.append(f"{kind} {kinds.get(kind, 0):,} for {peak[kind]:,}")
    return found + compared([(op.name, total) for op, total in zip(ours.ops, ours.timeline())], timeline)


def compared(own: list[tuple[str, int]], theirs: list[tuple[str, int]]) -> list[str]:
    """The total after every operator. Torch's tracker sees more of them than a trace has: views, and marks of its profiler."""
    at = missing = unlike = 0
    for name, total in own:
        names = (name, CALLED.get(name, name))
        found = next((other for other in range(at, len(theirs)) if theirs[other][0] in names), None)
        if found is None:
            missing += 1
            continue
        at = found + 1
        unlike += theirs[found][1] != total
    said = [f"{missing} of {len(own)} operators not found"] if missing else []
    return [*said, f"the total after {unlike} of {len(own)} operators"] if unlike else said


# Their layers are given numbers that FSDP2 casts in mixed precision, which is refused natively.
CASTS = {"olmo2"}


def main() -> None:
    import transformers.masking_utils

    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    mod_tracker.register_multi_grad_hook = register_without_holding
    torch.backends.cudnn.enabled = False
    names = sys.argv[1:] or list(CONFIGS)
    wrong = 0
    for name, ranks, mixed, reshard in itertools.product(names, RANKS, (False, True), (True, False)):
        real = theirs(CONFIGS[name], ranks, mixed, reshard)
        how = f"{ranks:2} ranks, {'mixed' if mixed else 'bf16'}, {'resharded' if reshard else 'not resharded'}"
        for step in (native, captured):
            may_refuse = step is native and mixed and name in CASTS
            try:
                found = differences(step(CONFIGS[name], ranks, mixed, reshard), *real)
                wrong += bool(found)
            except rematic.RematicError as refused:
                found = [f"refused: {refused}"]
                wrong += not may_refuse
            print(f"{name:8} {step.__name__:8} {how:31} {'; '.join(found) or 'equal'}", flush=True)
    print(f"{wrong} unlike")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
