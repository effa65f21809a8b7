"""Models of diffusers: denoisers and autoencoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import Tensor

from .entry import ATTENTION, CONVOLUTIONS, Build, Entry, classes, floats

BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


def model(kind: str, inputs: Callable[[], dict[str, Any]], **fields: Any) -> Callable[[str], Build]:
    def build(device: str) -> Build:
        with torch.device(device):
            made = getattr(diffusers, kind)(**fields)
        return made, (), inputs()

    return build


def times(batch: int = 2) -> Tensor:
    return torch.tensor([10, 500])[:batch]


def unet_2d() -> dict[str, Any]:
    return {"sample": floats(4, 3, 32, 32), "timestep": torch.tensor([1, 10, 100, 900])}


def conditioned(size: int = 32, channels: int = 4) -> dict[str, Any]:
    return {"sample": floats(2, channels, size, size), "timestep": times(), "encoder_hidden_states": floats(2, 16, 32)}


def controlled() -> dict[str, Any]:
    return {**conditioned(), "controlnet_cond": floats(2, 3, 64, 64)}


def video() -> dict[str, Any]:
    return {"sample": floats(1, 4, 4, 16, 16), "timestep": times(1), "encoder_hidden_states": floats(1, 16, 32)}


def image() -> dict[str, Any]:
    return {"sample": floats(2, 3, 64, 64)}


def dit() -> dict[str, Any]:
    return {"hidden_states": floats(4, 4, 16, 16), "timestep": torch.tensor([1, 2, 3, 4]), "class_labels": classes(4, 8)}


def pixart() -> dict[str, Any]:
    return {
        "hidden_states": floats(2, 4, 16, 16), "encoder_hidden_states": floats(2, 16, 32), "timestep": times(),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }  # fmt: skip


def sd3() -> dict[str, Any]:
    return {
        "hidden_states": floats(2, 4, 16, 16), "encoder_hidden_states": floats(2, 16, 32),
        "pooled_projections": floats(2, 64), "timestep": times(),
    }  # fmt: skip


def flux() -> dict[str, Any]:
    return {
        "hidden_states": floats(2, 64, 4), "encoder_hidden_states": floats(2, 16, 32), "pooled_projections": floats(2, 32),
        "timestep": floats(2).sigmoid(), "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(16, 3),
    }  # fmt: skip


def sana() -> dict[str, Any]:
    return {"hidden_states": floats(2, 4, 16, 16), "encoder_hidden_states": floats(2, 16, 8), "timestep": times()}


def wan() -> dict[str, Any]:
    return {"hidden_states": floats(1, 4, 2, 16, 16), "timestep": times(1), "encoder_hidden_states": floats(1, 16, 16)}


ATTENDING = {
    **BLOCKS, "cross_attention_dim": 32, "attention_head_dim": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
}  # fmt: skip
CODER = {
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, **BLOCKS,
}  # fmt: skip
SMALL = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}

BUILDS: dict[str, Callable[[str], Build]] = {
    "UNet2DModel": model(
        "UNet2DModel", unet_2d, **BLOCKS, sample_size=32, attention_head_dim=4, dropout=0.1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "UNet2DConditionModel": model(
        "UNet2DConditionModel", conditioned, **ATTENDING, sample_size=32, up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")
    ),
    "UNet3DConditionModel": model(
        "UNet3DConditionModel", video, **BLOCKS, sample_size=16, cross_attention_dim=32, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
    ),
    "UNet1DModel": model(
        "UNet1DModel", lambda: {"sample": floats(4, 2, 512), "timestep": torch.tensor([1, 2, 3, 4])},
        block_out_channels=(32, 32, 64), extra_in_channels=64, sample_size=512,
    ),
    "ControlNetModel": model("ControlNetModel", controlled, **ATTENDING, conditioning_embedding_out_channels=(8, 16)),
    "AutoencoderKL": model("AutoencoderKL", image, **CODER),
    "AutoencoderTiny": model(
        "AutoencoderTiny", image, encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 2), num_decoder_blocks=(2, 1),
    ),
    "VQModel": model("VQModel", image, **CODER, num_vq_embeddings=64),
    "DiTTransformer2DModel": model(
        "DiTTransformer2DModel", dit, **SMALL, in_channels=4, out_channels=8, sample_size=16, num_embeds_ada_norm=8, dropout=0.1
    ),
    "PixArtTransformer2DModel": model(
        "PixArtTransformer2DModel", pixart, **SMALL, in_channels=4, out_channels=8, sample_size=16, cross_attention_dim=32,
        caption_channels=32, use_additional_conditions=False,
    ),
    "SD3Transformer2DModel": model(
        "SD3Transformer2DModel", sd3, sample_size=16, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=64,
        pos_embed_max_size=16,
    ),
    "FluxTransformer2DModel": model(
        "FluxTransformer2DModel", flux, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ),
    "SanaTransformer2DModel": model(
        "SanaTransformer2DModel", sana, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=4,
        num_attention_heads=2, num_cross_attention_heads=2, cross_attention_head_dim=4, cross_attention_dim=8,
        caption_channels=8, sample_size=16,
    ),
    "WanTransformer3DModel": model(
        "WanTransformer3DModel", wan, patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4,
        out_channels=4, text_dim=16, freq_dim=256, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    ),
}  # fmt: skip
# These have no convolution but for their patches.
TRANSFORMERS = ("DiT", "PixArt", "SD3", "Flux", "Wan")
EXCEPTIONS: dict[str, dict[str, str]] = {}
ENTRIES = [
    Entry(
        f"diffusers/{name}", build, ATTENTION if name.startswith(TRANSFORMERS) else CONVOLUTIONS,
        EXCEPTIONS.get(name, {}),
    )
    for name, build in BUILDS.items()
]  # fmt: skip
