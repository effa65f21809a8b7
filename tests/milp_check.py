"""Compare the planner `milp` with torch's own model of the problem, solved by another solver.

Reads random module graphs with Rematic's answers, writes torch 2.15's `sac_milp` down as it is (with its big-M), solves
it with HiGHS (scipy) at gap 0, and compares the times. Every plan is also checked against torch's equations directly.

    cargo run --release -p rematic-torch --example milp_random -- 300 1 > graphs.jsonl
    ~/.cache/rematic/venv/bin/python tests/milp_check.py graphs.jsonl        # needs numpy and scipy
"""
import json
import sys

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

GIB = 2.0**30
TOLERANCE = 1e-6


class Torch:
    """The variables and constraints of `sac_milp`, in GiB and milliseconds as there."""

    def __init__(self, case):
        self.case, modules = case, case["graph"]["modules"]
        self.modules, self.n = modules, len(modules)
        self.rows, self.low, self.high = [], [], []
        # y, r, d, a, rcp, rct, one after the other; then max_m.
        self.y, self.r, self.d, self.a, self.rcp, self.rct = (
            [k * self.n + i for i in range(self.n)] for k in range(6)
        )
        self.max_m = 6 * self.n
        self.lower, self.upper = np.zeros(6 * self.n + 1), np.full(6 * self.n + 1, np.inf)
        self.upper[self.y] = self.upper[self.r] = 1
        self.write()

    def add(self, terms, low=-np.inf, high=np.inf):
        self.rows.append(terms)
        self.low.append(low)
        self.high.append(high)

    def ancestors(self, i):
        while (i := self.modules[i]["parent"]) is not None:
            yield i

    def memory(self, i):
        """ACM and IA."""
        m = self.modules[i]
        kept = m["act_fw_per_module"]
        return max(m["tradeoff"]["sac_memory"] if m["tradeoff"] else 0, kept) / GIB, kept / GIB

    def allowed(self, i):
        case, names = self.case, [m["fqn"] for m in self.modules]
        around = {j for unit in case["fsdp_units"] for j in self.ancestors(names.index(unit))}
        listed = not case["ac_units"] or names[i] in case["ac_units"]
        return bool(self.modules[i]["tradeoff"]) and listed and i not in around and self.memory(i)[0] > 0

    def write(self):
        case, n, world = self.case, self.n, self.case["world_size"]
        times = [m["tradeoff"]["sac_runtime"] if m["tradeoff"] else 0 for m in self.modules]
        big = max(100, 2 * max(times))
        parameters = case["graph"]["parameters"] / GIB
        for i, m in enumerate(self.modules):
            y, r, d, a, rcp, rct = (v[i] for v in (self.y, self.r, self.d, self.a, self.rcp, self.rct))
            if not self.allowed(i):
                self.upper[y] = 0
            for j in self.ancestors(i):
                self.add({y: 1, self.y[j]: 1}, high=1)
            acm, ia = self.memory(i)
            self.add({d: 1, r: -acm, y: acm - ia}, 0, 0)
            self.add({y: 1, r: -1}, low=0)
            if acm > 0:
                self.add({r: 1, y: -(acm - ia) / acm}, low=0)
            here = (m["act_total"] + m["act_grad_per_module"]) / GIB
            before = {self.d[j]: 1 for j in range(n) if self.modules[j]["pos_fw_post_order"] < m["pos_fw_post_order"]}
            self.add({a: 1, **before}, here, here)
            # Torch finds every budget infeasible if this is negative; see the module `milp`.
            self.lower[a] = min(0, here)
            self.add({self.max_m: 1, a: -1}, low=(parameters + m["grad_total"] / GIB) / world)
            if m["tradeoff"]:
                for slope, intercept in zip(m["tradeoff"]["slopes"], m["tradeoff"]["intercepts"]):
                    self.add({rcp: 1, r: -slope}, low=intercept)
            self.add({rct: 1, y: -big}, high=0)
            self.add({rct: 1, rcp: -times[i]}, high=0)
            self.add({rct: 1, rcp: -times[i], y: -big}, low=-big)

    def solve(self, objective, fixed=None, budget=True):
        lower, upper = self.lower.copy(), self.upper.copy()
        if budget:
            upper[self.max_m] = self.case["budget"] / GIB
        if fixed is not None:
            lower[self.y] = upper[self.y] = fixed
        at = [(k, v, c) for k, row in enumerate(self.rows) for v, c in row.items()]
        matrix = csr_matrix(([c for *_, c in at], ([k for k, *_ in at], [v for _, v, _ in at])), (len(self.rows), len(lower)))
        cost, integral = np.zeros(len(lower)), np.zeros(len(lower))
        cost[objective] = 1
        if fixed is None:
            integral[self.y] = 1
        return milp(
            cost, constraints=LinearConstraint(matrix, self.low, self.high), bounds=Bounds(lower, upper),
            integrality=integral, options={"mip_rel_gap": 0, "time_limit": 120},
        )

    def best(self):
        """The least time; None if there is none. The y of the first run are tried again alone, without tolerances."""
        first = self.solve(self.rct)
        if first.status == 2:
            return None
        assert first.status == 0, first.message
        return self.solve(self.rct, fixed=np.round(first.x[self.y])).fun

    def least_budget(self):
        return self.solve(self.max_m, budget=False).fun * GIB

    def check_plan(self, plan):
        """The equations, one by one, for a plan's own numbers; gives its time."""
        chosen = {c["module"]: c["discard"] for c in plan["choices"]}
        saved, time = np.zeros(self.n), 0.0
        for i, r in chosen.items():
            assert self.allowed(i) and not any(j in chosen for j in self.ancestors(i)), i
            acm, ia = self.memory(i)
            assert (acm - ia) / acm - 1e-12 <= r <= 1 + 1e-12, r
            saved[i] = acm * r - (acm - ia)
            t = self.modules[i]["tradeoff"]
            time += t["sac_runtime"] * max(0, *(s * r + b for s, b in zip(t["slopes"], t["intercepts"])), 0)
        for m in self.modules:
            before = [j for j in range(self.n) if self.modules[j]["pos_fw_post_order"] < m["pos_fw_post_order"]]
            here = (m["act_total"] + m["act_grad_per_module"]) / GIB - saved[before].sum()
            total = here + (self.case["graph"]["parameters"] + m["grad_total"]) / GIB / self.case["world_size"]
            assert total <= self.case["budget"] / GIB + 2 / GIB, (total * GIB, self.case["budget"])
            assert total * GIB <= plan["peak"] + 1
        assert close(time, plan["recompute"]), (time, plan["recompute"])
        return time


