"""The models whose steps are predicted and run: small enough to be quick, of many kinds, and a few as they are used.

Each is built on a device, and comes with its batch. A captured model is also what runs; a native one is traced by name.
"""
import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import libraries
import torch


@dataclasses.dataclass
class Model:
    """A training step."""

    build: Callable[[], torch.nn.Module]
    batch: Callable[[], dict[str, Any]]
    dtype: torch.dtype = torch.float32
    optimizer: str = "adamw"
    # What `rematic.Trace.model` is asked for; nothing for a captured one.
    native: dict[str, Any] | None = None
    # Whether its library leaves the device alone while it is imported, so that processes may part afterwards.
    forks: bool = True


HALF = torch.bfloat16
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


def causal(config: dict[str, Any], dtype: torch.dtype) -> torch.nn.Module:
    import transformers

    fields = dict(config)
    made = transformers.CONFIG_MAPPING[fields.pop("model_type")](**fields)
    return transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)


def decoder(config, batch=2, length=512, dtype=torch.float32, optimizer="adamw", native=False, **changes) -> Model:
    """A language model of transformers by its config: a dict, or a name in the directory of configs."""
    if isinstance(config, str):
        with open(os.path.join(os.environ["CONFIGS"], config)) as file:
            config = json.load(file)
    config = {**config, **changes}
    asked = {"source": config, "batch": batch, "seq": length, "dtype": dtype, "optimizer": optimizer}
    return Model(
        lambda: causal(config, dtype),
        lambda: {**labelled(batch, length)(), "use_cache": False},
        dtype,
        optimizer,
        asked if native else None,
    )


def family(name: str, head: str, inputs: Callable[[], dict[str, Any]], dtype=torch.float32, optimizer="adamw", attention="sdpa", **fields):
    """Another model of transformers: the class of its config without `Config`, and its head."""

    def build():
        import transformers

        config = getattr(transformers, f"{name}Config")(**fields)
        config._attn_implementation = attention
        return getattr(transformers, name + head)(config)

    return Model(build, inputs, dtype, optimizer)


def images(count: int, dtype=torch.float32) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.zeros(count, 3, 224, 224, dtype=dtype), "labels": tokens(count, 1)[:, 0]}


def network(name: str, config: dict[str, Any], batch: int, length: int | None = None, dtype=HALF, optimizer="adamw") -> Model:
    """A model of the native front end by its config, with the batch and the loss that the front end gives it."""
    from rematic._hugging_face.batch import batch_of
    from rematic._hugging_face.model import class_of, config_of
    from rematic._hugging_face.request import Request

    spelled = {torch.float32: "fp32", HALF: "bf16", torch.float16: "fp16"}[dtype]

    def build():
        made = config_of(Request(name, config, optimizer, "auto", batch=batch, seq=length, dtype=spelled))
        return class_of(made, config.get("architectures"))._from_config(made, dtype=dtype)

    def given():
        module = build()
        arguments = dict(batch_of(module, module.config, batch, length).arguments)
        is_causal = type(module).__name__.endswith("ForCausalLM")
        return {**arguments, "labels": arguments["input_ids"]} if is_causal else arguments

    def inputs():
        with torch.device("meta"):
            found = given()
        zeros = {value: torch.zeros(value.shape, dtype=value.dtype) for value in set(filter(torch.is_tensor, found.values()))}
        return {key: zeros[value] if torch.is_tensor(value) else value for key, value in found.items()}

    asked = {"source": config, "batch": batch, "seq": length, "dtype": dtype, "optimizer": optimizer}
    return Model(build, inputs, dtype, optimizer, asked)


