"""What PEFT's `get_peft_model` makes of a model, statement by statement, for machines without PEFT."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`.
USUAL = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "qwen3": ["q_proj", "v_proj"]}


class Linear(nn.Module):
    """`peft.tuners.lora.Linear`."""

    def __init__(self, base_layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.base_layer = base_layer
        weight = base_layer.weight
        # Hugging Face's Conv1D has its weight the other way round.
        outputs, inputs = weight.shape if isinstance(base_layer, nn.Linear) else reversed(weight.shape)
        on = {"bias": False, "device": weight.device, "dtype": torch.float32}
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, **on)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, **on)})
        self.lora_embedding_A = nn.ParameterDict({})
        self.lora_embedding_B = nn.ParameterDict({})
        self.lora_magnitude_vector = nn.ModuleDict()
        self.scaling = 8 / rank

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        torch_result_dtype = result.dtype
        lora_A, lora_B, dropout = self.lora_A["default"], self.lora_B["default"], self.lora_dropout["default"]
        x = x if x.dtype == lora_A.weight.dtype else x.to(dtype=lora_A.weight.dtype)
        result = result + lora_B(lora_A(dropout(x))) * self.scaling
        result = result.to(torch_result_dtype)
        return result


class LoraModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class PeftModelForCausalLM(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = LoraModel(model)

    def forward(self, **kwargs: Any) -> Any:
        return self.base_model(**kwargs)


def with_adapters(model: nn.Module, rank: int, targets: Any = None) -> nn.Module:
    """As `get_peft_model(model, LoraConfig(r=rank, target_modules=targets))`."""
    names = targets or USUAL[model.config.model_type]
    model.requires_grad_(False)
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        if is_linear and (name != "lm_head" if names == "all-linear" else name in names):
            setattr(model.get_submodule(parent), name, Linear(module, rank))
    return PeftModelForCausalLM(model).train()
