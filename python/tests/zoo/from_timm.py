"""Models of timm, by name, for small images."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import timm
import torch

from .entry import CONVOLUTIONS, Build, Entry, floats


def named(name: str, batch: int = 4, size: int = 96, **fields: Any) -> Callable[[str], Build]:
    def build(device: str) -> Build:
        with torch.device(device):
            model = timm.create_model(name, num_classes=8, **fields)
        return model, (floats(batch, 3, size, size),), {}

    return build


def made(file: str, kind: str, batch: int = 4, size: int = 96, **fields: Any) -> Callable[[str], Build]:
    """One whose named variants are all large."""

    def build(device: str) -> Build:
        with torch.device(device):
            model = getattr(importlib.import_module(f"timm.models.{file}"), kind)(num_classes=8, **fields)
        return model, (floats(batch, 3, size, size),), {}

    return build


def sized(name: str, batch: int = 4, size: int = 96, **fields: Any) -> Callable[[str], Build]:
    """One that has to know the size of its images."""
    return named(name, batch, size, img_size=size, **fields)


BUILDS: dict[str, Callable[[str], Build]] = {
    "beit_base": sized("beit_base_patch16_224", batch=16, embed_dim=96, depth=3, num_heads=4, drop_path_rate=0.1),
    "cait_xxs24": sized("cait_xxs24_224", depth=4),
    "coat_lite_tiny": sized("coat_lite_tiny"),
    "coatnet_nano": sized("coatnet_nano_rw_224", size=64, depths=(1, 1, 1, 1)),
    "convnext_atto": named("convnext_atto", drop_path_rate=0.1),
    "convmixer": made("convmixer", "ConvMixer", dim=64, depth=4, patch_size=4),
    "crossvit_tiny": named("crossvit_tiny_240", batch=2, size=240),
    "densenet121": named("densenet121", size=64),
    "dla34": named("dla34", size=96),
    "edgenext_xx_small": named("edgenext_xx_small"),
    "efficientformer_l1": named("efficientformer_l1", size=224, batch=1),
    "efficientnet_lite0": named("efficientnet_lite0", drop_path_rate=0.1),
    "eva02_tiny": sized("eva02_tiny_patch14_224", size=56, batch=16, depth=4),
    "fastvit_t8": named("fastvit_t8"),
    "ghostnet_050": named("ghostnet_050", batch=8),
    "hrnet_w18_small": named("hrnet_w18_small", size=64),
    "levit_128s": named("levit_128s", size=224),
    "mixer": made("mlp_mixer", "MlpMixer", 8, img_size=96, patch_size=8, embed_dim=64, num_blocks=4),
    "mobilenetv3_small_050": named("mobilenetv3_small_050", batch=8),
    "mobilevitv2_050": named("mobilevitv2_050"),
    "pit_ti": sized("pit_ti_224"),
    "poolformer_s12": named("poolformer_s12", size=64, layers=(1, 1, 1, 1)),
    "pvt_v2_b0": named("pvt_v2_b0"),
    "regnetx_002": named("regnetx_002", batch=8),
    "repvgg_a0": named("repvgg_a0", batch=8),
    "res2net": named("res2net50_26w_4s", size=64, layers=(1, 1, 1, 1)),
    "resnest14d": named("resnest14d", size=64),
    "swin_tiny": sized("swin_tiny_patch4_window7_224", size=56, batch=8, embed_dim=32, depths=(2, 2), num_heads=(2, 4)),
    "vit_tiny": sized("vit_tiny_patch16_224", batch=16, depth=4, drop_rate=0.1),
    "volo": made(
        "volo", "VOLO", layers=(1, 1, 1, 1), img_size=96, embed_dims=(32, 64, 64, 64), num_heads=(2, 4, 4, 4),
        outlook_attention=(True, False, False, False), downsamples=(True, False, False, False),
    ),
    "xcit_nano": sized("xcit_nano_12_p16_224", batch=8, depth=4),
}  # fmt: skip
EXCEPTIONS: dict[str, dict[str, str]] = {}
ENTRIES = [
    Entry(f"timm/{name}", build, CONVOLUTIONS, EXCEPTIONS.get(name, {}))
    for name, build in BUILDS.items()
]
