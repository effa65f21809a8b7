"""Models that are not decoders alone and have a native model: three sizes of each, odd ones among them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A config, and the step that is taken with it; without a length, if the model reads no text."""

    kind: str
    fields: dict[str, Any]
    dtype: str
    batch: int
    seq: int | None


TEXT = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 96,
}  # fmt: skip
# Nothing is a multiple of anything: vocabulary, heads, widths.
ODD_TEXT = {
    "vocab_size": 1001, "hidden_size": 60, "intermediate_size": 77, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 35,
}  # fmt: skip
ONE_TEXT = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 33, "num_hidden_layers": 1, "num_attention_heads": 3,
    "max_position_embeddings": 61,
}  # fmt: skip


def three(kind: str, first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> list[Case]:
    """In bf16, fp32 and fp16, with sequences of 64, 33 and 31."""
    return [
        Case(kind, TEXT | first, "bf16", 2, 64),
        Case(kind, ODD_TEXT | second, "fp32", 3, 33),
        Case(kind, ONE_TEXT | third, "fp16", 1, 31),
    ]


def heads(prefix: str, second: dict[str, Any]) -> list[Case]:
    """Three sizes of each head."""
    names = [f"{prefix}ForMaskedLM", f"{prefix}ForSequenceClassification", f"{prefix}ForTokenClassification"]
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 1, "num_labels": 7}
    return [
        case
        for name in names
        for case in three(
            prefix.lower(),
            {"architectures": [name]},
            {"architectures": [name], "classifier_dropout": 0.2, "hidden_act": "gelu_new", "num_labels": 5, **second},
            {"architectures": [name], **still},
        )
    ]


def vision(first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> list[Case]:
    """Images of 32, of 30 × 21 in patches that leave a rest, and of one channel."""
    sizes = [
        {"image_size": 32, "patch_size": 8},
        {"image_size": [30, 21], "patch_size": [7, 5], "num_channels": 2},
        {"image_size": 20, "patch_size": 5, "num_channels": 1},
    ]
    widths = [{key: value for key, value in text.items() if key not in ONLY_TEXT} for text in (TEXT, ODD_TEXT, ONE_TEXT)]
    fields = [width | size | own for width, size, own in zip(widths, sizes, (first, second, third), strict=True)]
    return [Case("vit", own, dtype, batch, None) for own, dtype, batch in zip(fields, ("bf16", "fp32", "fp16"), (2, 3, 1), strict=True)]


def answers(first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> list[Case]:
    """T5's names for sizes; the second has a decoder that is not as deep as its encoder, and heads that do not add up."""
    sizes = [
        {"vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 176, "num_layers": 2, "num_heads": 4},
        {"vocab_size": 1001, "d_model": 60, "d_ff": 77, "num_layers": 3},
        {"vocab_size": 97, "d_model": 48, "d_kv": 16, "d_ff": 33, "num_layers": 1, "num_heads": 3},
    ]
    fields = [size | own for size, own in zip(sizes, (first, second, third), strict=True)]
    steps = (("bf16", 2, 64), ("fp32", 3, 33), ("fp16", 1, 31))
    return [Case("t5", own, *step) for own, step in zip(fields, steps, strict=True)]


ONLY_TEXT = ("vocab_size", "max_position_embeddings")
def pairs() -> list[Case]:
    """CLIP: texts and images, towers that are not alike."""
    texts = [{**TEXT, "eos_token_id": 2}, {**ODD_TEXT, "eos_token_id": 7, "attention_dropout": 0.1}, ONE_TEXT]
    images = [
        {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 32, "patch_size": 8},
        {"hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 1, "num_attention_heads": 5, "image_size": 30, "patch_size": 7},
        {"hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 20, "patch_size": 5,
         "num_channels": 1, "hidden_act": "gelu"},
    ]  # fmt: skip
    fields = [{"projection_dim": width, "text_config": text, "vision_config": image}
              for width, text, image in zip((32, 27, 40), texts, images, strict=True)]  # fmt: skip
    steps = (("bf16", 2, 64), ("fp32", 3, 33), ("fp16", 1, 31))
    return [Case("clip", own, *step) for own, step in zip(fields, steps, strict=True)]


CASES = [
    *heads("Bert", {}),
    *heads("Roberta", {"pad_token_id": 1}),
    *answers(
        {},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 2, "num_heads": 3, "d_kv": 10},
        {"dropout_rate": 0.0, "relative_attention_num_buckets": 8},
    ),
    *pairs(),
    *vision({}, {"num_labels": 1001, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}, {"qkv_bias": False}),
]


def name_of(case: Case) -> str:
    named = case.fields.get("architectures", [case.kind])[0]
    return f"{named}-{case.dtype}"


NAMES = [name_of(case) for case in CASES]
