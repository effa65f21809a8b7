"""Native families say what capture says of transformers' own models, operator by operator, to the byte."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from canonical import difference, timeline
from families import CASES, NAMES, Case
from rematic._capture.step import document as capture
from rematic._capture.step import document_of_step

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture
def as_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """What native models leave out, or what Python leaves to chance."""
    import transformers.masking_utils
    import transformers.models.gemma3.modeling_gemma3 as gemma3

    # A look for packed sequences: a few operators on the positions.
    monkeypatch.setattr(transformers.masking_utils, "find_packed_sequence_indices", lambda *args, **kwargs: None)
    # Gemma 3 goes through a set of names, whose order differs from process to process.
    monkeypatch.setattr(gemma3, "set", lambda names: sorted(set(names)), raising=False)


def captured(case: Case) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[case.kind](**case.fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[case.dtype])
    tokens = torch.zeros(case.batch, case.seq, dtype=torch.long)
    return json.loads(capture(model.train(), input_ids=tokens, labels=tokens, use_cache=False))


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_capture_equals_native(
    case: Case, native: Callable[..., dict[str, Any]], tmp_path: pathlib.Path, as_native: None
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": case.kind, **case.fields}))
    step = ["--batch", str(case.batch), "--seq", str(case.seq), "--dtype", case.dtype, "--optimizer", "adam"]
    expected, found = native(str(config), *step), captured(case)
    assert difference(found, expected) is None
    assert timeline(found) == timeline(expected)


def captured_mixed(case: Case) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[case.kind](**case.fields), dtype=torch.float32)
    tokens = torch.zeros(case.batch, case.seq, dtype=torch.long)

    def step(model: Any, optimizer: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            output = model(input_ids=tokens, labels=tokens, use_cache=False)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return output

    return json.loads(document_of_step(step, model.train(), lambda parameters: torch.optim.Adam(parameters, foreach=True)))


# One of each family: casts do not depend on sizes.
MIXED = [case for case in CASES if case.dtype == "bf16"]


@pytest.mark.parametrize("case", MIXED, ids=[case.kind for case in MIXED])
def test_capture_equals_native_in_mixed_precision(
    case: Case, native: Callable[..., dict[str, Any]], tmp_path: pathlib.Path, as_native: None
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": case.kind, **case.fields}))
    step = ["--batch", str(case.batch), "--seq", str(case.seq), "--precision", "mixed", "--optimizer", "adam"]
    expected, found = native(str(config), *step), captured_mixed(case)
    assert difference(found, expected) is None
    assert timeline(found) == timeline(expected)
