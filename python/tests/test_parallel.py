"""Captures of models that are spread over real processes on gloo, and plans on them: what is promised is what they take."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")
from test_fsdp2 import torchrun

HERE = pathlib.Path(__file__).resolve().parent
BUDGETS = ("75 %", "half", "the least")
TOLERANCE = 0.001


@pytest.fixture(scope="module", params=[("tp", 2), ("both", 4)], ids=["tp", "both"])
def answers(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """FSDP2 alone is `test_fsdp2`'s; `parallel_run.py fsdp` runs it for captured models."""
    kind, processes = request.param
    done = torchrun(str(HERE / "parallel_run.py"), kind, processes=processes)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == processes
    return sorted(lines, key=lambda answer: answer["rank"])


def test_losses_and_weights_are_those_without_a_plan(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert len(set(answer["plain"]["losses"])) >= 3
        for budget in BUDGETS:
            assert answer[budget]["regions"] > 0
            assert answer[budget]["losses"] == answer["plain"]["losses"]
            assert answer[budget]["weights"] == answer["plain"]["weights"]


def test_the_peak_is_as_promised(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        pairs = {budget: (answer[budget]["peak"], answer[budget]["promise"]) for budget in BUDGETS}
        pairs["plain"] = (answer["plain"]["peak"], answer["half"]["baseline"])
        for what, (found, predicted) in pairs.items():
            print(f"rank {answer['rank']}, {what}: {found:,}, predicted {predicted:,}: {found / predicted - 1:+.3%}")
            assert abs(found / predicted - 1) <= TOLERANCE


def test_a_plan_for_another_layout_is_refused(answers: list[dict[str, Any]]) -> None:
    said = answers[0].get("other layout")
    if said is not None:
        assert "is for one of 4 GPUs" in said and "over 2" in said and "capture and plan it as it is spread" in said
