"""Plans for a captured step, at random: the planner's, and legal ones that no planner would choose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import rematic
from plans import calls_of, plan_of

Document = dict[str, Any]


def plans_for(document: Document, random: Random, count: int) -> Iterator[rematic.Plan]:
    """Plans that recompute something."""
    trace = rematic.Trace.from_bytes(json.dumps(document).encode())
    for index in range(count):
        plan = planned(trace, random) if index % 2 else by_hand(document, random)
        if plan is not None and plan.regions:
            yield plan


def planned(trace: rematic.Trace, random: Random) -> rematic.Plan | None:
    """The planner's plan for some budget."""
    options: dict[str, Any] = {"planner": random.choice(("exact", "greedy")), "whole": random.random() < 0.3}
    try:
        rematic.plan(trace, 1, **options)
    except rematic.Infeasible as infeasible:
        least = infeasible.least_budget
    budget = least + int((trace.peak() - least) * random.choice((0, 0, 0.3, 0.6, 0.9)))
    try:
        return rematic.plan(trace, budget, **options)
    except rematic.Infeasible:
        return None


def by_hand(document: Document, random: Random) -> rematic.Plan | None:
    """Some calls of modules as regions. What must be saved is; the rest is recomputed, or saved here and there, or skipped, whoever
    reads it: then the module runs again in full."""
    share, saved = random.choice((0.3, 0.7, 1.0)), random.choice((0.0, 0.0, 0.2, 0.5))
    skipped = random.choice((0.0, 0.0, 0.02, 0.1))
    chosen: list[dict[str, Any]] = []
    for region in calls_of(document):
        if random.random() < share and not any(set(region["ops"]) & set(other["ops"]) for other in chosen):
            chosen.append(region)
    for region in chosen:
        for group, forced in groups(document, region["ops"]):
            if forced or random.random() < saved:
                for at in group:
                    region["policy"][at]["decision"] = "save"
        for op in region["policy"]:
            if op["decision"] == "recompute" and random.random() < skipped:
                op["decision"] = "skip"
    return plan_of(document, chosen) if chosen else None


def groups(document: Document, ops: list[int]) -> list[tuple[list[int], bool]]:
    """Operators of a region that are saved or recomputed together, and whether they must be saved: what is changed in
    place goes with its maker and with what reads it before; what comes from outside must not change twice. Views are
    always recomputed."""
    rows = [document["ops"][op] for op in ops]
    places = {op: at for at, op in enumerate(ops)}
    makers = {storage: places[row[2]] for storage, row in enumerate(document["storages"]) if row[2] in places}
    heads = list(range(len(ops)))
    forced = [False] * len(ops)

    def join(a: int, b: int) -> None:
        a, b = heads[a], heads[b]
        for at, head in enumerate(heads):
            if head == b:
                heads[at] = a

    randoms = [at for at, row in enumerate(rows) if "random" in row.get("flags", ())]
    for at in randoms[1:]:
        join(randoms[0], at)
    for at, row in enumerate(rows):
        for storage in row.get("mutates", ()):
            if storage in makers:
                join(makers[storage], at)
            else:
                forced[at] = True
            for earlier in range(at):
                reads = any(tensor[0] == storage for tensor in rows[earlier].get("inputs", ()))
                if reads and "view" not in rows[earlier].get("flags", ()):
                    join(earlier, at)
    found: dict[int, tuple[list[int], bool]] = {}
    for at, row in enumerate(rows):
        if not {"view", "host"} & set(row.get("flags", ())):
            members, must = found.get(heads[at], ([], False))
            found[heads[at]] = ([*members, at], must or forced[at])
    return list(found.values())


def single_plans(document: Document) -> Iterator[tuple[str, rematic.Plan]]:
    """For each call of a module, the plan that recomputes as much of it as it may."""
    for region in calls_of(document):
        for group, forced in groups(document, region["ops"]):
            for at in group if forced else ():
                region["policy"][at]["decision"] = "save"
        yield region["module"], plan_of(document, [region])
