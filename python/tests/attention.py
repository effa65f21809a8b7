"""Calls of scaled-dot-product attention, and what PyTorch makes of them: on a device, or on the meta device for it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# Those of models, and ones that some kernel does not take.
WIDTHS = [8, 32, 64, 64, 72, 80, 96, 128, 128, 160, 192, 208, 224, 240, 256]
WIDTHS += [264, 512, 1, 2, 4, 6, 12, 36, 63, 65, 100, 132]
LAYOUTS = ["contiguous", "by row", "by row", "packed", "turned", "shifted", "expanded"]
MASKS = ["none"] * 6 + [
    "boolean", "numbers", "learned", "boolean, per batch", "boolean, per head", "numbers, broadcast rows",
    "numbers, one key", "boolean, turned", "numbers, sliced", "boolean, full", "learned, full",
    "numbers, three dimensions",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A call."""

    dtype: str = "fp32"
    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    value_heads: int = 4
    # Keys and values get the heads of the queries before the call: "copied", "viewed".
    repeated: str = ""
    grouped: bool = False
    length: int = 64
    keys: int = 64
    width: int = 64
    value_width: int = 64
    rank: int = 4
    layout: str = "contiguous"
    mask: str = "none"
    causal: bool = False
    dropout: float = 0.0
    scale: float | None = None
    # Which of queries, keys and values need gradients.
    trains: str = "qkv"
    grad: bool = True
    # Which kernels `sdpa_kernel` allows, in order if `ordered`; all if empty.
    allowed: tuple[str, ...] = ()
    ordered: bool = False

    def described(self) -> dict[str, Any]:
        """The fields that are not the usual ones."""
        plain = Case()
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value != getattr(plain, name)}

    @staticmethod
    def of(fields: dict[str, Any]) -> Case:
        """As `described` wrote it, through JSON."""
        return Case(**{**fields, "allowed": tuple(fields.get("allowed", ()))})


def random_case(generator: random.Random) -> Case:
    """Any call, most of them ones that models make."""
    pick, chance = generator.choice, generator.random
    heads = pick([1, 2, 4, 6, 8])
    own = pick([heads, heads, 1, pick([n for n in range(1, heads + 1) if heads % n == 0]), pick([2, 3])])
    value_heads = own if chance() < 0.95 else pick([1, heads])
    divides = own != heads and heads % own == 0 and own == value_heads
    repeated = pick(["copied", "viewed"]) if divides and chance() < 0.2 else ""
    length = pick([1, 7, 16, 33, 64, 100])
    width = pick(WIDTHS)
    mask = pick(MASKS)
    return Case(
        dtype=pick(["fp32", "fp32", "fp32", "fp16", "bf16", "bf16", "fp64"]),
        batch=pick([1, 2, 3]),
        heads=heads,
        key_heads=own,
        value_heads=value_heads,
        repeated=repeated,
        grouped=(own != heads and not repeated and chance() < 0.8) or chance() < 0.1,
        length=length,
        keys=length if chance() < 0.7 else pick([1, 8, 48, 65]),
        width=width,
        value_width=width if chance() < 0.9 else pick(WIDTHS),
        rank=4 if chance() < 0.85 else pick([2, 3, 5]),
        layout=pick(LAYOUTS),
        mask=mask,
        causal=mask == "none" and chance() < 0.5,
        dropout=pick([0.0, 0.0, 0.1]),
        scale=pick([None, None, None, 0.5]),
        trains=pick(["qkv", "qkv", "qkv", "q", "kv", ""]),
        grad=chance() < 0.9,
        allowed=() if chance() < 0.8 else tuple(generator.sample(list(BACKENDS), generator.randint(1, 3))),
        ordered=chance() < 0.5,
    )  # fmt: skip