def close(a, b):
    return abs(a - b) <= TOLERANCE * max(1, abs(a), abs(b))


def check(case):
    torch = Torch(case)
    best = torch.best()
    for method in ("chain", "general"):
        ours = case[method]
        if ours is None:
            continue
        kind = ours["outcome"]
        if kind == "infeasible":
            assert best is None, f"{method}: infeasible, but HiGHS takes {best} ms"
            if method == "chain":
                least = torch.least_budget()
                assert abs(least - ours["least_budget"]) <= 1e-6 * least, (least, ours["least_budget"])
        elif kind == "fits":
            assert close(best, 0), f"{method}: fits, but HiGHS takes {best} ms"
        else:
            time = torch.check_plan(ours)
            assert best is not None and close(time, best), f"{method}: {time} ms, HiGHS takes {best} ms"
    return case["chain"]["outcome"]


def main():
    counts, failures = {}, 0
    for number, line in enumerate(open(sys.argv[1])):
        case = json.loads(line)
        try:
            kind = check(case)
            counts[kind] = counts.get(kind, 0) + 1
        except AssertionError as error:
            failures += 1
            print(f"graph {number} ({len(case['graph']['modules'])} modules): {error}")
    print(f"{sum(counts.values())} graphs agree with torch's model: {counts}; {failures} do not")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
