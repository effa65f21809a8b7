"""A hundred small random models train under random plans as without them; `tests/fuzz` tries thousands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fuzz.decisions import single_plans
from fuzz.generator import generate, names_of_features
from fuzz.harness import Outcome, compare, plain_run, trace_of
from fuzz.run import Statistics, check
from fuzz.shrink import shrunk

MODELS = 100
# Features that can be left out.
WITHOUT = ("globals", "closures", "counter", "dropout")
@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_gradients_are_those_of_the_plain_run() -> None:
    statistics = Statistics()
    for seed in range(MODELS):
        result = check(seed)
        statistics.add(result)
        bug = next(iter(result.bugs), None)
        assert bug is None, f"seed {seed}: {bug}\n{result.source}"
    # Most are planned, and most are equal: otherwise nothing would be compared. Models that branch by what changes from step to
    # step are refused.
    assert statistics.planned > 0.8 * MODELS, str(statistics)
    assert statistics.outcomes["equal"] > 0.6 * sum(statistics.outcomes.values()), str(statistics)


def test_every_feature_is_written() -> None:
    written: set[str] = set()
    for seed in range(400):
        written |= set(generate(seed).features)
    assert set(names_of_features()) - written == set()


def test_what_is_left_out_is_not_written() -> None:
    for seed in range(50):
        assert not set(generate(seed, WITHOUT).features) & set(WITHOUT)


# What it multiplies by is kept outside the model: its operators are the same whatever it is, its gradients are not.
DIFFERENT = """\
import itertools
import torch
from torch import nn

B, T, W = 2, 3, 4
NUMBERS = {numbers}

class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)
        self.idle = nn.Linear(W, W)

    def forward(self, x):
        h = self.linear(x)
        h = h.tanh()
        h = (h * {number}).sin()
        return h

def inputs():
    x = torch.randn(B, T, W)
    return (x,), dict()
"""


def outcome_of(source: str) -> Outcome:
    expected = plain_run(source)
    assert not isinstance(expected, Outcome), str(expected)
    plans = dict(single_plans(trace_of(source)))
    return compare(source, plans["Root"], expected)


def test_the_same_is_equal() -> None:
    assert outcome_of(DIFFERENT.format(numbers="1.5", number="NUMBERS")).kind == "equal"


def test_plain_runs_that_vary_are_not_compared() -> None:
    varying = DIFFERENT.format(numbers="torch.Generator()", number="torch.rand(W, generator=NUMBERS)")
    varying = varying.replace("torch.Generator()", "torch.Generator(); NUMBERS.seed()")
    found = plain_run(varying)
    assert isinstance(found, Outcome) and found.kind == "plain run varies"


def test_a_difference_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a follower that does not put a generator back."""
    from rematic._apply import modes

    source = DIFFERENT.format(numbers="torch.Generator().manual_seed(3)", number="torch.rand(W, generator=NUMBERS)")
    assert outcome_of(source).kind == "equal"
    monkeypatch.setattr(modes, "set_state", lambda source, state: None)
    monkeypatch.setattr(modes.Audit, "check", lambda audit, policy: None)
    outcome = outcome_of(source)
    assert outcome.kind == "different" and outcome.what.startswith("gradients")
    short, still = shrunk(source, outcome)
    assert still.kind == "different"
    assert len(short) < len(source) and "idle" not in short and "rand(" in short