def _laid(shape: tuple[int, ...], layout: str, dtype: torch.dtype, device: str) -> Tensor:
    """A tensor of at least two dimensions; only those of four are laid out by row."""
    made = lambda *sizes: torch.zeros(sizes, dtype=dtype, device=device)
    if layout == "by row" and len(shape) == 4:
        return made(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
    if layout == "packed" and len(shape) == 4:
        return made(shape[0], shape[2], 3, shape[1], shape[3])[:, :, 1].transpose(1, 2)
    if layout == "turned":
        return made(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    if layout == "shifted":
        return made(torch.Size(shape).numel() + 1)[1:].view(shape)
    if layout == "expanded":
        return made(1, *shape[1:]).expand(shape)
    return made(*shape)


def _mask(case: Case, dtype: torch.dtype, device: str) -> Tensor | None:
    kind, _, where = case.mask.partition(", ")
    if kind == "none":
        return None
    of = torch.bool if kind == "boolean" else dtype
    rows, keys = case.length, case.keys
    four = {
        "per batch": (case.batch, 1, rows, keys),
        "per head": (1, case.heads, rows, keys),
        "broadcast rows": (1, keys),
        "one key": (rows, 1),
        "full": (case.batch, case.heads, rows, keys),
        "three dimensions": (case.heads, rows, keys),
    }
    shape = four.get(where, (rows, keys))
    if case.rank != 4 and len(shape) > 2:
        shape = shape[-2:]
    if where == "turned":
        return torch.ones(keys, rows, dtype=of, device=device).t()
    if where == "sliced":
        return torch.ones(rows, keys + 5, dtype=of, device=device)[:, :keys]
    return torch.ones(shape, dtype=of, device=device, requires_grad=kind == "learned")


class _Made(TorchDispatchMode):
    """Writes down which operators run, and the layouts of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [item for item in tree_leaves(out) if isinstance(item, Tensor)]
        self.made.append([str(func).removeprefix("aten."), [_layout(item) for item in tensors]])
        return out


def _layout(tensor: Tensor) -> str:
    # Where there is one element along it, or none, a stride says nothing.
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [stride if size > 1 and tensor.numel() else "-" for size, stride in pairs]
    listed = lambda numbers: ",".join(map(str, numbers))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{listed(tensor.shape)}]({listed(strides)})"


def _inputs(case: Case, device: str) -> list[Tensor]:
    dtype = DTYPES[case.dtype]
    before = (case.batch,) if case.rank == 4 else (3, case.batch) if case.rank == 5 else ()
    sizes = [(case.heads, case.length, case.width), (case.key_heads, case.keys, case.width),
             (case.value_heads, case.keys, case.value_width)]  # fmt: skip
    out = []
    for name, (heads, rows, width) in zip("qkv", sizes, strict=True):
        shape = (rows, width) if case.rank == 2 else (*before, heads, rows, width)
        out.append(_laid(shape, case.layout, dtype, device).requires_grad_(name in case.trains))
    return out


def _repeated(case: Case, tensor: Tensor) -> Tensor:
    if not case.repeated or case.rank != 4:
        return tensor
    batch, heads, rows, width = tensor.shape
    if case.repeated == "viewed" and heads == 1:
        return tensor.expand(batch, case.heads, rows, width)
    if case.repeated == "viewed":
        return tensor.repeat_interleave(case.heads // heads, 1)
    wide = tensor[:, :, None].expand(batch, heads, case.heads // heads, rows, width)
    return wide.reshape(batch, case.heads, rows, width)


def outcome(case: Case, device: str) -> dict[str, Any]:
    """The operators of forward and backward with what they return, and what is saved in between; or a refusal."""
    q, k, v = _inputs(case, device)
    mask = _mask(case, DTYPES[case.dtype], device)
    saved: list[str] = []
    made = _Made()
    try:
        with made, torch.set_grad_enabled(case.grad), _allowing(case), _saving(saved):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, _repeated(case, k), _repeated(case, v), attn_mask=mask, dropout_p=case.dropout,
                is_causal=case.causal, scale=case.scale, enable_gqa=case.grouped,
            )  # fmt: skip
        if out.requires_grad:
            leaves = [tensor for tensor in (q, k, v, mask) if tensor is not None and tensor.requires_grad]
            gradient = torch.empty_like(out)
            with made:
                torch.autograd.grad(out, leaves, gradient)
    except (RuntimeError, IndexError):
        return {"refused": True}
    return {"made": made.made, "saved": sorted(saved)}


def _allowing(case: Case) -> Any:
    kernels = list(case.allowed or BACKENDS)
    return sdpa_kernel([BACKENDS[name] for name in kernels], set_priority=case.ordered and bool(case.allowed))


def _saving(saved: list[str]) -> Any:
    def pack(tensor: Tensor) -> Tensor:
        saved.append(_layout(tensor))
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def kernel_of(found: dict[str, Any]) -> str:
    """Which kernel an outcome has."""
    if "refused" in found:
        return "refused"
    names = " ".join(name for name, _ in found["made"])
    return next((kernel for kernel in ("flash", "efficient", "cudnn") if f"_{kernel}_attention" in names), "math")