def other(library: str, name: str, shapes: dict[str, tuple[int, ...]], target: tuple[int, ...], dtype=torch.float32,
          optimizer="adamw", **fields: Any) -> Model:  # fmt: skip
    """A model of another library: the function of `libraries.py` that builds it, and the shapes of what it reads and should say. What
    has one dimension is numbers of classes and the like."""

    def zeros(shape):
        return torch.zeros(shape, dtype=torch.long if len(shape) == 1 else dtype)

    return Model(
        lambda: getattr(libraries, library)(name, **fields),
        lambda: {**{name: zeros(shape) for name, shape in shapes.items()}, "labels": zeros(target)},
        dtype,
        optimizer,
        forks=library != "from_diffusers",
    )


def seed(layers=4, width=768, heads=12, vocabulary=8192, batch=8, length=1024, dtype=torch.float32) -> Model:
    def build():
        from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

        return Transformer(ModelArgs(layers, vocabulary, length, width, heads, 0.1))

    asked = {
        "source": "seed-transformer", "batch": batch, "seq": length, "layers": layers, "dim": width, "heads": heads,
        "vocab": vocabulary, "optimizer": "adam", "dtype": dtype,
    }  # fmt: skip
    return Model(build, lambda: {"tokens": tokens(batch, length)}, dtype, "adam", asked)


def labelled(batch: int, length: int) -> Callable[[], dict[str, Any]]:
    return lambda: dict.fromkeys(("input_ids", "labels"), tokens(batch, length))


