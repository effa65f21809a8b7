"""What a model of transformers is trained on: inputs of its kind, and what its loss compares with."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from .request import Refused

# As native models: where nothing is said, the longest sequence that the model takes, up to this.
LONGEST = 4096
# One second of sound, at the rate that models of sound are trained with.
SAMPLES = 16_000
FRAMES = 16
# The side of an image where the config says none, as that of a network of convolutions.
SIDE = 224


@dataclasses.dataclass(frozen=True)
class Batch:
    """The arguments of a forward, and what to say about them."""

    arguments: dict[str, Any]
    # What the model sees, and what its loss is.
    inputs: str
    loss: str
    seq: int | None


def batch_of(model: nn.Module, config: Any, count: int, seq: int | None) -> Batch:
    """A batch of so many samples."""
    return _Maker(model, config, count, seq).batch()


def _field(config: Any, *names: str, default: Any = None) -> Any:
    """A field of a config, or of the ones in it."""
    inner = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
    for part in (config, *inner):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


class _Maker:
    def __init__(self, model: nn.Module, config: Any, count: int, seq: int | None) -> None:
        self._class = type(model).__name__
        self._config = config
        self._count = count
        self._dtype = next(model.parameters()).dtype
        self._takes = inspect.signature(model.forward).parameters
        self._asked = seq
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        self._vocabulary = getattr(text, "vocab_size", None) or _field(config, "vocab_size", default=2)
        longest = _field(text, "max_position_embeddings", "max_target_positions", "n_positions", default=LONGEST)
        self._longest = longest if isinstance(longest, int) and longest > 0 else LONGEST
        self._reads_text = "input_ids" in self._takes
        self._seq = seq if seq is not None else min(self._longest_text(), LONGEST)

    def _longest_text(self) -> int:
        # RoBERTa and its kin count positions from behind the padding token.
        offset = (self._config.pad_token_id or 0) + 1 if self._has_offset() else 0
        return max(1, self._longest - offset)

    def _has_offset(self) -> bool:
        kind = self._config.model_type
        return "roberta" in kind or kind in ("camembert", "longformer", "data2vec-text", "esm", "mpnet", "luke")

    def batch(self) -> Batch:
        given, what = self._inputs()
        labels, loss = self._labels(given)
        extra = {"use_cache": False} if "use_cache" in self._takes else {}
        given = {name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in given.items()}
        has_text = any(name in given for name in ("input_ids", "decoder_input_ids")) or self._writes(given)
        if self._asked is not None and not has_text:
            raise Refused(f"{self._class} reads no sequence of tokens, so `seq` means nothing to it; drop it")
        return Batch({**given, **labels, **extra}, what, loss, self._seq if has_text else None)

    # ---- inputs ----

    def _inputs(self) -> tuple[dict[str, Tensor], str]:
        config, takes = self._config, self._takes
        if "input_features" in takes and not self._reads_text:
            bins = _field(config, "num_mel_bins", "input_feat_per_channel", default=80)
            positions = _field(config, "max_source_positions")
            length = 2 * positions if "whisper" in config.model_type and positions else self._seq
            by_bins = "whisper" in config.model_type
            shape = (self._count, bins, length) if by_bins else (self._count, length, bins)
            return {"input_features": torch.zeros(shape)}, f"sound of {length} frames with {bins} bins"
        if "input_values" in takes and not self._reads_text:
            return self._sound()
        pairs = self._reads_text and "pixel_values" in takes and "return_loss" in takes
        if self._reads_text and not pairs:
            text = {"input_ids": self._tokens()}
            without = ", without images" if "pixel_values" in takes else ""
            return text, f"text of {self._seq} tokens{without}"
        if "pixel_values" in takes:
            images, what = self._images()
            if pairs:
                return {"input_ids": self._tokens(), **images}, f"texts of {self._seq} tokens with {what}"
            return images, what
        names = [name for name, known in takes.items() if known.default is inspect.Parameter.empty]
        raise Refused(
            f"{self._class} takes {', '.join(names) or 'inputs of its own'}, which no rule here makes; capture its step with "
            "rematic.capture"
        )

    def _tokens(self) -> Tensor:
        return torch.randint(0, self._vocabulary, (self._count, self._seq), generator=torch.Generator().manual_seed(0))

    def _sound(self) -> tuple[dict[str, Tensor], str]:
        bins, length = _field(self._config, "num_mel_bins"), _field(self._config, "max_length")
        if bins and isinstance(length, int) and "wav" not in self._config.model_type:
            return {"input_values": torch.zeros(self._count, length, bins)}, f"sound of {length} frames with {bins} bins"
        return {"input_values": torch.zeros(self._count, SAMPLES)}, f"one second of sound, {SAMPLES} samples"

    def _images(self) -> tuple[dict[str, Tensor], str]:
        size = _field(self._config, "image_size", "input_size", default=SIDE)
        height, width = size if isinstance(size, (list, tuple)) and len(size) == 2 else (size, size)
        if not isinstance(height, int) or not isinstance(width, int):
            height = width = SIDE
        channels = _field(self._config, "num_channels", "in_channels", default=3)
        frames = _field(self._config, "num_frames")
        shape = (channels, height, width) if not isinstance(frames, int) else (frames, channels, height, width)
        what = f"images of {height} × {width}" if len(shape) == 3 else f"videos of {frames} images of {height} × {width}"
        return {"pixel_values": torch.zeros(self._count, *shape)}, what

    # ---- losses ----

    def _writes(self, given: dict[str, Tensor]) -> bool:
        """Whether it answers with text of its own, which has a length."""
        return getattr(self._config, "is_encoder_decoder", False) and "labels" in self._takes and "input_ids" not in given

    def _labels(self, given: dict[str, Tensor]) -> tuple[dict[str, Any], str]:
        takes, name, count = self._takes, self._class, self._count
        classes = torch.zeros(count, dtype=torch.long)
        if "return_loss" in takes and "input_ids" in given and "pixel_values" in given:
            return {"return_loss": True}, "texts against images"
        if "ForQuestionAnswering" in name and "start_positions" in takes:
            return {"start_positions": classes, "end_positions": classes}, "the answer's place"
        if "labels" not in takes:
            return {}, "the sum of the first output: this class has no loss of its own"
        if "MultipleChoice" in name:
            raise Refused(f"{name} takes several texts a sample, which no rule here makes; capture its step with rematic.capture")
        if "TokenClassification" in name:
            return {"labels": torch.zeros(count, self._seq, dtype=torch.long)}, "a class for each token"
        if "Classification" in name:
            return {"labels": classes}, "a class for each sample"
        if "SemanticSegmentation" in name:
            size = given["pixel_values"].shape[-2:]
            return {"labels": torch.zeros(count, *size, dtype=torch.long)}, "a class for each pixel"
        if "ForCTC" in name:
            return {"labels": torch.ones(count, 20, dtype=torch.long)}, "20 letters a sample (CTC)"
        if "next_sentence_label" in takes:
            both = {"labels": self._tokens(), "next_sentence_label": classes}
            return both, "masked tokens and the next sentence"
        kinds = {"ForMaskedLM": "masked tokens", "ForConditionalGeneration": "the answer's tokens"}
        for part, loss in kinds.items():
            if part in name:
                return {"labels": self._tokens()}, loss
        if "input_ids" in given:
            return {"labels": self._tokens()}, "the next token"
        return {}, "the sum of the first output: nothing is known of this class's labels"
