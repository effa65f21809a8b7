"""Models that have no native front end: what the command starts Python for."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import rematic
from rematic._hugging_face.__main__ import captured
from rematic._hugging_face.request import Refused, Request

TEXT = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 24,
    "patch_size": 8,
}  # fmt: skip
SPEECH = {
    "vocab_size": 97, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 20,
    "max_target_positions": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "encoder_layerdrop": 0.1,
}  # fmt: skip
BERT = {"model_type": "bert", **TEXT}
# It has no native model.
ELECTRA = {"model_type": "electra", "embedding_size": 32, **TEXT}


def request(config: dict[str, Any], **options: Any) -> Request:
    known = {"name": "it", "optimizer": "adamw-fused", "attention": "auto", **options}
    return Request.read(json.dumps({"config": config, **known}))


def facts(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the captured trace says of itself; it is read as any other."""
    document = captured(request(config, **options))
    rematic.Trace.from_bytes(json.dumps(document).encode())
    origin = document["origin"]
    return {**dict(origin["options"]), **{key: origin[key] for key in ("batch", "seq", "precision", "optimizer", "model")}}


@pytest.mark.parametrize(
    ("config", "cls", "given", "loss"),
    [
        (BERT, "BertForMaskedLM", "text of 40 tokens", "masked tokens"),
        ({**BERT, "architectures": ["BertModel"]}, "BertForMaskedLM", "text of 40 tokens", "masked tokens"),
        (
            {"model_type": "roberta", **TEXT, "architectures": ["RobertaForSequenceClassification"]},
            "RobertaForSequenceClassification",
            "text of 38 tokens",
            "a class for each sample",
        ),
        ({"model_type": "vit", **VISION}, "ViTForImageClassification", "images of 24 × 24", "a class for each sample"),
        (
            {"model_type": "clip", "text_config": {**TEXT, "max_position_embeddings": 12}, "vision_config": VISION},
            "CLIPModel",
            "texts of 12 tokens with images of 24 × 24",
            "texts against images",
        ),
        (
            {"model_type": "t5", "vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 2, "n_positions": 20},
            "T5ForConditionalGeneration",
            "text of 20 tokens",
            "the answer's tokens",
        ),
        ({"model_type": "whisper", **SPEECH}, "WhisperForConditionalGeneration", "sound of 40 frames with 16 bins", "the answer's tokens"),
    ],
)  # fmt: skip
def test_inputs_and_loss_are_of_the_models_kind(config: dict[str, Any], cls: str, given: str, loss: str) -> None:
    found = facts(config, batch=3, dtype="bf16")
    assert (found["class"], found["given"], found["loss"]) == (cls, given, loss)
    assert (found["batch"], found["precision"], found["optimizer"]) == (3, "bf16", "adamw-fused")
    assert found["captured with"].startswith("transformers ")
    assert found.get("set") == ("encoder_layerdrop 0.0" if config["model_type"] == "whisper" else None)


def test_kernels_that_a_config_names_are_not_loaded() -> None:
    code = {"attn_implementation": "org/kernel", "_attn_implementation": "org/kernel", "auto_map": {"AutoModel": "code.Model"}}
    assert captured(request({**BERT, **code})) == captured(request(BERT))


def test_options_are_honoured() -> None:
    longer = facts(BERT, layers=3, seq=7, dropout=0.0, optimizer="none")
    assert (longer["seq"], longer["optimizer"]) == (7, "none")
    document = captured(request(BERT, layers=3, dropout=0.0, attention="math"))
    names = [module["name"] for module in document["modules"]]
    assert "2" in names and "3" not in names
    assert not any("dropout" in name for name in document["names"])
    assert any("bmm" in name for name in document["names"])


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"model_type": "vit", **VISION}, {"seq": 4}, "reads no sequence of tokens, so `seq` means nothing to it"),
        ({"model_type": "vit", **VISION}, {"attention": "flash"}, "no attention of this step can run in the kernel `flash`"),
        ({"model_type": "of-nobody"}, {}, "has no model of type `of-nobody`"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "code.Model"}}, {}, "its own code, which `auto_map` names, is never run"),
        ({**BERT, "num_hidden_layers": 10**6}, {}, "`num_hidden_layers` is 1000000; at most 1000 layers are captured"),
        ({**BERT, "vocab_size": 10**15}, {}, "`vocab_size` is 1000000000000000; no model has numbers over"),
        ({**BERT, "hidden_size": "wide"}, {}, "does not take this config: "),
        ({**BERT, "hidden_size": 33}, {}, "cannot build this model: ValueError: "),
        ({**BERT, "more": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}, {}, "levels deep in the config"),
        (BERT, {"optimizer": "of-nobody"}, "the optimizer of-nobody is not captured; take one of adam, adamw, sgd"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_refused(config: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match="^") as refused:
        captured(request(config, **options))
    assert message in str(refused.value)


def run(command: str, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # The tests may run on the sources, which a new process does not find by itself.
    found = os.pathsep.join(path for path in sys.path if path)
    known = {**os.environ, "PYTHONPATH": found, "REMATIC_PYTHON": sys.executable, **environment}
    return subprocess.run([command, *arguments], capture_output=True, text=True, env=known)


def test_the_command_takes_ids_from_the_cache_and_starts_python(command: str, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "models--org--electra"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("abc123")
    (place / "snapshots/abc123").mkdir(parents=True)
    (place / "snapshots/abc123/config.json").write_text(json.dumps(ELECTRA))
    done = run(command, ["stats", "org/electra", "--batch", "3", "--json"], HF_HUB_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "ElectraForMaskedLM" in done.stdout and "transformers" in done.stdout
    assert said["peak"]["total"] == rematic.Trace.from_bytes(json.dumps(captured(request(ELECTRA, batch=3))).encode()).peak()
    # A native model is found by its id too, without Python.
    (place / "snapshots/abc123/config.json").write_text(json.dumps({"model_type": "olmo2", **TEXT}))
    done = run(command, ["stats", "org/electra"], HF_HUB_CACHE=str(tmp_path), REMATIC_PYTHON="no-such-python")
    assert done.returncode == 0 and done.stdout.startswith("org/electra"), done.stderr
