"""Models of transformers: text, vision, sound, several of them at once, and time series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from .entry import ATTENTION, CONVOLUTIONS, NORMS, Build, Entry, classes, floats, tokens

Inputs = Callable[[], dict[str, Any]]
BATCH, LENGTH, VOCABULARY = 4, 64, 256
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
DECODER = {**TEXT, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CODER = {"vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 256,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
         # Which layers are left out, random numbers would decide.
         "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # fmt: skip
VISION = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
          "patch_size": 8, "num_channels": 3}  # fmt: skip
SOUND = {"vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
         "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0,
         "pad_token_id": 0}  # fmt: skip


def model(kind: str, inputs: Inputs, **fields: Any) -> Callable[[str], Build]:
    """A model by its class, with a config of these fields."""

    def build(device: str) -> Build:
        cls = getattr(transformers, kind)
        with torch.device(device):
            made = cls(cls.config_class(**fields))
        return made, (), inputs()

    return build


def mixed(kind: str, inputs: Inputs, parts: dict[str, tuple[str, dict[str, Any]]], **fields: Any) -> Callable[[str], Build]:
    """One whose config has others in it, given by the names of their classes."""

    def build(device: str) -> Build:
        cls = getattr(transformers, kind)
        inner = {name: getattr(transformers, config)(**settings) for name, (config, settings) in parts.items()}
        with torch.device(device):
            made = cls(cls.config_class(**inner, **fields))
        return made, (), inputs()

    return build


# ---- batches ----


def language(length: int = LENGTH, **more: Any) -> Inputs:
    def make() -> dict[str, Any]:
        ids = tokens(BATCH, length, VOCABULARY)
        return {"input_ids": ids, "labels": ids, **more}

    return make


def padded() -> Tensor:
    """A mask for texts of several lengths."""
    return (torch.arange(LENGTH) < torch.tensor([64, 50, 37, 20])[:, None]).long()


def masked_language() -> dict[str, Any]:
    return {**language()(), "attention_mask": padded()}


def sequence_classes() -> dict[str, Any]:
    return {"input_ids": tokens(BATCH, LENGTH, VOCABULARY), "attention_mask": padded(), "labels": classes(BATCH, 2)}


def spans() -> dict[str, Any]:
    return {
        "input_ids": tokens(BATCH, LENGTH, VOCABULARY), "attention_mask": padded(),
        "start_positions": classes(BATCH, 9), "end_positions": classes(BATCH, 9) + 3,
    }  # fmt: skip


def token_classes() -> dict[str, Any]:
    return {"input_ids": tokens(BATCH, LENGTH, VOCABULARY), "labels": tokens(BATCH, LENGTH, 2, least=0)}


def translation(**more: Any) -> Inputs:
    def make() -> dict[str, Any]:
        return {
            "input_ids": tokens(BATCH, LENGTH, VOCABULARY), "attention_mask": padded(),
            "labels": tokens(BATCH, 48, VOCABULARY, seed=1), "use_cache": False, **more,
        }  # fmt: skip

    return make


def images(size: int = 64, labels: int | None = 2, batch: int = BATCH, **more: Any) -> Inputs:
    def make() -> dict[str, Any]:
        known = {} if labels is None else {"labels": classes(batch, labels)}
        return {"pixel_values": floats(batch, 3, size, size), **known, **more}

    return make


def segments(size: int = 64, classes_: int = 2) -> Inputs:
    def make() -> dict[str, Any]:
        labels = tokens(BATCH, size * size, classes_, least=0).view(BATCH, size, size)
        return {"pixel_values": floats(BATCH, 3, size, size), "labels": labels}

    return make


def boxes(size: int = 64) -> Inputs:
    def make() -> dict[str, Any]:
        def target(seed: int) -> dict[str, Tensor]:
            return {"class_labels": tokens(1, 3, 2, least=0, seed=seed)[0], "boxes": floats(3, 4, seed=seed).sigmoid() / 2}

        return {"pixel_values": floats(2, 3, size, size), "labels": [target(1), target(2)]}

    return make


def masks(size: int = 64) -> Inputs:
    def make() -> dict[str, Any]:
        shapes = [(floats(3, size, size, seed=seed) > 0).float() for seed in (1, 2)]
        return {
            "pixel_values": floats(2, 3, size, size), "mask_labels": shapes,
            "class_labels": [tokens(1, 3, 2, least=0, seed=seed)[0] for seed in (1, 2)],
        }  # fmt: skip

    return make


def videos(labels: int | None = 2) -> Inputs:
    def make() -> dict[str, Any]:
        known = {} if labels is None else {"labels": classes(2, labels)}
        return {"pixel_values": floats(2, 8, 3, 32, 32), **known}

    return make


def waves(labels: Callable[[], Tensor]) -> Inputs:
    return lambda: {"input_values": floats(2, 4000), "labels": labels()}


def spoken() -> Tensor:
    return tokens(2, 20, 32)


def spectra(**more: Any) -> Inputs:
    return lambda: {
        "input_features": floats(2, 16, 100), "labels": tokens(2, 32, VOCABULARY), "use_cache": False, **more
    }  # fmt: skip


def pairs(size: int = 64, length: int = 24, **more: Any) -> Inputs:
    """Texts and images."""

    def make() -> dict[str, Any]:
        return {"input_ids": tokens(BATCH, length, VOCABULARY), "pixel_values": floats(BATCH, 3, size, size), **more}

    return make


def conversation(image_token: int, images_: int, size: int = 64, length: int = 96, **more: Any) -> Inputs:
    """Texts with places for parts of an image."""

    def make() -> dict[str, Any]:
        ids = tokens(2, length, image_token)
        ids[:, 4 : 4 + images_] = image_token
        return {"input_ids": ids, "labels": ids, "pixel_values": floats(2, 3, size, size), "use_cache": False, **more}

    return make


def qwen_conversation() -> dict[str, Any]:
    """Two images, each of 8 by 8 patches of which four make a token."""
    ids = tokens(2, 64, 250)
    ids[:, 4], ids[:, 5:21], ids[:, 21] = 251, 253, 252
    return {
        "input_ids": ids, "labels": ids, "pixel_values": floats(128, 3 * 2 * 8 * 8), "attention_mask": torch.ones_like(ids),
        "image_grid_thw": torch.tensor([[1, 8, 8]] * 2), "mm_token_type_ids": (ids == 253).int(), "use_cache": False,
    }  # fmt: skip


def past(lags: int = 7, context: int = 64, future: int = 16) -> Inputs:
    """A time series, what is known of it, and what comes next."""

    def make() -> dict[str, Any]:
        return {
            "past_values": floats(BATCH, context + lags), "past_time_features": floats(BATCH, context + lags, 2),
            "past_observed_mask": torch.ones(BATCH, context + lags), "future_values": floats(BATCH, future, seed=1),
            "future_time_features": floats(BATCH, future, 2, seed=1), "static_categorical_features": torch.zeros(
            BATCH, 1, dtype=torch.long), "use_cache": False,
        }  # fmt: skip

    return make


SERIES = {"prediction_length": 16, "context_length": 64, "lags_sequence": [1, 7], "num_time_features": 2,
          "num_static_categorical_features": 1, "cardinality": [4], "embedding_dimension": [4], "d_model": 32,
          "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
          "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "use_cache": False, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # fmt: skip
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "layer_type": "basic",
          "out_features": ["stage4"]}  # fmt: skip
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
CLIP_TEXT = {**TEXT, "max_position_embeddings": 64}
DETR = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 12, "num_labels": 2}  # fmt: skip
QWEN_VISION = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 8, "spatial_merge_size": 2}

TEXTS: dict[str, Callable[[str], Build]] = {
    # Decoders.
    "gpt2": model("GPT2LMHeadModel", language(use_cache=False), vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4),
    "gpt_neo": model(
        "GPTNeoForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, hidden_size=64, num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]], window_size=16, max_position_embeddings=256,
    ),
    "gpt_neox": model("GPTNeoXForCausalLM", language(use_cache=False), **TEXT),
    "gptj": model(
        "GPTJForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, rotary_dim=8,
        n_positions=256,
    ),
    "opt": model("OPTForCausalLM", language(use_cache=False), **TEXT, ffn_dim=128, word_embed_proj_dim=64),
    "bloom": model(
        "BloomForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4
    ),
    "falcon": model("FalconForCausalLM", language(use_cache=False), **TEXT, alibi=True, new_decoder_architecture=False),
    "mpt": model(
        "MptForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, d_model=64, n_layers=2, n_heads=4, max_seq_len=128
    ),
    "phi": model("PhiForCausalLM", language(use_cache=False), **TEXT),
    "phi3": model("Phi3ForCausalLM", language(use_cache=False), **DECODER),
    "mistral": model("MistralForCausalLM", masked_language, **DECODER, sliding_window=16, use_cache=False),
    "qwen2": model("Qwen2ForCausalLM", masked_language, **DECODER, use_cache=False),
    "gemma2": model("Gemma2ForCausalLM", language(use_cache=False), **DECODER, head_dim=16, sliding_window=16),
    "gemma3": model("Gemma3ForCausalLM", language(use_cache=False), **DECODER, head_dim=16, sliding_window=16),
    "olmo2": model("Olmo2ForCausalLM", language(use_cache=False), **DECODER),
    "stablelm": model("StableLmForCausalLM", language(use_cache=False), **DECODER),
    "starcoder2": model("Starcoder2ForCausalLM", language(use_cache=False), **DECODER),
    "cohere": model("CohereForCausalLM", language(use_cache=False), **DECODER),
    "codegen": model(
        "CodeGenForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, rotary_dim=8
    ),
    "ctrl": model("CTRLLMHeadModel", language(use_cache=False), vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, dff=128),
    "xglm": model(
        "XGLMForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, d_model=64, ffn_dim=128, num_layers=2,
        attention_heads=4,
    ),
    "xlnet": model("XLNetLMHeadModel", language(), vocab_size=VOCABULARY, d_model=64, n_layer=2, n_head=4, d_inner=128),
    "glm4": model("Glm4ForCausalLM", language(use_cache=False), **DECODER, head_dim=16),
    "imagegpt": model(
        "ImageGPTForCausalImageModeling", language(use_cache=False), vocab_size=VOCABULARY + 1, n_embd=64, n_layer=2, n_head=4,
        n_positions=256,
    ),
    # Mixtures of experts.
    "mixtral": model("MixtralForCausalLM", language(use_cache=False), **DECODER, **EXPERTS, output_router_logits=True),
    "qwen3_moe": model("Qwen3MoeForCausalLM", language(use_cache=False), **DECODER, **EXPERTS, head_dim=16),
    "olmoe": model("OlmoeForCausalLM", language(use_cache=False), **DECODER, **EXPERTS),
    "gpt_oss": model("GptOssForCausalLM", language(use_cache=False), **DECODER, **EXPERTS, head_dim=16, sliding_window=16),
    "deepseek_v3": model(
        "DeepseekV3ForCausalLM", language(use_cache=False), **{**DECODER, "num_key_value_heads": 4}, moe_intermediate_size=32,
        n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=16,
        q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    ),
    "switch_transformers": model(
        "SwitchTransformersForConditionalGeneration", translation(), vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128,
        num_layers=2, num_decoder_layers=2, num_heads=4, num_experts=4, decoder_start_token_id=0,
    ),
    # State spaces and recurrences.
    "mamba": model(
        "MambaForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, hidden_size=64, state_size=8, num_hidden_layers=2
    ),
    "mamba2": model(
        "Mamba2ForCausalLM", language(use_cache=False), vocab_size=VOCABULARY, hidden_size=64, state_size=8,
        num_hidden_layers=2, num_heads=8, head_dim=16, n_groups=2, chunk_size=16,
    ),
    "recurrent_gemma": model(
        "RecurrentGemmaForCausalLM", language(use_cache=False), **DECODER, lru_width=64, attention_window_size=16, conv1d_width=4
    ),
    "rwkv": model(
        "RwkvForCausalLM", language(16), vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, context_length=64
    ),
    "bamba": model(
        "BambaForCausalLM", language(use_cache=False), **DECODER, attn_layer_indices=[1], mamba_n_heads=8, mamba_n_groups=1,
        mamba_d_state=8, mamba_d_head=16, mamba_chunk_size=16,
    ),
    # Encoders.
    "bert": model("BertForMaskedLM", masked_language, **TEXT),
    "albert": model("AlbertForSequenceClassification", sequence_classes, **TEXT, embedding_size=32),
    "canine": model(
        "CanineForSequenceClassification", sequence_classes, **TEXT, local_transformer_stride=16, num_hash_buckets=64
    ),
    "convbert": model("ConvBertForMaskedLM", masked_language, **TEXT, embedding_size=64),
    "deberta_v2": model(
        "DebertaV2ForMaskedLM", masked_language, **TEXT, relative_attention=True, position_buckets=16,
        pos_att_type=["p2c", "c2p"],
    ),
    "distilbert": model(
        "DistilBertForQuestionAnswering", spans, vocab_size=VOCABULARY, dim=64, hidden_dim=128, n_layers=2, n_heads=4
    ),
    "electra": model("ElectraForTokenClassification", token_classes, **TEXT, embedding_size=32),
    "fnet": model("FNetForMaskedLM", language(), **TEXT),
    "funnel": model(
        "FunnelForMaskedLM", masked_language, vocab_size=VOCABULARY, block_sizes=[1, 1], d_model=64, n_head=4, d_head=16,
        d_inner=128,
    ),
    "longformer": model("LongformerForMaskedLM", masked_language, **TEXT, attention_window=[16, 16]),
    "modernbert": model("ModernBertForMaskedLM", masked_language, **TEXT, local_attention=16),
    "mpnet": model("MPNetForMaskedLM", masked_language, **TEXT),
    "mobilebert": model(
        "MobileBertForMaskedLM", masked_language, **TEXT, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32
    ),
    "roberta": model("RobertaForMaskedLM", masked_language, **TEXT),
    "roformer": model("RoFormerForMaskedLM", masked_language, **TEXT),
    "squeezebert": model("SqueezeBertForMaskedLM", masked_language, **TEXT, embedding_size=64),
    "esm": model("EsmForMaskedLM", masked_language, **TEXT, mask_token_id=3, position_embedding_type="rotary"),
    "perceiver": model(
        "PerceiverForSequenceClassification",
        lambda: {"inputs": tokens(BATCH, LENGTH, VOCABULARY), "attention_mask": padded(), "labels": classes(BATCH, 2)},
        vocab_size=VOCABULARY, d_model=64, d_latents=64, num_latents=16, num_self_attends_per_block=2,
        num_self_attention_heads=4, num_cross_attention_heads=4, max_position_embeddings=64,
    ),
    "layoutlmv3": model(
        "LayoutLMv3ForSequenceClassification",
        lambda: {**sequence_classes(), "bbox": torch.ones(BATCH, LENGTH, 4, dtype=torch.long),
                 "pixel_values": floats(BATCH, 3, 64, 64)},
        **TEXT, coordinate_size=8, shape_size=16, input_size=64, patch_size=16,
    ),
    # Encoders with decoders.
    "t5": model(
        "T5ForConditionalGeneration", translation(), vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2,
        num_heads=4, decoder_start_token_id=0,
    ),
    "longt5": model(
        "LongT5ForConditionalGeneration", translation(), vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2,
        num_heads=4, decoder_start_token_id=0, local_radius=7, encoder_attention_type="transient-global", global_block_size=8,
    ),
    "bart": model("BartForConditionalGeneration", translation(), **CODER),
    "pegasus": model("PegasusForConditionalGeneration", translation(), **CODER),
    "led": model(
        "LEDForConditionalGeneration", translation(), **CODER, attention_window=[16, 16],
        max_encoder_position_embeddings=256, max_decoder_position_embeddings=256,
    ),
    "m2m_100": model("M2M100ForConditionalGeneration", translation(), **CODER),
    "prophetnet": model(
        "ProphetNetForConditionalGeneration", translation(), vocab_size=VOCABULARY, hidden_size=64, encoder_ffn_dim=128,
        decoder_ffn_dim=128, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4,
        num_decoder_attention_heads=4, max_position_embeddings=256,
    ),
    # Time series, and decisions.
    "time_series_transformer": model("TimeSeriesTransformerForPrediction", past(), **SERIES),
    "informer": model("InformerForPrediction", past(), **SERIES),
    "autoformer": model("AutoformerForPrediction", past(), **SERIES, label_length=8, moving_average=5),
    "patchtst": model(
        "PatchTSTForPrediction", lambda: {"past_values": floats(8, 64, 4), "future_values": floats(8, 16, 4)},
        num_input_channels=4, context_length=64, prediction_length=16, patch_length=8, patch_stride=8, d_model=32,
        num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
    ),
    "patchtsmixer": model(
        "PatchTSMixerForPrediction", lambda: {"past_values": floats(8, 64, 4), "future_values": floats(8, 16, 4)},
        num_input_channels=4, context_length=64, prediction_length=16, patch_length=8, patch_stride=8, d_model=32, num_layers=2,
    ),
    "decision_transformer": model(
        "DecisionTransformerModel",
        lambda: {
            "states": floats(BATCH, 32, 6), "actions": floats(BATCH, 32, 3), "rewards": floats(BATCH, 32, 1),
            "returns_to_go": floats(BATCH, 32, 1), "timesteps": torch.arange(32).repeat(BATCH, 1),
            "attention_mask": torch.ones(BATCH, 32),
        },
        state_dim=6, use_cache=False, act_dim=3, hidden_size=64, n_layer=2, n_head=4, max_ep_len=64,
    ),
}  # fmt: skip

OTHERS: dict[str, Callable[[str], Build]] = {
    # Vision.
    "vit": model("ViTForImageClassification", images(), **VISION),
    "vit_mae": model("ViTMAEForPreTraining", images(labels=None), **VISION, decoder_num_hidden_layers=2, decoder_hidden_size=32,
                     decoder_num_attention_heads=4, decoder_intermediate_size=64),
    "beit": model("BeitForImageClassification", images(), **VISION, use_relative_position_bias=True),
    "dinov2": model("Dinov2ForImageClassification", images(), **VISION),
    "swin": model("SwinForImageClassification", images(), **SWIN),
    "swinv2": model("Swinv2ForImageClassification", images(), **SWIN),
    "convnext": model("ConvNextForImageClassification", images(), hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1]),
    "convnextv2": model("ConvNextV2ForImageClassification", images(), hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1]),
    "resnet": model("ResNetForImageClassification", images(), **{k: v for k, v in RESNET.items() if k != "out_features"}),
    "regnet": model("RegNetForImageClassification", images(), embedding_size=16, hidden_sizes=[16, 32, 48, 64],
                    depths=[1, 1, 2, 1], groups_width=8),
    "mobilevit": model("MobileViTForImageClassification", images(), hidden_sizes=[24, 32, 40], num_attention_heads=4,
                       neck_hidden_sizes=[8, 16, 24, 24, 32, 32, 64], image_size=64),
    "efficientnet": model("EfficientNetForImageClassification", images(), width_coefficient=0.5, depth_coefficient=0.5,
                          image_size=64, hidden_dim=640),
    "segformer": model("SegformerForSemanticSegmentation", segments(), hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1],
                       num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32),
    "dpt": model("DPTForSemanticSegmentation", segments(), **{**VISION, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
                 neck_hidden_sizes=[16, 16, 32, 32], fusion_hidden_size=16, num_labels=2),
    "pvt": model("PvtForImageClassification", images(), image_size=64, hidden_sizes=[16, 32, 32, 48], depths=[1, 1, 1, 1],
                 num_attention_heads=[1, 2, 2, 4]),
    "focalnet": model("FocalNetForImageClassification", images(), image_size=64, embed_dim=16, depths=[1, 1, 1],
                      hidden_sizes=[16, 32, 64], focal_levels=[2, 2, 2], focal_windows=[3, 3, 3]),
    "swin2sr": model("Swin2SRForImageSuperResolution", lambda: {"pixel_values": floats(2, 3, 32, 32)}, image_size=32,
                     embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=8, upscale=2),
    "levit": model("LevitForImageClassification", images(), image_size=64, hidden_sizes=[32, 48, 64], depths=[1, 1, 1],
                   num_attention_heads=[2, 3, 4], key_dim=[8, 8, 8]),
    # Detection and segmentation.
    "yolos": model("YolosForObjectDetection", boxes(), **{**VISION, "image_size": [64, 64]}, num_detection_tokens=12, num_labels=2),
    "detr": mixed("DetrForObjectDetection", boxes(128), {"backbone_config": ("ResNetConfig", RESNET)}, **DETR),
    "deformable_detr": mixed(
        "DeformableDetrForObjectDetection", boxes(128),
        {"backbone_config": ("ResNetConfig", {**RESNET, "out_features": ["stage2", "stage3", "stage4"]})},
        **DETR, num_feature_levels=3,
    ),
    "maskformer": mixed(
        "MaskFormerForInstanceSegmentation", masks(),
        {"backbone_config": ("SwinConfig", {**SWIN, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4]}), "decoder_config": ("DetrConfig", DETR)},
        fpn_feature_size=32, mask_feature_size=32,
    ),
    # Video.
    "videomae": model("VideoMAEForVideoClassification", videos(), **{**VISION, "image_size": 32}, num_frames=8),
    "timesformer": model("TimesformerForVideoClassification", videos(), **{**VISION, "image_size": 32}, num_frames=8),
    # Sound.
    "whisper": model("WhisperForConditionalGeneration", spectra(), **CODER, num_mel_bins=16, max_source_positions=50,
                     max_target_positions=64),
    "speech_to_text": model(
        "Speech2TextForConditionalGeneration",
        lambda: {"input_features": floats(2, 200, 16), "labels": tokens(2, 32, VOCABULARY), "use_cache": False},
        **{**CODER, "max_source_positions": 200, "max_target_positions": 64}, input_feat_per_channel=16, conv_channels=32,
    ),
    "wav2vec2_ctc": model("Wav2Vec2ForCTC", waves(spoken), **SOUND),
    "hubert": model("HubertForSequenceClassification", waves(lambda: classes(2, 2)), **SOUND, classifier_proj_size=32),
    "wavlm": model("WavLMForSequenceClassification", waves(lambda: classes(2, 2)), **SOUND, classifier_proj_size=32),
    "ast": model("ASTForAudioClassification", lambda: {"input_values": floats(2, 128, 32), "labels": classes(2, 2)}, **{
                 key: value for key, value in VISION.items() if key not in ("image_size", "num_channels")}, max_length=128,
                 num_mel_bins=32),
    "encodec": model("EncodecModel", lambda: {"input_values": floats(2, 1, 320)}, num_filters=8, hidden_size=16,
                     codebook_size=32, codebook_dim=16, upsampling_ratios=[4, 2], num_lstm_layers=1),
    # Several kinds of data.
    "clip": mixed("CLIPModel", pairs(return_loss=True), {}, text_config=CLIP_TEXT, vision_config=VISION, projection_dim=32),
    "siglip": mixed("SiglipModel", pairs(return_loss=True), {}, text_config=CLIP_TEXT, vision_config=VISION),
    "blip": mixed(
        "BlipForConditionalGeneration", lambda: {**pairs()(), "labels": tokens(BATCH, 24, VOCABULARY)}, {},
        text_config={**TEXT, "encoder_hidden_size": 64, "is_decoder": True, "use_cache": False}, vision_config=VISION,
    ),
    "vilt": model("ViltForImageAndTextRetrieval", pairs(), **{**TEXT, **VISION}),
    "git": mixed("GitForCausalLM", pairs(labels=tokens(BATCH, 24, VOCABULARY), use_cache=False), {}, **TEXT,
                 vision_config=VISION),
    "llava": mixed(
        "LlavaForConditionalGeneration", conversation(250, 64), {"text_config": ("LlamaConfig", DECODER), "vision_config": (
            "CLIPVisionConfig", VISION)}, image_token_index=250, image_seq_length=64,
    ),
    "paligemma": mixed(
        "PaliGemmaForConditionalGeneration", conversation(250, 64, token_type_ids=torch.zeros(2, 96, dtype=torch.long)),
        {"text_config": ("GemmaConfig", {**DECODER, "head_dim": 16}), "vision_config": ("SiglipVisionConfig", VISION)},
        image_token_index=250, projection_dim=64, hidden_size=64,
    ),
    "qwen2_vl": mixed(
        "Qwen2VLForConditionalGeneration", qwen_conversation, {}, vision_start_token_id=251, vision_end_token_id=252,
        image_token_id=253, video_token_id=254, vision_config=QWEN_VISION,
        text_config={**DECODER, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
    ),
}  # fmt: skip
MATCHED = "which predictions are matched with which objects"
DELAYS = "by which delays it rolls a series"
BY_WEIGHTS = {**dict.fromkeys(("detr", "deformable_detr", "maskformer"), MATCHED), "autoformer": DELAYS}
IN_PLACE = "{} % above: gradients that meet are added in place, into a view that keeps a larger gradient; exact when watched"
EXCEPTIONS: dict[str, dict[str, str]] = {
    "dpt": {"75 %": IN_PLACE.format(1.7)},
    "mixtral": {"75 %": IN_PLACE.format(1.6)},
    "segformer": {"least": IN_PLACE.format(3.6)},
}
# Texts whose attention takes buffers.
BUFFERED = ("autoformer", "decision_transformer", "patchtsmixer")
SCRATCH = dict.fromkeys(BUFFERED, ATTENTION) | {"informer": NORMS} | dict.fromkeys(OTHERS, CONVOLUTIONS)
ENTRIES = [
    Entry(f"transformers/{name}", build, SCRATCH.get(name, ""), EXCEPTIONS.get(name, {}), BY_WEIGHTS.get(name, ""))
    for name, build in {**TEXTS, **OTHERS}.items()
]
