"""Small models of many families, with their inputs, as their own libraries build them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Build = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
BATCH, SEQ = 2, 64
DECODER = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip


def seed_transformer(device: str) -> Build:
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    with torch.device(device):
        model = Transformer(ModelArgs(n_layers=2, n_heads=4, vocab_size=512, max_seq_len=SEQ, dim=64, dropout_p=0.1))
    return model, (tokens(),), {}


def tokens(vocabulary: int = 512, length: int = SEQ) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, vocabulary, (BATCH, length), generator=generator)


def causal(kind: str, dtype: torch.dtype = torch.float32, **fields: Any) -> Callable[[str], Build]:
    def build(device: str) -> Build:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        config = CONFIG_MAPPING[kind](**fields)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        batch = tokens()
        return model.train(), (), {"input_ids": batch, "labels": batch, "use_cache": False}

    return build


def bert(device: str) -> Build:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    with torch.device(device):
        model = BertForMaskedLM(config)
    mask = torch.ones(BATCH, SEQ, dtype=torch.long)
    mask[1, 40:] = 0
    return model.train(), (), {"input_ids": tokens(), "attention_mask": mask, "labels": tokens()}


def t5(device: str) -> Build:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    with torch.device(device):
        model = T5ForConditionalGeneration(config)
    return model.train(), (), {"input_ids": tokens(), "labels": tokens(length=48), "use_cache": False}


def vit(device: str) -> Build:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
        num_labels=10,
    )  # fmt: skip
    with torch.device(device):
        model = ViTForImageClassification(config)
    return model.train(), (), {"pixel_values": torch.zeros(BATCH, 3, 32, 32), "labels": torch.tensor([1, 2])}


def whisper(device: str) -> Build:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16, max_source_positions=50,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    with torch.device(device):
        model = WhisperForConditionalGeneration(config)
    features = torch.zeros(BATCH, 16, 100)
    return model.train(), (), {"input_features": features, "labels": tokens(length=32), "use_cache": False}


def resnet50(device: str) -> Build:
    from torchvision.models import resnet50 as build

    with torch.device(device):
        model = build(num_classes=10)
    return model.train(), (torch.zeros(BATCH, 3, 64, 64),), {}


class Layer(nn.Module):
    """The second half of a transformer's layer."""

    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout) if dropout else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(nn.functional.gelu(self.wide(self.norm(x))))
        return x + (y if self.dropout is None else self.dropout(y))


class Block(nn.Module):
    """Two convolutions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(4, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(outputs)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.norm(self.first(x)))
        return self.activation(self.batch_norm(self.second(x)))


class UNet(nn.Module):
    """Down, up, and the bridges between."""

    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(Block(3 if not level else widths[level - 1], w) for level, w in enumerate(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in widths[-2::-1])
        self.blocks = nn.ModuleList(Block(w * 2, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, 2, 1)
        self.dropout = nn.Dropout2d(0.1)

    def forward(self, x: Tensor) -> Tensor:
        bridges = []
        for level, block in enumerate(self.down):
            x = block(x if not level else nn.functional.max_pool2d(x, 2))
            bridges.append(x)
        bridges.pop()
        for up, block in zip(self.ups, self.blocks, strict=True):
            x = block(torch.cat([up(x), bridges.pop()], dim=1))
        return self.head(self.dropout(x))


def unet(device: str) -> Build:
    with torch.device(device):
        model = UNet()
    return model.train(), (torch.zeros(BATCH, 3, 32, 32),), {}


MODELS: dict[str, Callable[[str], Build]] = {
    "seed-transformer": seed_transformer,
    "gpt2": causal("gpt2", vocab_size=512, n_positions=128, n_embd=64, n_layer=2, n_head=4),
    "llama": causal("llama", **DECODER),
    "llama-bf16": causal("llama", torch.bfloat16, **DECODER),
    "mistral-bf16": causal("mistral", torch.bfloat16, **DECODER, sliding_window=16),
    "qwen3": causal("qwen3", **DECODER, head_dim=32),
    "mixtral": causal("mixtral", **DECODER, num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager"),
    "mixtral-bf16": causal("mixtral", torch.bfloat16, **DECODER, num_local_experts=4, num_experts_per_tok=2),
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
    "resnet50": resnet50,
    "unet": unet,
}
