"""FSDP2 for real: two processes on gloo train a model that is sharded layer by layer and follows a plan."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = pathlib.Path(__file__).resolve().parent
ORDERS = ("plan first", "sharding first")
BUDGETS = ("75 %", "half", "the least")
TOLERANCE = 0.001


def torchrun(script: str, *arguments: str, processes: int = 2, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a script in several processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launcher, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    done = torchrun(str(HERE / "fsdp2_run.py"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda answer: answer["rank"])


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("order", ORDERS)
def test_losses_and_weights_are_those_without_a_plan(answers: list[dict[str, Any]], budget: str, order: str) -> None:
    assert [answer["rank"] for answer in answers] == [0, 1]
    assert answers[0]["plain"]["losses"] != answers[1]["plain"]["losses"], "each has a batch of its own"
    for answer in answers:
        plain, planned = answer["plain"], answer[budget][order]
        assert answer[budget]["regions"] > 0
        assert len(set(plain["losses"])) >= 3
        assert planned["losses"] == plain["losses"]
        assert planned["weights"] == plain["weights"]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_peak_is_as_promised(answers: list[dict[str, Any]], budget: str, order: str) -> None:
    for answer in answers:
        for found, predicted in (
            (answer["plain"]["peak"], answer[budget]["baseline"]),
            (answer[budget][order]["peak"], answer[budget]["promise"]),
        ):
            print(f"rank {answer['rank']}, {budget}, {order}: {found:,}, predicted {predicted:,}: {found / predicted - 1:+.3%}")
            assert abs(found / predicted - 1) <= TOLERANCE


def test_a_region_around_sharded_modules_is_refused(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "is sharded by itself" in answer["parts"] and "plan without" in answer["parts"]
