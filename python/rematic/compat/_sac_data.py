"""What torch's SACEstimator says: data, and how it is printed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass
class SACStats:
    """The operators of a module, as selective checkpointing sees them; all numbers are places in `func_names`.

    `runtimes` are milliseconds, `memory` bytes; `inplace_ops` has operators with the first that made what they change.
    """

    func_names: list[str]
    runtimes: list[float]
    memory: list[int]
    view_like_ops: list[int]
    rand_ops: list[int]
    saved_autograd_ops: list[int]
    inplace_ops: list[tuple[int, int]]
    force_store_random: bool


class MSPS(NamedTuple):
    """Operators that are recomputed together: bytes, milliseconds, and bytes per millisecond."""

    func_names: set[str]
    op_idx: int
    memory: int
    runtime: float
    msps: float


@dataclass
class SACTradeOffStats:
    """Discarded memory against recomputed time, as shares of the module's, and the lines fitted to it."""

    n_segments: int
    slopes: list[float]
    intercepts: list[float]
    fit_breaks: list[float]
    tradeoff_curve: OrderedDict[float, float]
    sac_memory: int
    sac_runtime: float


@dataclass
class SACGreedyOrderMeta:
    """The order in which a module's operators are best recomputed."""

    recomputed_ops: set[int]
    stored_ops: set[int]
    inplace_op_groups: dict[int, set[int]]
    random_ops_group: dict[int, set[int]]
    msps_meta: list[MSPS]

    def group_of(self, op: int) -> set[int]:
        """The operators that go with one."""
        return {op, *self.inplace_op_groups.get(op, ()), *self.random_ops_group.get(op, ())}


def print_table(headers: list[str], rows: list[list[str]], tabular: bool) -> None:
    """Prints a table, with tabulate or with tabs."""
    if tabular:
        try:
            from tabulate import tabulate  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError("Please install tabulate.") from error
        print(tabulate(rows, headers=headers, tablefmt="rst"))
        return
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    for line in lines:
        print("\t".join(f"{text:<{width}}" for text, width in zip(line, widths)))


STATS_HEADERS = [
    "Op Idx", "Op Name", "Runtimes(ms)", "Memory (B)", "View-like", "Random", "Saved Autograd", "In-place",
]  # fmt: skip


def stats_rows(stats: SACStats) -> list[list[str]]:
    """One row for each operator."""
    parents = dict(stats.inplace_ops)
    return [
        [
            str(op),
            name,
            f"{stats.runtimes[op]:.4f}",
            str(stats.memory[op]),
            str(op in stats.view_like_ops),
            str(op in stats.rand_ops),
            str(op in stats.saved_autograd_ops),
            str(parents.get(op)),
        ]
        for op, name in enumerate(stats.func_names)
    ]


TRADEOFF_HEADERS = [
    "Op Id(s)", "Op Name(s)", "Discarded Mem (%)", "Discarded Mem (B)", "Recomp time (%)", "Recomp time (ms)", "MSPS",
    "Always Stored", "Always Recomputed",
]  # fmt: skip


def tradeoff_rows(order: SACGreedyOrderMeta, stats: SACStats) -> list[list[str]]:
    """One row for each group, in the order in which they are recomputed."""
    whole_memory, whole_runtime = sum(stats.memory), sum(stats.runtimes)
    share = lambda part, whole: part / whole if whole else 0.0
    rows: list[list[str]] = []
    memory, runtime = 0, 0.0

    def add(ops: set[int], names: set[str], msps: float | None, stored: bool, recomputed: bool) -> None:
        rows.append(
            [
                str(ops),
                str(names),
                f"{share(memory, whole_memory):.4f}",
                str(memory),
                f"{share(runtime, whole_runtime):.4f}",
                str(runtime),
                "nan" if msps is None else f"{msps:.2e}",
                str(stored),
                str(recomputed),
            ]
        )

    def add_fixed(heads: set[int], *, stored: bool) -> None:
        nonlocal memory, runtime
        for head in heads:
            ops = order.group_of(head)
            memory += sum(stats.memory[op] for op in ops)
            runtime += sum(stats.runtimes[op] for op in ops)
            add(ops, {stats.func_names[op] for op in ops}, None, stored, not stored)

    add_fixed(order.recomputed_ops, stored=False)
    for group in order.msps_meta:
        memory += group.memory
        runtime += group.runtime
        add(order.group_of(group.op_idx), group.func_names, group.msps, False, False)
    add_fixed(order.stored_ops, stored=True)
    return rows


def save_graph(stats: SACTradeOffStats, shifted: list[tuple[float, float]], name: str) -> None:
    """Draws a curve and its lines into `tradeoff_graphs/NAME.png`."""
    try:
        import matplotlib.pyplot as plot  # type: ignore[import-not-found, unused-ignore]
        import numpy as np
    except ImportError as error:
        raise ImportError("Install matplotlib and numpy using pip: pip install matplotlib numpy") from error
    import pathlib

    x = [point[0] for point in shifted]
    at = np.linspace(min(x), max(x), num=10000)
    segment = np.searchsorted(stats.fit_breaks[1:-1], at)
    lines: Any = np.asarray(stats.slopes)[segment] * at + np.asarray(stats.intercepts)[segment]
    plot.figure()
    plot.plot(x, [point[1] for point in shifted], "o", label="Shifted")
    plot.plot(at, lines, "-", label="Predicted")
    plot.plot(list(stats.tradeoff_curve), list(stats.tradeoff_curve.values()), "x", label="Original")
    plot.ylabel("Recomp time / Total recomp time")
    plot.xlabel("Memory discarded / Total memory")
    plot.legend()
    plot.title(name)
    plot.suptitle(f"Total Memory = {stats.sac_memory} B Total Runtime = {stats.sac_runtime:.4f} ms", fontsize=10)
    folder = pathlib.Path("tradeoff_graphs")
    folder.mkdir(exist_ok=True)
    plot.savefig(folder / f"{name}.png")
    plot.close()
