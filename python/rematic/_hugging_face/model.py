"""The model of a config, as transformers builds it: its class, its loss, and what the options change."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

from .request import Refused, Request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Where a config does not name its class: what models are mostly trained for, and by which of the classes of their kind.
TASKS = (
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_CTC_MAPPING",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    "MODEL_MAPPING",
)
# The most that is told of an error of transformers.
LONGEST_REASON = 500
# Random numbers decide with these what runs at all.
DECIDED_BY_CHANCE = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}


def config_of(request: Request) -> Any:
    """The config as transformers reads it. No code comes with it: a type that transformers has not is refused."""
    kind = str(request.config.get("model_type"))
    if kind not in transformers.CONFIG_MAPPING:
        own = " (its own code, which `auto_map` names, is never run)" if "auto_map" in request.config else ""
        raise Refused(
            f"transformers {transformers.__version__} has no model of type `{kind}`{own}; build the model yourself, and give "
            "what rematic.capture captures of it"
        )
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(_harmless(request.config))
    except Exception as error:
        raise Refused(f"transformers {transformers.__version__} does not take this config: {_line(error)}") from error
    config.use_cache = False
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        # Answers are shifted by it; which one it is does not matter here.
        config.decoder_start_token_id = 0
    return config


def _harmless(value: Any) -> Any:
    """A config without fields that name code: that of its model, or of kernels that transformers would load."""
    if isinstance(value, list):
        return [_harmless(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {key: _harmless(inner) for key, inner in value.items() if not _is_left_out(key)}


def _is_left_out(field: str) -> bool:
    names_code = field.startswith("_") or field.endswith("_implementation") or field in ("auto_map", "use_kernels")
    # The type is an option of its own.
    return names_code or field in ("dtype", "torch_dtype")


def change(config: Any, request: Request) -> list[str]:
    """Changes what the options say, and what chance would decide; returns what the latter were."""
    if request.layers is not None:
        _set_layers(config, request.layers)
    if request.dropout is not None:
        _set_dropout(config, request.dropout)
    changed = []
    for part in _parts(config):
        for field, value in DECIDED_BY_CHANCE.items():
            if getattr(part, field, value) != value:
                setattr(part, field, value)
                changed.append(f"{field} {value}")
    return changed


def _parts(config: Any) -> list[Any]:
    """A config, and those in it."""
    inner = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
    return [config, *(part for part in inner if part is not None)]


def _set_layers(config: Any, layers: int) -> None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if config.model_type == "clip":
        # As the native model: both towers.
        config.vision_config.num_hidden_layers = layers
    both = [name for name in ("encoder_layers", "decoder_layers", "num_decoder_layers") if hasattr(text, name)]
    own = ["num_hidden_layers"] if hasattr(text, "num_hidden_layers") else []
    if not both and not own:
        raise Refused(f"`{config.model_type}` has no single number of layers; change its config instead")
    for name in own + both:
        setattr(text, name, layers)
    listed = getattr(text, "layer_types", None)
    if listed:
        text.layer_types = [listed[index % len(listed)] for index in range(layers)]


def _set_dropout(config: Any, dropout: float) -> None:
    known = False
    for part in _parts(config):
        for name, value in list(vars(part).items()):
            if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, (int, float)):
                setattr(part, name, dropout)
                known = True
    if not known:
        raise Refused(f"`{config.model_type}` has no dropout in its config; drop the option")


def class_of(config: Any, named: Any) -> Any:
    """The class that the config names, or else what models of this kind are mostly trained as."""
    name = str(named[0]) if isinstance(named, list) and named else ""
    cls: Any = getattr(transformers, name, None) if name.isidentifier() else None
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    # A model without a head has no loss.
    has_head = any(part in name for part in ("For", "LMHead", "WithProjection"))
    if is_model and has_head and getattr(cls, "config_class", None) is type(config):
        return cls
    for task in TASKS:
        if "SEQ_2_SEQ" in task and not getattr(config, "is_encoder_decoder", False):
            continue
        found = getattr(modeling_auto, task).get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, (tuple, list)) else found
    raise Refused(f"transformers {transformers.__version__} has no model for a config of type `{config.model_type}`")


def build(cls: Any, config: Any, request: Request, device: str = "meta") -> nn.Module:
    """The model, in training."""
    dtype = DTYPES[dtype_of(request)]
    try:
        with torch.device(device):
            model = cls._from_config(config, dtype=dtype)
    except MemoryError:
        raise Refused("the model takes all of this machine's memory, though only its structure is built") from None
    except Exception as error:
        raise Refused(f"transformers {transformers.__version__} cannot build this model: {_line(error)}") from error
    if request.attention != "auto" and model.config._attn_implementation != "sdpa":
        raise Refused(
            f"transformers computes the attention of {cls.__name__} without a kernel of PyTorch's; drop `attention`"
        )
    return model.train()


def dtype_of(request: Request) -> str:
    """The type that is asked for, or else the one that the config says its weights have."""
    said = str(request.config.get("dtype") or request.config.get("torch_dtype") or "").removeprefix("torch.")
    return request.dtype or {"bfloat16": "bf16", "float16": "fp16"}.get(said, "fp32")


def _line(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST_REASON] or 'it does not say why'}"
