"""Traces in a form in which two that say the same are equal, whatever the order of their tables."""

from __future__ import annotations

from typing import Any

CUDA_BLOCK = 512
# Between two operators these may come in any order without a difference in memory.
UNORDERED = ("drop", "unsave", "recategorize", "return", "enter_backward", "exit_backward")
MADE_IN_EITHER_ORDER = ("scalar_tensor.default",)


def canonical(trace: dict[str, Any]) -> dict[str, Any]:
    """Modules, operators and events, with storages numbered in the order in which modules and operators name them."""
    numbers: dict[int, int] = {}

    def storage(row: int) -> int:
        return numbers.setdefault(row, len(numbers))

    def layout(row: int) -> str:
        dtype, shape, strides = trace["layouts"][row]
        # How far apart the elements of a dimension with one element are means nothing.
        return str([dtype, shape, [stride if extent != 1 else 1 for extent, stride in zip(shape, strides, strict=True)]])

    def tensor(pair: list[int]) -> tuple[int, str]:
        return storage(pair[0]), layout(pair[1])

    modules = [
        (
            module["name"],
            module["class"],
            module["parent"],
            *(
                tuple((name, *tensor([row, form])) for name, row, form in module.get(kind, []))
                for kind in ("parameters", "buffers")
            ),
        )
        for module in trace["modules"]
    ]
    # By their first reader: two that are made one after the other may be made in either order.
    for op in trace["ops"]:
        for row, _ in op.get("inputs", []):
            storage(row)
    ops = []
    for op in trace["ops"]:
        known: dict[str, Any] = {key: op.get(key) for key in ("phase", "call", "differentiates")}
        known["name"] = trace["names"][op["name"]]
        known["flags"] = sorted(op.get("flags", []))
        for kind in ("inputs", "outputs", "saves"):
            known[kind] = [tensor(pair) for pair in op.get(kind, [])]
        if known["name"] in MADE_IN_EITHER_ORDER:
            known["outputs"] = [form for _, form in known["outputs"]]
        known["saves"].sort()
        known["mutates"] = [storage(row) for row in op.get("mutates", [])]
        ops.append(known)
    calls = [
        (call["module"], *(tuple(storage(row) for row in call.get(kind, [])) for kind in ("inputs", "outputs")))
        for call in trace["calls"]
    ]
    events: list[Any] = []
    gap: list[Any] = []
    # A module that returns what it is given, as dropout of nothing, has no backward of its own.
    idle = {row for row, call in enumerate(trace["calls"]) if call.get("inputs") == call.get("outputs")}
    for event in trace["events"]:
        ((kind, value),) = event.items()
        if kind in ("enter_backward", "exit_backward") and value in idle:
            continue
        if kind == "drop":
            value = storage(value)
        if kind == "recategorize":
            value = (storage(value[0]), value[1])
        if kind in UNORDERED:
            gap.append((kind, value))
        else:
            events.append(sorted(gap, key=str))
            gap = []
            events.append((kind, value))
    events.append(sorted(gap, key=str))
    storages = sorted(
        (numbers[row], size, category, birth is None)
        for row, (size, category, birth, *_) in enumerate(trace["storages"])
        if row in numbers
    )
    return {"modules": modules, "ops": ops, "calls": calls, "events": events, "storages": storages}


def difference(left: dict[str, Any], right: dict[str, Any]) -> str | None:
    """The first place in which two traces differ."""
    a, b = canonical(left), canonical(right)
    for table in ("modules", "ops", "calls", "events", "storages"):
        for index, (x, y) in enumerate(zip(a[table], b[table], strict=False)):
            if x != y:
                return f"{table}[{index}]: {x}\n != {y}"
        if len(a[table]) != len(b[table]):
            return f"{len(a[table])} != {len(b[table])} {table}"
    return None


def timeline(trace: dict[str, Any], block: int = CUDA_BLOCK) -> list[tuple[str, str, int]]:
    """Name, phase and bytes in use right after every operator."""
    sizes = [-(-size // block) * block for size, *_ in trace["storages"]]
    alive = [1 if birth is None else 0 for _, _, birth, *_ in trace["storages"]]
    total = sum(size for size, count in zip(sizes, alive, strict=True) if count)
    births: dict[int, list[int]] = {}
    for row, (_, _, birth, *_) in enumerate(trace["storages"]):
        if birth is not None:
            births.setdefault(birth, []).append(row)

    def change(row: int, by: int) -> None:
        nonlocal total
        before = alive[row]
        alive[row] += by
        total += sizes[row] * ((alive[row] > 0) - (before > 0))

    out = []
    for event in trace["events"]:
        ((kind, value),) = event.items()
        if kind == "op":
            op = trace["ops"][value]
            for row in births.get(value, []):
                change(row, 1)
            out.append((trace["names"][op["name"]], op["phase"], total))
            for row, _ in op.get("saves", []):
                change(row, 1)
        elif kind == "drop":
            change(value, -1)
        elif kind == "unsave":
            for row, _ in trace["ops"][value].get("saves", []):
                change(row, -1)
    return out
