"""Native models that are not decoders alone say what capture says of transformers' own, operator by operator, to the byte."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from canonical import difference, timeline
from networks import CASES, NAMES, Case
from rematic._capture.step import document_of_step
from rematic._hugging_face.__main__ import captured as capture
from rematic._hugging_face.batch import batch_of
from rematic._hugging_face.model import build, class_of, config_of
from rematic._hugging_face.request import Request


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What native models leave out: a look for packed sequences, a few operators on the positions."""
    import transformers.masking_utils

    monkeypatch.setattr(transformers.masking_utils, "find_packed_sequence_indices", lambda *args, **kwargs: None)


@pytest.fixture
def as_native(monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)


def request_of(case: Case, dtype: str) -> Request:
    """What the command asks Python for if there is no native model."""
    config = {"model_type": case.kind, **case.fields}
    return Request("network", config, "adam", "auto", batch=case.batch, seq=case.seq, dtype=dtype)


def captured(case: Case) -> dict[str, Any]:
    return capture(request_of(case, case.dtype))


def captured_mixed(case: Case) -> dict[str, Any]:
    request = request_of(case, "fp32")
    config = config_of(request)
    model = build(class_of(config, case.fields.get("architectures")), config, request)
    batch = batch_of(model, config, case.batch, case.seq)

    def step(model: Any, optimizer: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            output = model(**batch.arguments)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return output

    return json.loads(document_of_step(step, model, lambda parameters: torch.optim.Adam(parameters, foreach=True)))


def options(case: Case) -> list[str]:
    seq = [] if case.seq is None else ["--seq", str(case.seq)]
    return ["--batch", str(case.batch), *seq, "--optimizer", "adam"]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_capture_equals_native(
    case: Case, native: Callable[..., dict[str, Any]], tmp_path: pathlib.Path, as_native: None
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": case.kind, **case.fields}))
    expected, found = native(str(config), *options(case), "--dtype", case.dtype), captured(case)
    facts = dict(expected["origin"]["options"])
    assert "captured with" not in facts
    assert facts == {name: value for name, value in found["origin"]["options"] if name != "captured with"}
    assert difference(found, expected) is None
    assert timeline(found) == timeline(expected)


# One of each class: casts do not depend on sizes.
MIXED = [case for case in CASES if case.dtype == "bf16"]


@pytest.mark.parametrize("case", MIXED, ids=[name for name, case in zip(NAMES, CASES, strict=True) if case in MIXED])
def test_capture_equals_native_in_mixed_precision(
    case: Case, native: Callable[..., dict[str, Any]], tmp_path: pathlib.Path, as_native: None
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": case.kind, **case.fields}))
    expected, found = native(str(config), *options(case), "--precision", "mixed"), captured_mixed(case)
    assert difference(found, expected) is None
    assert timeline(found) == timeline(expected)
