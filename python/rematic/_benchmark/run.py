"""Every distinct operator of a step, run for real."""

from __future__ import annotations

import sys
from typing import Any

import torch

from rematic._core import CostTable, RematicError, Signature, Trace, modelled_shares, signatures
from rematic._device import data_sheet, is_torch_name, kind_of
from rematic._warning import warn

from .inputs import make, storage_bytes
from .progress import Progress
from .rebuild import NotRebuilt, operator, rebuild
from .timing import clock_of, measure

# The share of the free memory that one operator may take with what it reads and returns.
MEMORY_SHARE = 0.8
# Results are alive while the next ones are made.
RESULTS_AT_ONCE = 2


def run(
    trace: Trace, device: str | torch.device | None, progress: bool, repeats: int, seconds: float, causal: bool
) -> CostTable:
    """What `rematic.benchmark` does."""
    if repeats < 1 or seconds <= 0:
        raise RematicError(f"repeats is {repeats} and seconds {seconds}; give at least 1, and more than 0")
    chosen = _device(trace, device)
    todo = signatures(trace)
    if not todo:
        raise RematicError(f"{trace.name} has no operator for which a kernel runs, so there is nothing to measure")
    rows: list[tuple[Signature, float]] = []
    left_out: dict[int, str] = {}
    random_devices = [chosen] if chosen.type == "cuda" else []
    with (
        torch.no_grad(),
        torch.autocast(chosen.type, enabled=False),
        torch.random.fork_rng(devices=random_devices),
        Progress(len(todo), shown=progress) as bar,
    ):
        torch.manual_seed(0)
        for position, signature in enumerate(todo):
            bar.show(position, signature.op)
            try:
                rows.append((signature, _milliseconds(signature, chosen, repeats, seconds, causal)))
            except NotRebuilt as reason:
                left_out[position] = str(reason)
    if left_out:
        warn(_left_out_text(trace, todo, left_out))
    if not rows:
        raise RematicError(f"none of the step's {len(todo)} operators runs on {chosen}; take another device")
    return CostTable(_name(chosen), rows)


def _device(trace: Trace, device: str | torch.device | None) -> torch.device:
    if device is None:
        on_gpu = torch.cuda.is_available() and trace.device != "cpu"
        device = "cuda" if on_gpu else "cpu"
    kind = kind_of(device)
    if kind == "cuda" and not torch.cuda.is_available():
        raise RematicError("there is no CUDA device here; measure where there is one, or give device='cpu'")
    if is_torch_name(device):
        return torch.device(device)
    here, _ = data_sheet(kind)
    if here != str(device).strip().lower():
        raise RematicError(f"cannot measure on `{device}`: this machine's GPU is `{here}`; give cuda or cpu")
    return torch.device(kind)


def _milliseconds(signature: Signature, device: torch.device, repeats: int, seconds: float, causal: bool) -> float:
    _check_memory(signature, device)
    call = rebuild(operator(signature.op), signature.inputs, signature.outputs, causal)
    try:
        inputs = [
            make(layout, device, bound=call.bound(position), positive=call.needs_positive)
            for position, layout in enumerate(signature.inputs)
        ]
        call.check(call.run(inputs, device), signature.outputs)
        return measure(lambda: call.run(inputs, device), clock_of(device), repeats, seconds)
    except NotImplementedError as error:
        raise NotRebuilt(f"it has no kernel for {device.type}") from error
    except (RuntimeError, TypeError, ValueError, IndexError, MemoryError) as error:
        # The first line of torch's errors says what is wrong, the others where.
        first = str(error).strip().split("\n")[0]
        raise NotRebuilt(f"{type(error).__name__}: {first}") from error


def _check_memory(signature: Signature, device: torch.device) -> None:
    needed = sum(map(storage_bytes, signature.inputs)) + RESULTS_AT_ONCE * sum(map(storage_bytes, signature.outputs))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if needed > MEMORY_SHARE * free:
        raise NotRebuilt(f"needs {needed} bytes, and {free} are free")


def _free_memory() -> int:
    """Bytes that can be had without swapping."""
    try:
        with open("/proc/meminfo") as facts:
            line = next(line for line in facts if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        # Other systems do not tell; there, an allocation that fails does.
        return sys.maxsize


def _left_out_text(trace: Trace, todo: list[Signature], left_out: dict[int, str]) -> str:
    shares: list[Any]
    try:
        shares = modelled_shares(trace)
    except RematicError:
        # The rule has no rate for one of the step's types.
        shares = [None] * len(todo)
    by_op: dict[str, list[int]] = {}
    for position in left_out:
        by_op.setdefault(todo[position].op, []).append(position)

    def share(positions: list[int]) -> str:
        known = [shares[position] for position in positions if shares[position] is not None]
        return f"{100 * sum(known):.2g} %" if len(known) == len(positions) else "an unknown share"

    lines = [f"  {op} ({share(at)}): {left_out[at[0]]}" for op, at in by_op.items()]
    return (
        f"{len(left_out)} of {len(todo)} operators were not measured, {share(list(left_out))} of the step's time by the "
        "physical rule, which covers them in plans:\n" + "\n".join(lines)
    )


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
