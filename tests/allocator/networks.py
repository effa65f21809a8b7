"""How models that are not decoders alone are dealt out to ranks by `parallelize_module`, with its default styles.

Projections into heads and into the width of the feed-forward network go by columns (`ColwiseParallel()`), those back by rows
(`RowwiseParallel()`): every rank has all of the hidden states, and sums of summands. Tables of tokens go by rows of the vocabulary,
and so do the logits that are compared with tokens, of which the loss is computed where they lie (`loss_parallel()`). All else is on all
ranks the same: norms, other tables, classifiers, and parameters that are a module's own.

`seed-transformer` has a plan of PyTorch's, `Transformer.parallelize`, with parts of the sequence between the layers.
"""
import fnmatch
from typing import Any

import torch
from dealt import WHOLE, Replicated
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from transformers.distributed.parallel_utils import _use_local_dtensor_params


class Own(ParallelStyle):
    """Parameters that are a module's own, on all ranks the same. Its forward computes with tensors of the rank's own."""

    def _apply(self, module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                same = distribute_tensor(parameter, mesh, [WHOLE], src_data_rank=None)
                module.register_parameter(name, torch.nn.Parameter(same))
        plain = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with _use_local_dtensor_params(module):
                return plain(*args, **kwargs)

        module.forward = forward
        return module


def columns(*paths: str) -> dict[str, ParallelStyle]:
    return {path: ColwiseParallel() for path in paths}


def rows(*paths: str) -> dict[str, ParallelStyle]:
    return {path: RowwiseParallel() for path in paths}


def same(*paths: str) -> dict[str, ParallelStyle]:
    return {path: Replicated() for path in paths}


def own(*paths: str) -> dict[str, ParallelStyle]:
    return {path: Own() for path in paths}


def table(*paths: str) -> dict[str, ParallelStyle]:
    return {path: RowwiseParallel(input_layouts=WHOLE) for path in paths}


def logits(*paths: str) -> dict[str, ParallelStyle]:
    return {path: ColwiseParallel(output_layouts=Shard(-1), use_local_output=False) for path in paths}


def bert(base: str) -> dict[str, ParallelStyle]:
    """BERT and RoBERTa, with the heads for masked tokens and for classes."""
    layer = f"{base}.encoder.layer.*"
    return {
        **table(f"{base}.embeddings.word_embeddings"),
        **same(f"{base}.embeddings.position_embeddings", f"{base}.embeddings.token_type_embeddings", f"{base}.embeddings.LayerNorm"),
        **columns(*(f"{layer}.attention.self.{name}" for name in ("query", "key", "value")), f"{layer}.intermediate.dense"),
        **rows(f"{layer}.attention.output.dense", f"{layer}.output.dense"),
        **same(f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm", f"{base}.pooler.dense"),
        **same("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "lm_head.dense", "lm_head.layer_norm"),
        **logits("cls.predictions.decoder", "lm_head.decoder"),
        **same("classifier.dense", "classifier.out_proj", "classifier"),
    }


def vit() -> dict[str, ParallelStyle]:
    layer = "vit.layers.*"
    return {
        **own("vit.embeddings", "vit.embeddings.patch_embeddings.projection"),
        **columns(*(f"{layer}.attention.{name}_proj" for name in "qkv"), f"{layer}.mlp.fc1"),
        **rows(f"{layer}.attention.o_proj", f"{layer}.mlp.fc2"),
        **same(f"{layer}.layernorm_before", f"{layer}.layernorm_after", "vit.layernorm", "classifier"),
    }


def clip() -> dict[str, ParallelStyle]:
    layer = "*.encoder.layers.*"
    return {
        **own("vision_model.embeddings", "vision_model.embeddings.patch_embedding"),
        **table("text_model.embeddings.token_embedding"),
        **same("*.embeddings.position_embedding", "vision_model.pre_layrnorm", "vision_model.post_layernorm", "text_model.final_layer_norm"),
        **columns(*(f"{layer}.self_attn.{name}_proj" for name in "qkv"), f"{layer}.mlp.fc1"),
        **rows(f"{layer}.self_attn.out_proj", f"{layer}.mlp.fc2"),
        **same(f"{layer}.layer_norm1", f"{layer}.layer_norm2", "visual_projection", "text_projection"),
    }


def t5() -> dict[str, ParallelStyle]:
    layer = "*.block.*.layer.*"
    attentions = ("SelfAttention", "EncDecAttention")
    return {
        **table("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        **columns(*(f"{layer}.{attention}.{name}" for attention in attentions for name in "qkv")),
        **columns(f"{layer}.SelfAttention.relative_attention_bias"),
        **columns(*(f"{layer}.DenseReluDense.{name}" for name in ("wi", "wi_0", "wi_1"))),
        **rows(*(f"{layer}.{attention}.o" for attention in attentions), f"{layer}.DenseReluDense.wo"),
        **same(f"{layer}.layer_norm", "encoder.final_layer_norm", "decoder.final_layer_norm"),
        **logits("lm_head"),
    }


PLANS = {"Bert": lambda: bert("bert"), "Roberta": lambda: bert("roberta"), "ViT": vit, "CLIP": clip, "T5": t5}


def share_network(module: Any, mesh: Any) -> None:
    """Deals the model out to the ranks of a mesh."""
    kind = type(module).__name__
    if kind == "Transformer":
        type(module).parallelize(module, mesh, use_seq_parallel=True, local_output_for_attn=True)
        return
    plan = next(plan for prefix, plan in PLANS.items() if kind.startswith(prefix))()
    parallelize_module(module, mesh, {path: style for path, style in plan.items() if found(module, path)})
    if kind == "CLIPModel":
        parallelize_module(module, mesh, Own())
    if kind.startswith("T5"):
        # Tables that are one stay one, and attention counts its own heads.
        module.encoder.embed_tokens.weight = module.decoder.embed_tokens.weight = module.shared.weight
        for inner in module.modules():
            if type(inner).__name__ == "T5Attention":
                inner.n_heads, inner.inner_dim = inner.n_heads // mesh.size(), inner.inner_dim // mesh.size()
    for head in filter(None, (getattr(getattr(module, "cls", None), "predictions", None), getattr(module, "lm_head", None))):
        if hasattr(head, "decoder"):
            # A name for the decoder's bias that nothing reads.
            head.bias = head.decoder.bias


def found(module: torch.nn.Module, path: str) -> bool:
    """Whether the model has modules of that name with parameters."""
    return any(fnmatch.fnmatchcase(name, path) and inner._parameters for name, inner in module.named_modules())
