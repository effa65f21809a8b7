"""What following a plan costs beside recomputation itself.

    python bench/apply.py [rounds]

Trains a transformer on one core and counts the processor's time. A planned step should take the plain step's time and
that of the operators that run again, as measured. What it takes beyond that is the cost of following the plan: two
dispatch modes, and PyTorch's checkpointing. It is to stay below 3 %.

Other work on the machine moves all times together. So a round runs the three steps one after the other, and what
counts is the difference within a round: its median, with the quartiles beside it.

The cost is one per operator, whatever its size. For a model so small that its operators take microseconds it is given in
microseconds, and not judged.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any, NamedTuple

import torch
from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer
from torch.utils._python_dispatch import TorchDispatchMode

import rematic
from rematic._apply.modes import Again
from rematic._capture.step import document as capture

LIMIT = 0.03
SHARES = (0.9, 0.75, 0.6, 0.0)
ROUNDS, SMALL_ROUNDS = 11, 41
REAL = ModelArgs(n_layers=3, n_heads=8, vocab_size=1024, max_seq_len=256, dim=512, dropout_p=0.1)
REAL_BATCH = 6
SMALL = ModelArgs(n_layers=2, n_heads=4, vocab_size=256, max_seq_len=32, dim=64, dropout_p=0.1)
SMALL_BATCH = 2


class Timed(TorchDispatchMode):
    """Adds up the time of the operators that run while a region is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.recomputing = 0
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.process_time()
        out = func(*args, **(kwargs or {}))
        if self.recomputing:
            self.seconds += time.process_time() - began
        return out

    def watch(self) -> None:
        """Learns from the plan's own mode when it recomputes."""
        enter, leave = Again.__enter__, Again.__exit__

        def entered(mode: Again) -> Any:
            self.recomputing += 1
            return enter(mode)

        def left(mode: Again, *reason: Any) -> None:
            self.recomputing -= 1
            leave(mode, *reason)

        Again.__enter__, Again.__exit__ = entered, left  # type: ignore[method-assign]


class Training:
    """A model with its step."""

    def __init__(self, shape: ModelArgs, batch: int) -> None:
        torch.manual_seed(0)
        self.model = Transformer(shape)
        self.tokens = torch.randint(shape.vocab_size, (batch, shape.max_seq_len))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    @staticmethod
    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    def step(self) -> float:
        """One step; how long it took."""
        began = time.process_time()
        self.loss(self.model(self.tokens)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - began

    def trace(self) -> rematic.Trace:
        return rematic.Trace.from_bytes(
            capture(self.model, self.tokens, loss=self.loss, optimizer=self.optimizer, device="cpu")
        )


def plans(trace: rematic.Trace) -> list[rematic.Plan]:
    """Plans for some shares of the peak, each once; the last is for the least budget."""
    try:
        rematic.plan(trace, 1)
    except rematic.Infeasible as infeasible:
        least = infeasible.least_budget
    else:
        raise AssertionError("a budget of one byte is met")
    budgets = dict.fromkeys(max(least, int(share * trace.peak())) for share in SHARES)
    return [rematic.plan(trace, budget) for budget in budgets]


class Round(NamedTuple):
    """Processor seconds of three steps, one right after the other."""

    plain: float
    again: float
    planned: float

    @property
    def beyond(self) -> float:
        return self.planned - self.plain - self.again


def rounds(plain: Training, planned: Training, timed: Timed, count: int) -> list[Round]:
    done = []
    for number in range(count + 1):
        # In turn, so that neither profits from what the other leaves in caches.
        if number % 2:
            without, followed = plain.step(), planned.step()
        else:
            followed, without = planned.step(), plain.step()
        with timed:
            timed.seconds = 0.0
            planned.step()
        done.append(Round(without, timed.seconds, followed))
    return done[1:]  # the first warms up


def measure(shape: ModelArgs, batch: int, count: int, timed: Timed) -> float:
    """Prints a line for every plan; the greatest share beyond what is expected."""
    print(
        f"{'budget':>8} {'regions':>7} {'ops seen':>8} {'plain':>9} {'again':>9} {'planned':>9} "
        f"{'beyond':>7} {'quartiles':>16} {'an op':>8}"
    )
    plain, planned = Training(shape, batch), Training(shape, batch)
    trace = plain.trace()
    worst = 0.0
    for plan in plans(trace):
        rematic.apply(planned.model, plan)
        done = rounds(plain, planned, timed, count)
        rematic.remove(planned.model)
        low, middle, high = statistics.quantiles((one.beyond / (one.plain + one.again) for one in done), n=4)
        worst = max(worst, middle)
        # Each operator of a region is seen twice, in forward and when it is recomputed.
        seen = 2 * sum(len(region.policy) for region in plan.regions)
        each = statistics.median(one.beyond for one in done) / seen * 1e6
        columns = [f"{statistics.median(column) * 1e3:6.1f} ms" for column in zip(*done, strict=True)]
        print(
            f"{plan.peak / trace.peak():8.0%} {len(plan.regions):7} {seen:8} {' '.join(columns)} "
            f"{middle:7.2%} {low:+7.2%}..{high:+7.2%} {each:5.1f} µs"
        )
    return worst


def main() -> int:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    timed = Timed()
    timed.watch()
    worst = measure(REAL, REAL_BATCH, count, timed)
    print(f"at most {worst:.2%} beyond the operators that run again; the limit is {LIMIT:.0%}\n")
    print("A model whose operators take microseconds, not judged:")
    measure(SMALL, SMALL_BATCH, SMALL_ROUNDS, timed)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
