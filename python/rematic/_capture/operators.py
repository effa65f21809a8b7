"""What is known of operators beforehand: their phases, types and flags."""

from __future__ import annotations

from typing import Any

import torch

from rematic._model.collectives import COLLECTIVES, NAMES, PACKING, is_wait

from .lengths import PACK

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
CATEGORIES = {FORWARD: "activation", BACKWARD: "temp", OPTIMIZER: "optimizer"}
DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint64: "u64", torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
    # Types that have no name of their own in the format, by their width.
    torch.uint32: "i32", torch.uint16: "i16", torch.complex32: "f32",
    torch.float8_e4m3fn: "f8", torch.float8_e5m2: "f8", torch.float8_e4m3fnuz: "f8", torch.float8_e5m2fnuz: "f8",
}  # fmt: skip

CLONE = torch.ops.aten.clone.default
DETACH = torch.ops.aten.detach.default
# Random only if it drops weights; the other random operators are known by their tag.
FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
FLASH_DROPOUT = 3
# A tensor has been made of numbers: that is the first that is seen of it.
LIFT_FRESH = torch.ops.aten.lift_fresh.default
TO_COPY = torch.ops.aten._to_copy.default
# They read on one device and write on another, or take lengths on the CPU.
ACROSS_DEVICES = (torch.ops.aten.copy_.default, TO_COPY, PACK)


def name_of(func: Any) -> str:
    """An operator's name in a trace."""
    name = str(func)
    return NAMES.get(name, name.removeprefix("aten.").removeprefix("c10d."))


class Facts:
    """What is the same for every call of an operator."""

    __slots__ = (
        "name", "flags", "mutated", "mutated_keywords", "recorded", "is_composite", "replaces", "communicates",
        "packs", "waits",
    )  # fmt: skip

    def __init__(self, func: Any, name: int) -> None:
        self.name = name
        self.recorded = func.namespace not in ("profiler", "prim", "prims")
        self.is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        # Whether its argument has another storage afterwards.
        self.replaces = func._opname == "set_"
        self.flags: list[str] = []
        # A backward kernel reads the seed that forward drew, whatever its tag says.
        draws = torch.Tag.nondeterministic_seeded in func.tags and not func._opname.endswith("_backward")
        if draws and func is not FLASH:
            self.flags.append("random")
        # Whether it is one of `torch.distributed`: a collective, one that packs for it, or one that does nothing itself.
        is_distributed = func.namespace in COLLECTIVES or func.namespace == PACKING
        self.waits = is_distributed and is_wait(func)
        self.communicates = func.namespace in COLLECTIVES and not self.waits
        self.packs = func.namespace == PACKING
        written = [
            (position, argument)
            for position, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.mutated = [position for position, argument in written if not argument.kwarg_only]
        self.mutated_keywords = [argument.name for _, argument in written]

        if func.namespace == "c10d" and func._opname.endswith("_"):
            # Their schemas do not say so.
            self.mutated, self.mutated_keywords = [0], [func._schema.arguments[0].name]
        elif self.packs and func._opname == "all_gather_copy_in":
            self.mutated, self.mutated_keywords = [1], [func._schema.arguments[1].name]

    def written(self, args: Any, kwargs: Any) -> list[Any]:
        """The arguments of a call that it writes to."""
        positional = [args[position] for position in self.mutated if position < len(args)]
        return positional + [kwargs[name] for name in self.mutated_keywords if name in kwargs]
