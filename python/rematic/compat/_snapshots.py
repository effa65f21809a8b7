"""What torch's memory trackers say: kinds of memory, states of modules, snapshots, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from rematic import _core

TOTAL = "Total"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

Snapshot: TypeAlias = dict[Any, dict[Any, int]]
"""By device, then by kind; the total under "Total"."""


class _RefType(str, Enum):
    """What memory is for."""


class _State(str, Enum):
    """When a module's snapshot was taken."""


class _MemRefType(_RefType):
    """What memory is for. `OTH` is what `track_external` was given as tensors."""

    PARAM = "Parameter"
    BUFFER = "Buffer"
    GRAD = "Gradient"
    ACT = "Activation"
    TEMP = "Temp"
    OPT = "Optstate"
    OTH = "Other"


class _ModState(_State):
    """When a module's snapshot was taken; `AC`: its forward again, in backward."""

    PRE_FW = "Pre-Forward"
    POST_FW = "Post-Forward"
    PEAK_FW = "Peak-Forward"
    PRE_BW = "Pre-Backward"
    PRE_FW_AC = "Pre-Forward-AC"
    POST_FW_AC = "Post-Forward-AC"
    POST_BW = "Post-Backward"
    PEAK_BW = "Peak-Backward"


class Watched:
    """A module's snapshots. Those of its peaks are kept by the tally, and fetched when they are asked for."""

    peak_states: ClassVar[tuple[_State, _State]]
    """Forward's and backward's."""

    def __init__(self, mod_fqn: str) -> None:
        self.mod_fqn = mod_fqn
        self._local_peak: dict[Any, int] = {}
        self._snapshots: dict[Any, list[Snapshot]] = {}
        self._tally: _core.Tally | None = None
        self._scope = 0

    def watch(self, tally: _core.Tally) -> None:
        """Lets the tally keep its peaks from now on."""
        self._tally, self._scope = tally, tally.watch(self.mod_fqn)

    def begin(self, backward: bool) -> Snapshot:
        """Its forward or its backward begins: what is in use is the highest so far. Returns it."""
        self._settle()
        if self._tally is None:
            return {}
        self._tally.begin(self._scope, backward)
        self._snapshots.setdefault(self.peak_states[backward], []).append(self._tally.usage())
        return self._tally.usage()

    def take(self, state: _State, snapshot: Snapshot) -> None:
        """Adds a snapshot."""
        self._snapshots.setdefault(state, []).append(snapshot)

    def detach(self) -> None:
        """Fetches its peaks for the last time."""
        self._settle()
        self._tally = None

    def _settle(self) -> None:
        if self._tally is None:
            return
        for backward, state in enumerate(self.peak_states):
            peak = self._tally.peak_of(self._scope, bool(backward))
            if peak is not None and self._snapshots.get(state):
                self._snapshots[state][-1].update(peak)
        self._local_peak = self._tally.highest_of(self._scope)

    @property
    def local_peak(self) -> dict[Any, int]:
        """The highest total of each device since its forward or backward last began."""
        self._settle()
        return self._local_peak

    @property
    def snapshots(self) -> dict[Any, list[Snapshot]]:
        """By state, one snapshot for each time that it was in that state."""
        self._settle()
        return self._snapshots

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched:
        self._settle()
        copy = type(self)(self.mod_fqn)
        copy.__dict__.update({name: value for name, value in vars(self).items() if not name.startswith("_")})
        copy._local_peak = dict(self._local_peak)
        copy._snapshots = {
            state: [{device: dict(row) for device, row in snapshot.items()} for snapshot in snapshots]
            for state, snapshots in self._snapshots.items()
        }
        return copy


class _ModMemStats(Watched):
    """The memory of one module."""

    peak_states = (_ModState.PEAK_FW, _ModState.PEAK_BW)
    parameter_mem: int
    buffer_mem: int
    input_mem: int
    output_mem: int


def _label(key: object) -> str:
    return str(key.value) if isinstance(key, Enum) else str(key)


def _rows(snapshot: Snapshot, units: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The devices that have something, each with its amounts by label."""
    if units not in UNITS:
        raise ValueError(f"Unsupported unit: {units}. Supported units are: {', '.join(UNITS)}")
    divisor = UNITS[units]
    amount = lambda size: size if divisor == 1 else round(size / divisor, 2)
    for device, row in snapshot.items():
        if amount(row[TOTAL]) > 0:
            yield str(device), {_label(key): f"{amount(size)} {units}" for key, size in row.items()}


def _tabulate() -> Any:
    try:
        from tabulate import tabulate  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError("Please install tabulate to use the tabulate option.") from error
    return tabulate


def print_snapshot(snapshot: Snapshot, units: str, tabular: bool) -> None:
    """Prints one snapshot."""
    if not snapshot:
        print("No memory tracked.")
        return
    if tabular:
        tabulate = _tabulate()
        headers = ["Device", *(_label(key) for key in next(iter(snapshot.values())))]
        table = [[device, *row.values()] for device, row in _rows(snapshot, units)]
        print(tabulate(table, headers=headers, tablefmt="rst"))
        return
    for device, row in _rows(snapshot, units):
        print(f"Device: {device}", *(f"\t{label}: {size}" for label, size in row.items()), sep="\n")


def print_states(snapshots: dict[_State, list[Snapshot]], units: str, tabular: bool) -> None:
    """Prints all snapshots of one module."""
    if not tabular:
        for state, taken in snapshots.items():
            print(state.value)
            for number, snapshot in enumerate(taken, 1):
                print(f"# {number}:")
                print_snapshot(snapshot, units, tabular=False)
        print()
        return
    tabulate = _tabulate()
    table, last = [], None
    for state, taken in snapshots.items():
        for number, snapshot in enumerate(taken, 1):
            call = f"{state.value} # {number}"
            for device, row in _rows(snapshot, units):
                table.append({"State & Call": call if call != last else "", "Device": device, **row})
                last = call
    print(tabulate(table, headers="keys", tablefmt="rst"))
