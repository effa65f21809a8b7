"""Steps under tensor parallelism, alone and with FSDP2 over it, on the fake GPU, against what we predict for them.

    run tensor.py REMATIC [NAME...]     REMATIC is the command; a line for each step, then each under plans for five budgets, put on
                                        before and after the model is sharded

The model of transformers is dealt out as `dealt.py` and `networks.py` say. It is built without memory and sharded, then its shards are made. The third
step is measured.
"""
import json
import pathlib
import sys
from functools import partial

import torch
from dealt import share
from networks import share_network
from real import peaks, without_values
from sharded import compare, put_on, ready

import models

QWEN3_8B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = ("llama-3-8b", "llama-3-8b.json", 1, 8192, "adamw")
QWEN = ("qwen3-8b", QWEN3_8B, 1, 8192, "adamw")
BUILTIN = pathlib.Path(__file__).parents[2] / "crates/rematic-fake/src/models/builtin"
SEED = ("seed-transformer", None, 8, 1024, "adam")


def network(name: str, batch: int, length: int | None) -> tuple:
    return (name, json.loads((BUILTIN / f"{name}.json").read_text()), batch, length, "adamw")


# The step, and the ranks that share the model, those that parameters are spread over, the rank, reshard, mixed.
CASES = {
    "llama": (LLAMA, 8, 1, 0, True, False),
    "llama-last": (LLAMA, 8, 1, 7, True, False),
    "llama-2d": (LLAMA, 8, 8, 0, True, False),
    "llama-2d-last": (LLAMA, 8, 8, 63, True, False),
    "llama-2d-mixed": (LLAMA, 8, 8, 0, True, True),
    "llama-2d-kept": (LLAMA, 2, 4, 0, False, False),
    "qwen3-2d": (QWEN, 4, 8, 0, True, False),
    "qwen3-2d-last": (QWEN, 4, 8, 31, True, False),
    "mistral": (("mistral-7b", MISTRAL_7B, 2, 2048, "adam"), 4, 1, 0, True, False),
    "qwen2": (("qwen2.5-7b", QWEN2_7B, 4, 1024, "sgd-momentum"), 2, 1, 1, True, False),
    "seed": (SEED, 4, 1, 3, True, False),
    "seed-2d": (SEED, 2, 4, 7, True, False),
    "bert": (network("bert-large", 8, 512), 8, 1, 7, True, False),
    "bert-2d": (network("bert-large", 8, 512), 2, 8, 0, True, False),
    "bert-2d-mixed": (network("bert-base", 4, 384), 4, 4, 15, False, True),
    "roberta-2d": (network("roberta-base", 8, 257), 4, 2, 7, True, False),
    "t5-2d": (network("t5-base", 4, 256), 4, 2, 0, True, False),
    "vit-2d": (network("vit-large", 16, None), 4, 2, 7, True, False),
}
# They convolve, which the fake GPU cannot.
CONVOLVING = ("vit-2d",)


def train(step: tuple, how: tuple, plan: str | None = None, late: bool = True) -> dict[str, int]:
    """Three steps; the counters of the third. A plan is put on after sharding, or before."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    without_values()
    tp, fsdp, rank, reshard, mixed = how
    length = step[3]
    model = model_of(step, torch.float32 if mixed else torch.bfloat16)
    module = models.built(model, "meta")
    dist.init_process_group("fake", rank=rank, world_size=tp * fsdp, store=FakeStore())
    mesh = dist.init_device_mesh("cuda", (fsdp, tp), mesh_dim_names=("dp", "tp"))

    if is_decoder(step):
        share(module, mesh["tp"], length)
    else:
        share_network(module, mesh["tp"])
    if plan is not None and not late:
        put_on(module, plan)
    if fsdp > 1:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
        for layer in layers_of(module):
            fully_shard(layer, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
    module.to_empty(device="cuda")
    if plan is not None and late:
        put_on(module, plan)
    return peaks(three_steps(model, module))


def is_decoder(step: tuple) -> bool:
    return step[0] != SEED[0] and (isinstance(step[1], str) or "architectures" not in step[1])


def model_of(step: tuple, dtype: torch.dtype) -> models.Model:
    name, config, batch, length, optimizer = step
    if name == SEED[0]:
        return models.seed(dtype=dtype)
    if is_decoder(step):
        return models.decoder(config, batch, length, dtype, optimizer)
    return models.network(name, config, batch, length, dtype, optimizer)


def layers_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """What FSDP2 shards by itself: the members of the outermost lists."""
    for names in (("model.layers",), ("layers",), ("bert.encoder.layer",), ("roberta.encoder.layer",), ("vit.layers",),
                  ("encoder.block", "decoder.block")):  # fmt: skip
        try:
            return [layer for name in names for layer in module.get_submodule(name)]
        except AttributeError:
            continue
    raise LookupError(type(module).__name__)


def three_steps(model: models.Model, module: torch.nn.Module) -> dict[str, int]:
    """As `real.three_steps`, with the loss from logits that are dealt out, and positions, which a rank cannot count."""
    from torch.distributed.tensor.parallel import loss_parallel

    batch = model.batch()
    moved = {value: value.to("cuda") for value in set(filter(torch.is_tensor, batch.values()))}
    batch = {name: moved[value] if torch.is_tensor(value) else value for name, value in batch.items()}
    if type(module).__name__.removeprefix("FSDP").endswith("ForCausalLM"):
        batch["position_ids"] = torch.arange(batch["input_ids"].shape[1], device="cuda")[None]
    optimizer = models.OPTIMIZERS[model.optimizer](module.parameters())
    for step in range(3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        with loss_parallel():
            output = module(batch["tokens"]) if "tokens" in batch else module(**batch)
            models.loss(output).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.memory_stats()


def options(step: tuple, how: tuple) -> list[str]:
    """What is asked of the command."""
    name, _, batch, length, optimizer = step
    tp, fsdp, rank, reshard, mixed = how
    asked = [name, "--batch", str(batch), "--optimizer", optimizer]
    asked += ["--seq", str(length)] if length is not None else []
    asked += [] if is_decoder(step) or mixed else ["--precision", "bf16"]
    asked += ["--tp", str(tp), "--tp-rank", str(rank % tp)]
    if fsdp > 1:
        asked += ["--fsdp", str(fsdp), "--fsdp-rank", str(rank // tp), "--reshard", "yes" if reshard else "no"]
        asked += ["--precision", "mixed"] if mixed else []
    return asked


def main(command: str, *names: str) -> None:
    for name in names or [case for case in CASES if case not in CONVOLVING]:
        step, *how = CASES[name]
        question = options(step, tuple(how))
        if step[0] != SEED[0]:
            # PyTorch's test models use the device as soon as they are imported, and processes must not.
            ready(model_of(step, torch.bfloat16))
        compare(command, " ".join(question), question, partial(train, step, tuple(how)))


if __name__ == "__main__":
    main(*sys.argv[1:])