# What is planned for: percentages of the way from the least budget to the plain step's peak.
SHARES = (60, 30, 0)
# They have convolutions, which run in cuDNN: on the runtime of rehearsals, which answers it.
CONVOLVING = (
    "vit", "vit-native", "clip-native", "dinov2", "convnext", "convnext-half", "segformer", "wav2vec2", "swin", "deit", "whisper",
    "efficientnet", "mobilenet", "resnet", "unet", "mobilevit",
)  # fmt: skip
WIDE = {"vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16}
LATENT = {
    "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2, "max_position_embeddings": 512,
}  # fmt: skip
GROUPED = {**WIDE, "intermediate_size": 2816, "num_key_value_heads": 4}

MODELS: dict[str, Callable[[], Model]] = {
    "seed": seed,
    "seed-wide": lambda: seed(2, 1000, 10, 5000, 3, 700),
    "seed-half": lambda: seed(3, 512, 8, 8192, 4, 512, HALF),
    "gpt2": lambda: decoder("gpt2.json", 4, 512, optimizer="adam", native=True),
    "gpt2-captured": lambda: decoder("gpt2.json", 4, 512, optimizer="adam"),
    "gpt2-half": lambda: decoder("gpt2.json", 8, 1024, HALF, native=True),
    "llama-tiny": lambda: decoder("llama-tiny.json", 2, 256, native=True),
    "llama-4-layers": lambda: decoder("llama-3-8b.json", 1, 4096, HALF, native=True, num_hidden_layers=4),
    "llama-3-8b": lambda: decoder("llama-3-8b.json", 1, 8192, HALF, native=True),
    "llama-4-captured": lambda: decoder("llama-3-8b.json", 2, 2048, HALF, num_hidden_layers=4),
    "qwen3": lambda: decoder({"model_type": "qwen3", **GROUPED, "head_dim": 128}, 2, 1024, HALF, native=True),
    "mistral": lambda: decoder({"model_type": "mistral", **GROUPED, "sliding_window": None}, 2, 1024, HALF, native=True),
    "llama-sgd": lambda: decoder({"model_type": "llama", **GROUPED}, 3, 777, HALF, "sgd-momentum", native=True),
    "llama-fused": lambda: decoder({"model_type": "llama", **GROUPED}, 3, 777, HALF, "adamw-fused", native=True),
    "gpt2-fused": lambda: decoder("gpt2.json", 4, 512, optimizer="adamw-fused", native=True),
    "llama-single": lambda: decoder({"model_type": "llama", **GROUPED}, 2, 600, optimizer="sgd", native=True),
    "llama-single-captured": lambda: decoder({"model_type": "llama", **GROUPED}, 2, 600, optimizer="sgd"),
    "qwen3-single": lambda: decoder({"model_type": "qwen3", **GROUPED, "head_dim": 128}, 4, 1024, optimizer="sgd"),
    "mistral-single": lambda: decoder(
        {"model_type": "mistral", **GROUPED, "num_key_value_heads": 1, "sliding_window": None}, 4, 1000,
        optimizer="sgd-momentum", native=True),
    "llama-dropping": lambda: decoder({"model_type": "llama", **GROUPED, "attention_dropout": 0.1}, 4, 512, native=True),
    "llama-odd-heads": lambda: decoder({"model_type": "llama", **GROUPED, "head_dim": 52}, 4, 512, HALF, "sgd", native=True),
    "llama-wide-heads": lambda: decoder({"model_type": "llama", **GROUPED, "head_dim": 264}, 4, 512, HALF, "sgd", native=True),
    "llama-broad-heads": lambda: decoder({"model_type": "llama", **GROUPED, "head_dim": 208}, 4, 512, HALF, native=True),
    "llama-broad-captured": lambda: decoder({"model_type": "llama", **GROUPED, "head_dim": 208}, 4, 512, HALF),
    "llama-math": lambda: decoder({"model_type": "llama", **GROUPED, "head_dim": 54}, 4, 512, optimizer="sgd", native=True),
    "qwen2": lambda: decoder({"model_type": "qwen2", **GROUPED}, 2, 1024, HALF),
    "opt": lambda: decoder(
        {"model_type": "opt", **WIDE, "ffn_dim": 4096, "word_embed_proj_dim": 1024, "max_position_embeddings": 2048}, 2, 512),
    "gpt-neox": lambda: decoder({"model_type": "gpt_neox", **WIDE, "intermediate_size": 4096}, 2, 1024, HALF),
    "gemma": lambda: decoder({"model_type": "gemma2", **GROUPED, "head_dim": 64}, 2, 512, HALF),
    "phi": lambda: decoder({"model_type": "phi", **WIDE, "intermediate_size": 4096}, 2, 512, torch.float16),
    "falcon": lambda: decoder({"model_type": "falcon", **WIDE, "new_decoder_architecture": False}, 2, 512, HALF),
    "bert": lambda: family("Bert", "ForMaskedLM", labelled(8, 384)),
    "bert-half": lambda: family("Bert", "ForMaskedLM", labelled(16, 256), HALF, "adamw-fused"),
    "distilbert": lambda: family("DistilBert", "ForMaskedLM", labelled(8, 256)),
    "roberta": lambda: family("Roberta", "ForMaskedLM", labelled(4, 512), HALF, pad_token_id=1),
    "electra": lambda: family("Electra", "ForMaskedLM", labelled(8, 256), optimizer="adamw-fused"),
    "t5": lambda: family("T5", "ForConditionalGeneration", lambda: {**labelled(4, 256)(), "use_cache": False},
                         decoder_start_token_id=0),
    "bart": lambda: family("Bart", "ForConditionalGeneration", lambda: {**labelled(2, 512)(), "use_cache": False},
                           encoder_layers=4, decoder_layers=4),
    "vit": lambda: family("ViT", "ForImageClassification",
                          lambda: {"pixel_values": torch.zeros(16, 3, 224, 224), "labels": tokens(16, 1)[:, 0]}),
    "vit-native": lambda: network("vit", {"model_type": "vit", "architectures": ["ViTForImageClassification"], "num_labels": 1000}, 16),
    "clip-native": lambda: network("clip", {"model_type": "clip"}, 16, 77),
    "bert-native": lambda: network("bert", {"model_type": "bert", "architectures": ["BertForMaskedLM"]}, 8, 384),
    "deepseek-v2": lambda: network("deepseek", {"model_type": "deepseek_v2", **LATENT}, 8, 256),
    "deepseek-v3": lambda: network("deepseek", {"model_type": "deepseek_v3", **LATENT}, 8, 256),
    "gpt-oss": lambda: network("gpt-oss", {
        "model_type": "gpt_oss", **GROUPED, "intermediate_size": 512, "head_dim": 64, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": 128}, 4, 512),
    "albert": lambda: family("Albert", "ForMaskedLM", labelled(8, 256), hidden_size=768, num_attention_heads=12,
                             intermediate_size=3072, num_hidden_layers=6),
    "xlm-roberta": lambda: family("XLMRoberta", "ForSequenceClassification",
                                  lambda: {"input_ids": tokens(8, 256), "labels": tokens(8, 1)[:, 0]}, vocab_size=100_000),
    # The rules were not made with these at hand.
    "bloom": lambda: decoder({"model_type": "bloom", "vocab_size": 32000, "hidden_size": 1024, "n_layer": 6, "n_head": 16}, 2, 512),
    "gptj": lambda: decoder(
        {"model_type": "gptj", "vocab_size": 32000, "n_embd": 1024, "n_layer": 6, "n_head": 16, "rotary_dim": 32}, 2, 512, HALF),
    "stablelm": lambda: decoder({"model_type": "stablelm", **GROUPED}, 2, 777, HALF, "adamw-fused"),
    "olmo2": lambda: decoder({"model_type": "olmo2", **GROUPED, "pad_token_id": 0}, 3, 512, HALF),
    "cohere": lambda: decoder({"model_type": "cohere", **GROUPED, "pad_token_id": 0}, 2, 512, HALF, "sgd-momentum"),
    "starcoder2": lambda: decoder({"model_type": "starcoder2", **GROUPED}, 2, 1024, HALF),
    "granite": lambda: decoder({"model_type": "granite", **GROUPED}, 2, 512),
    "modernbert": lambda: family("ModernBert", "ForMaskedLM", labelled(4, 256), num_hidden_layers=6),
    "deberta": lambda: family("DebertaV2", "ForMaskedLM", labelled(4, 256), attention="eager", num_hidden_layers=4, hidden_size=768,
                              num_attention_heads=12, intermediate_size=3072, vocab_size=32000),
    "mpnet": lambda: family("MPNet", "ForMaskedLM", labelled(8, 256), HALF, attention="eager", num_hidden_layers=6),
    "dinov2": lambda: family("Dinov2", "ForImageClassification",
                             lambda: {"pixel_values": torch.zeros(8, 3, 224, 224), "labels": tokens(8, 1)[:, 0]}, num_hidden_layers=6),
    # Nor were these, which came after all of them.
    "olmo": lambda: decoder({"model_type": "olmo", **GROUPED, "pad_token_id": 0}, 2, 512, HALF),
    "glm4": lambda: decoder({"model_type": "glm4", **GROUPED, "head_dim": 64, "pad_token_id": 0}, 2, 512, HALF),
    "nemotron": lambda: decoder({"model_type": "nemotron", **GROUPED, "pad_token_id": 0}, 2, 512, HALF, "adamw-fused"),
    "smollm3": lambda: decoder({"model_type": "smollm3", **GROUPED, "pad_token_id": 0}, 3, 333, HALF),
    "gpt-bigcode": lambda: decoder(
        {"model_type": "gpt_bigcode", "vocab_size": 32000, "n_embd": 1024, "n_layer": 6, "n_head": 16, "n_positions": 1024}, 2, 512),
    "codegen": lambda: decoder(
        {"model_type": "codegen", "vocab_size": 32000, "n_embd": 1024, "n_layer": 4, "n_head": 16, "rotary_dim": 32}, 2, 512, optimizer="sgd"),
    "camembert": lambda: family("Camembert", "ForTokenClassification", labelled(8, 256), HALF, num_hidden_layers=6),
    "pegasus": lambda: family("Pegasus", "ForConditionalGeneration", lambda: {**labelled(2, 256)(), "use_cache": False},
                              encoder_layers=3, decoder_layers=3, vocab_size=32000, decoder_start_token_id=0),
    # Convolutions throughout: one filter a channel, over one and two dimensions, of images that do not lie as such.
    "convnext": lambda: family("ConvNext", "ForImageClassification", images(16), optimizer="sgd-momentum", attention="eager"),
    "convnext-half": lambda: family("ConvNext", "ForImageClassification", images(32, HALF), HALF, attention="eager"),
    "segformer": lambda: family("Segformer", "ForImageClassification", images(8), attention="eager", drop_path_rate=0.0),
    "wav2vec2": lambda: family("Wav2Vec2", "ForSequenceClassification",
                               lambda: {"input_values": torch.zeros(4, 32_000), "labels": tokens(4, 1)[:, 0]},
                               num_hidden_layers=4, apply_spec_augment=False, layerdrop=0.0),
    # Run once as they are, before anything was mended for them.
    "swin": lambda: family("Swin", "ForImageClassification", images(16), attention="eager", drop_path_rate=0.0),
    "deit": lambda: family("DeiT", "ForImageClassification", images(16, HALF), HALF, "adamw-fused", num_hidden_layers=6),
    "whisper": lambda: family("Whisper", "ForConditionalGeneration", lambda: {
        "input_features": torch.zeros(4, 80, 3000), "labels": tokens(4, 64), "use_cache": False}, d_model=384, encoder_layers=4,
        decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6),
    "gpt-neo": lambda: decoder({"model_type": "gpt_neo", "vocab_size": 32000, "hidden_size": 768, "num_layers": 4, "num_heads": 12,
                                "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 1024}, 2, 512),
    "marian": lambda: family("Marian", "MTModel", lambda: {**labelled(4, 256)(), "use_cache": False}, d_model=512, encoder_layers=3,
                             decoder_layers=3, encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=32000, decoder_start_token_id=0,
                             pad_token_id=1, max_position_embeddings=512),
    "efficientnet": lambda: other("from_timm", "efficientnet_b0", {"x": (16, 3, 224, 224)}, (16,)),
    "mobilenet": lambda: other("from_timm", "mobilenetv3_large_100", {"x": (16, 3, 224, 224)}, (16,), HALF, "sgd-momentum"),
    "resnet": lambda: other("from_torchvision", "resnet50", {"x": (16, 3, 224, 224)}, (16,), optimizer="sgd-momentum"),
    "unet": lambda: other("from_diffusers", "UNet2DModel", {"sample": (8, 3, 64, 64), "timestep": (8,)}, (8, 3, 64, 64),
                          block_out_channels=(64, 128, 256), layers_per_block=1, attention_head_dim=8, norm_num_groups=32,
                          down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
                          up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")),
    "mobilevit": lambda: family("MobileViT", "ForImageClassification", lambda: {
        "pixel_values": torch.zeros(16, 3, 256, 256), "labels": tokens(16, 1)[:, 0]}, attention="eager"),
}
STRANGERS = list(MODELS)[list(MODELS).index("bloom") :]


def built(model: Model, device: str) -> torch.nn.Module:
    """The model on a device, made in its type: a conversion would leave segments of the wider one behind."""
    before, drawn = torch.get_default_dtype(), torch.nn.init._no_grad_trunc_normal_
    torch.set_default_dtype(model.dtype)
    # In place, as all others are: how often it draws again, in memory of its own, follows values that the fake GPU does not have.
    torch.nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: torch.nn.init.normal_(tensor)
    try:
        with torch.device(device):
            return model.build().train()
    finally:
        torch.set_default_dtype(before)
        torch.nn.init._no_grad_trunc_normal_ = drawn


def loss(output: Any) -> torch.Tensor:
    """The output's own loss, or the sum of what it is."""
    return output.sum() if isinstance(output, torch.Tensor) else output.loss
