"""Looks for models whose gradients under a plan are not those of the plain run."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections import Counter

import torch

from .generator import Case, names_of_features
from .harness import Outcome, plain_run
from .run import Statistics, check, check_all, outcomes_of
from .shrink import shrunk

# Failures of one kind that are written down.
MOST_OF_A_KIND = 3


def main() -> int:
    arguments = parsed()
    torch.set_num_threads(1)
    if arguments.case is not None:
        return show(arguments.case, arguments.without, arguments.shrink)
    statistics, bugs = Statistics(), 0
    written: Counter[str] = Counter()
    seeds = list(range(arguments.seed, arguments.seed + arguments.count))
    for result in check_all(seeds, arguments.without, arguments.jobs):
        statistics.add(result)
        for bug in result.bugs:
            bugs += 1
            written[bug.what] += 1
            if written[bug.what] <= MOST_OF_A_KIND:
                print(f"seed {result.seed}: {bug}", flush=True)
                if arguments.out is not None:
                    write(arguments.out / f"seed{result.seed}.py", result.source, bug, arguments.shrink)
    print(statistics)
    return 1 if bugs else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="models (2000)")
    parser.add_argument("--seed", type=int, default=0, help="the first model's; the others follow")
    parser.add_argument("--jobs", type=int, help="processes (as many as cores)")
    parser.add_argument("--without", default="", help="features to leave out, with commas: " + ", ".join(names_of_features()))
    parser.add_argument("--out", type=pathlib.Path, help="a directory for the texts of models that fail")
    parser.add_argument("--shrink", action="store_true", help="makes them short first")
    parser.add_argument("--case", help="a seed, or a file with a model's text: says how it compares, and shows it")
    arguments = parser.parse_args()
    arguments.without = [name for name in arguments.without.split(",") if name]
    unknown = set(arguments.without) - set(names_of_features())
    if unknown:
        parser.error(f"there is no feature {', '.join(sorted(unknown))}; there are {', '.join(names_of_features())}")
    return arguments


def show(name: str, without: list[str], shrink: bool) -> int:
    """One case by itself."""
    if name.isdigit():
        result = check(int(name), without)
        source, outcomes = result.source, result.outcomes
    else:
        source = pathlib.Path(name).read_text()
        expected = plain_run(source)
        if isinstance(expected, Outcome):
            outcomes = [expected]
        else:
            outcomes = [o for seed in range(5) for o in outcomes_of(Case(source, Counter()), seed, expected, 4)]
    bug = next((outcome for outcome in outcomes if outcome.is_bug), None)
    if bug is not None and shrink:
        source, bug = shrunk(source, bug)
    print(source)
    for outcome in outcomes:
        print(f"# {outcome}")
    return 1 if bug is not None else 0


def write(path: pathlib.Path, source: str, bug: Outcome, shrink: bool) -> None:
    """Leaves a failing model in a file."""
    if shrink:
        source, bug = shrunk(source, bug)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {bug}\n{source}\n")


if __name__ == "__main__":
    sys.exit(main())
