"""One model from its seed: how training it under plans compares with the plain run."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

import torch

import rematic

from .decisions import plans_for
from .generator import Case, generate
from .harness import Outcome, compare, described, plain_run, trace_of

ATTEMPTS = 20
PLANS = 4


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one seed."""

    seed: int
    source: str
    features: Counter[str]
    # Texts that were thrown away before one ran: why.
    discarded: list[str]
    outcomes: list[Outcome]

    @property
    def bugs(self) -> list[Outcome]:
        """What must not be."""
        return [outcome for outcome in self.outcomes if outcome.is_bug]


def check(seed: int, without: Collection[str] = (), plans: int = PLANS) -> Result:
    """Writes the model of a seed, and compares."""
    torch.set_num_threads(1)
    discarded: list[str] = []
    for attempt in range(ATTEMPTS):
        case = generate(f"{seed}.{attempt}", without)
        expected = plain_run(case.source)
        if not isinstance(expected, Outcome):
            outcomes = list(outcomes_of(case, seed, expected, plans))
            return Result(seed, case.source, case.features, discarded, outcomes)
        discarded.append(f"{expected.kind}: {expected.what} {expected.details[:80]}")
    raise RuntimeError(f"Seed {seed} gave no model that trains in {ATTEMPTS} attempts: {discarded}")


def outcomes_of(case: Case, seed: int, expected: dict, plans: int) -> Iterator[Outcome]:
    """How each of some plans ended; or why there are none."""
    try:
        document = trace_of(case.source)
        made = list(plans_for(document, Random(seed), plans))
    except Exception as error:
        kind = "not captured" if isinstance(error, rematic.RematicError) else "error"
        yield Outcome(kind, *described(error))
        return
    if not made:
        yield Outcome("no plan")
    for plan in made:
        yield compare(case.source, plan, expected)


def check_all(seeds: list[int], without: Collection[str], jobs: int | None) -> Iterator[Result]:
    """The results of many seeds, in their order."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from (check(seed, without) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(check, seeds, [tuple(without)] * len(seeds), chunksize=8)


class Statistics:
    """Counts over many results."""

    def __init__(self) -> None:
        self.models = 0
        self.planned = 0
        self.discarded: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.features: Counter[str] = Counter()

    def add(self, result: Result) -> None:
        """One more."""
        self.models += 1
        self.planned += any(outcome.plan for outcome in result.outcomes)
        self.discarded.update(reason.partition(":")[0] for reason in result.discarded)
        self.features.update(set(result.features))
        for outcome in result.outcomes:
            self.outcomes[outcome.kind] += 1
            if outcome.kind != "equal":
                self.words[f"{outcome.kind}: {outcome.what}"] += 1

    def __str__(self) -> str:
        thrown = ", ".join(f"{count} {kind}" for kind, count in self.discarded.most_common())
        lines = [
            (
                f"{self.models} models, {self.planned} of them planned ({self.planned / max(1, self.models):.0%}); "
                f"thrown away while writing them: {thrown or 'none'}"
            ),
            "runs: " + ", ".join(f"{count} {kind}" for kind, count in self.outcomes.most_common()),
            *(f"{count:6} {words}" for words, count in self.words.most_common()),
            "models with a feature: " + ", ".join(f"{name} {count}" for name, count in self.features.most_common()),
        ]
        return "\n".join(lines)
