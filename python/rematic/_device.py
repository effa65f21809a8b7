"""What a device is called, in every function that takes one.

Names are those of `rematic devices`, and torch's: "cuda", "cuda:0", "cpu", `torch.device("cuda", 1)`. A step runs the
operators of one of two kinds of devices, CUDA's or the CPU's; its times and memory are those of a data sheet.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Literal, TypeAlias

from rematic._core import DEFAULT_DEVICE, PlanError, RematicError, card_kind, devices

Kind: TypeAlias = Literal["cuda", "cpu"]

# The data sheet where none is asked for and this machine has no GPU, and the times of a step on the CPU.
DEFAULT = DEFAULT_DEVICE
# A card of each kind.
CARDS = {"before-ampere": "t4", "data-center": "a100-80", "consumer": "rtx-4090"}
# How drivers call the devices of `rematic devices`; the first that fits counts. The A100 comes in two sizes under
# names that do not always tell.
_PRODUCTS = (
    (r"\bGB200\b", "gb200"), (r"\bB200\b", "b200"), (r"\bH200\b", "h200"), (r"\bH100.*PCIe", "h100-pcie"),
    (r"\bH100\b", "h100"), (r"\bA100\b", "a100"), (r"\bV100\b", "v100"), (r"\bL40S\b", "l40s"), (r"\bL4\b", "l4"),
    (r"\bA10G\b", "a10g"), (r"\bT4\b", "t4"), (r"\bRTX 3090\b", "rtx-3090"), (r"\bRTX 4090\b", "rtx-4090"),
    (r"\bRTX 5090\b", "rtx-5090"), (r"\bMI250X\b", "mi250x"), (r"\bMI300X\b", "mi300x"), (r"\bMI325X\b", "mi325x"),
    (r"\bMI355X\b", "mi355x"),
)  # fmt: skip
_LARGE_A100 = 60 * 10**9
_TORCH = re.compile(r"(cpu|cuda)(?::(\d+))?")


def kind_of(device: Any) -> Kind:
    """Whose operators run on a device."""
    named = _torch_name(device)
    if named is not None:
        return named[0]
    if _plain(device) not in devices():
        raise RematicError(
            f"there is no device `{device}`; give cuda, cpu, or one of those that `rematic devices` lists: "
            + ", ".join(devices())
        )
    return "cuda"


def data_sheet(device: Any) -> tuple[str, bool]:
    """The name of a device's data sheet, and whether it stands in for that of the CPU, which has none."""
    named = _torch_name(device)
    if named is None:
        return str(device), False
    kind, index = named
    if kind == "cpu":
        return DEFAULT, True
    properties = gpu(index)
    return (DEFAULT if properties is None else device_of(properties.name, properties.total_memory)), False


def card_of(device: Any) -> str:
    """The kind of card whose attention runs on a device: that of this machine's GPU, if torch's name is given."""
    named = _torch_name(device)
    if named is None:
        return card_kind(_plain(device))
    properties = gpu(named[1]) if named[0] == "cuda" else None
    capability = None if properties is None else 10 * properties.major + properties.minor
    return card_kind(DEFAULT, capability)


def gpu(index: int | None) -> Any:
    """What the driver says of one of this machine's GPUs, by default the current one; None where there is none, or
    nobody has loaded torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    if index is not None and index >= torch.cuda.device_count():
        raise RematicError(f"there is no device cuda:{index} here; this machine has {torch.cuda.device_count()}, from 0")
    return torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)


def device_of(product: str, memory: int) -> str:
    """The name of a device that the driver calls `product`."""
    for pattern, name in _PRODUCTS:
        if re.search(pattern, product):
            if name == "a100":
                return "a100-80" if memory > _LARGE_A100 else "a100-40"
            return name
    raise PlanError(
        f"This machine's {product} is not among the known devices; give the nearest as device=, of those that "
        f"`rematic devices` lists: {', '.join(devices())}"
    )


def torch_index(device: Any) -> int | None:
    """Which GPU is meant by torch's name of a device, if it says."""
    named = _torch_name(device)
    return None if named is None else named[1]


def is_torch_name(device: Any) -> bool:
    """Whether it is torch's name of a device, and not that of a data sheet."""
    return _torch_name(device) is not None


def _torch_name(device: Any) -> tuple[Kind, int | None] | None:
    torch = sys.modules.get("torch")
    is_torchs = torch is not None and isinstance(device, torch.device)
    if not is_torchs and not isinstance(device, str):
        raise TypeError(
            f"a device is a name, as \"cuda\", \"cpu\" or \"h100\", or a torch.device, not {type(device).__name__}"
        )
    match = _TORCH.fullmatch(_plain(device))
    if match is None:
        return None
    kind, index = match.groups()
    return ("cpu" if kind == "cpu" else "cuda"), (None if index is None else int(index))


def _plain(device: Any) -> str:
    """As `rematic devices` writes names: upper case, spaces and underscores are allowed."""
    return re.sub(r"[ _]", "-", str(device).strip().lower())
