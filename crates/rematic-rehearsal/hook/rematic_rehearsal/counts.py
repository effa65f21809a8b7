"""Operators that ask the device how large their result is: `nonzero`, which boolean indexing asks too, and the like.

Where what goes in is known, so is the answer. Elsewhere the device says zero, and that is told.
"""

from rematic_rehearsal import assumptions, values
from rematic_rehearsal.reads import runtime

_NAMES = ("nonzero", "bincount", "_unique2", "unique_consecutive", "unique_dim", "repeat_interleave.Tensor")
_torch = None


def watch(torch, library):
    """Called after PyTorch is imported."""
    global _torch
    _torch = torch
    for name in _NAMES:
        _count(library, name)


def _count(library, name):
    kernel = values.kernel_of(name)
    if kernel is None:
        return
    base, _, overload = name.partition(".")
    operator = getattr(getattr(_torch.ops.aten, base), overload or "default")
    shown = {"_unique2": "unique", "unique_dim": "unique"}.get(base, base)

    def run(keys, *arguments, **keywords):
        found = _found(operator, arguments, keywords)
        if found is None:
            if arguments[0].numel():
                assumptions.assume(_NOTHING[shown] if shown in _NOTHING else _ZERO.format(shown))
            result = kernel.call_boxed(keys, *arguments, **keywords)
            # Some fill their result before a kernel counts into it.
            values.forget(result, True)
            return result
        # It reads a count that nobody has: the one that was worked out is right.
        runtime().rematic_quiet(True)
        try:
            result = kernel.call_boxed(keys, *arguments, **keywords)
        finally:
            runtime().rematic_quiet(False)
        several = isinstance(result, (tuple, list))
        pairs = zip(result, found) if several else [(result, found)]
        sized = [_sized(tensor, value, shown) for tensor, value in pairs]
        return tuple(sized) if several else sized[0]

    library.impl(name, run, "CUDA", with_keyset=True, allow_override=True)


_NOTHING = {"nonzero": "masks that kernels compute select nothing (nonzero, boolean indexing): what is selected is not counted"}
_ZERO = "counts that {} asks of values that kernels compute are zero: what they decide is not counted"


def _found(operator, arguments, keywords):
    """What the operator says on the CPU; none if what goes in is not known."""
    try:
        known = [values.on_cpu(value) for value in arguments]
        named = {name: values.on_cpu(value) for name, value in keywords.items()}
        with _torch._C._AutoDispatchBelowAutograd():
            return operator(*known, **named)
    except (LookupError, RuntimeError, TypeError, NotImplementedError):
        return None


def _sized(tensor, value, shown):
    """The result in the size that it has on a GPU, with its values."""
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        # `nonzero` writes its columns one after the other.
        strides = (1, value.shape[0]) if shown == "nonzero" and value.dim() == 2 else value.contiguous().stride()
        tensor = _torch.empty_strided(value.shape, strides, dtype=value.dtype, device=tensor.device)
    values.write(tensor, value)
    return tensor
