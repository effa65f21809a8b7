"""Integers that are worked out from what was uploaded: positions, masks, lengths, counts.

Kernels do not run. For the few operators that such values go through, the operator runs as ever (it allocates what it
allocates), and, if what goes in is known and small, it also runs on the CPU, and the runtime is told what came out.
"""

import ctypes

from rematic_rehearsal import assumptions
from rematic_rehearsal.reads import runtime

# Elements above which nothing decides by a value, and which would take time.
_LARGEST = 1 << 20
_BINARY = ("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_NAMES = (
    *(f"{name}.Tensor" for name in (*_BINARY, *_COMPARED)),
    *(f"{name}.Scalar" for name in _COMPARED),
    *(f"{name}_.Tensor" for name in (*_BINARY, *_COMPARED)),
    "bitwise_not", "logical_not.out", "logical_and.out", "logical_or.out", "all", "all.dim", "any", "any.dim",
    "sum.dim_IntList", "cumsum", "max", "min", "max.dim", "min.dim", "argmax", "argmin", "where.self", "fill_.Scalar",
    "zero_", "masked_fill_.Scalar", "arange.start_out", "copy_", "cat", "index_select", "gather", "maximum", "minimum",
    "remainder.Tensor", "div.Tensor_mode", "clamp", "tril", "triu", "abs", "neg",
)
# Operators that do not look at what they write over.
_ONLY_WRITES = ("fill_.Scalar", "zero_", "copy_")
_libraries = []
_torch = None


def watch(torch):
    """Called after PyTorch is imported."""
    global _torch
    _torch = torch
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in _NAMES:
        _mirror(library, name)
    _count_nonzero(library)
    _compare(library)


def _kernel(name):
    """PyTorch's own kernel of an operator, if it has one for CUDA."""
    for key in ("CUDA", "CompositeExplicitAutograd"):
        try:
            return _torch.library.get_kernel(f"aten::{name}", key)
        except RuntimeError:
            continue
    return None


def _mirror(library, name):
    kernel = _kernel(name)
    if kernel is None:
        return
    base, _, overload = name.partition(".")
    operator = getattr(getattr(_torch.ops.aten, base), overload or "default")
    in_place = base.endswith("_") or overload.endswith("out")
    only_writes = name in _ONLY_WRITES
    takes_tensor = [str(argument.type) == "Tensor" for argument in operator._schema.arguments]

    def run(keys, *arguments, **keywords):
        # What an operator writes in place, it may read too.
        before = in_place and ("out" in keywords or _is_small(arguments[0]))
        known = _known(arguments, keywords, only_writes) if before else None
        result = kernel.call_boxed(keys, *_boxed(arguments, takes_tensor), **keywords)
        if in_place:
            if known is not None and _is_small(result):
                _told(operator, known, result)
        elif _is_small(result):
            known = _known(arguments, keywords, False)
            if known is not None:
                _told(operator, known, result)
        return result

    library.impl(name, run, "CUDA", with_keyset=True, allow_override=True)


def _is_small(result):
    results = result if isinstance(result, (tuple, list)) else (result,)
    return any(
        isinstance(tensor, _torch.Tensor) and not tensor.dtype.is_floating_point and 0 < tensor.numel() <= _LARGEST
        for tensor in results
    )


def _boxed(arguments, takes_tensor):
    """Numbers as tensors where the kernel wants these, of the type that leaves the result's as it is."""
    if not any(wants and isinstance(value, (int, float)) for wants, value in zip(takes_tensor, arguments)):
        return arguments
    tensors = [value for value in arguments if isinstance(value, _torch.Tensor)]
    # The last one: what comes before the values of `where` is its condition.
    return [
        _torch.tensor(value, dtype=_torch.result_type(tensors[-1], value))
        if wants and isinstance(value, (int, float)) and tensors
        else value
        for wants, value in zip([*takes_tensor, *[False] * len(arguments)], arguments)
    ]


def _known(arguments, keywords, only_writes):
    """The arguments on the CPU; none if one is not known."""
    try:
        first = [_blank(value) if only_writes else _on_cpu(value) for value in arguments[:1]]
        rest = [_on_cpu(value) for value in arguments[1:]]
        named = {name: _blank(value) if name == "out" else _on_cpu(value) for name, value in keywords.items()}
        return [*first, *rest], named
    except LookupError:
        return None


def _blank(tensor):
    """Room on the CPU for what is only written."""
    return _torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _on_cpu(value):
    if isinstance(value, (tuple, list)):
        return [_on_cpu(part) for part in value]
    if isinstance(value, _torch.device):
        return _torch.device("cpu")
    if not isinstance(value, _torch.Tensor):
        return value
    if type(value) is not _torch.Tensor and type(value) is not _torch.nn.Parameter:
        raise LookupError
    return _read(value) if value.is_cuda else value


def _span(tensor):
    """Elements from a tensor's first to its last in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def _read(tensor):
    """A tensor's values as the runtime knows them."""
    span = _span(tensor)
    if span > _LARGEST or tensor.dtype.is_complex:
        raise LookupError
    flat = _torch.zeros(max(span, 1), dtype=tensor.dtype, device="cpu")
    size = span * tensor.element_size()
    if span and not runtime().rematic_peek(
        ctypes.c_size_t(tensor.data_ptr()), ctypes.c_void_p(flat.data_ptr()), ctypes.c_size_t(size)
    ):
        raise LookupError
    return flat.as_strided(tensor.shape, tensor.stride())


def _told(operator, known, result):
    """Runs the operator on the CPU, and tells the runtime what came out."""
    arguments, keywords = known
    try:
        with _torch._C._AutoDispatchBelowAutograd():
            values = operator(*arguments, **keywords)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return
    several = isinstance(result, (tuple, list))
    for tensor, value in zip(result, values) if several else [(result, values)]:
        _write(tensor, value)


def _write(tensor, value):
    span = _span(tensor)
    if tensor.dtype != value.dtype or tensor.shape != value.shape or span != tensor.numel():
        return
    flat = _torch.empty(max(span, 1), dtype=tensor.dtype, device="cpu")
    flat.as_strided(tensor.shape, tensor.stride()).copy_(value)
    size = span * tensor.element_size()
    runtime().rematic_poke(ctypes.c_size_t(tensor.data_ptr()), ctypes.c_void_p(flat.data_ptr()), ctypes.c_size_t(size))


def _count_nonzero(library):
    """`nonzero`, which boolean indexing asks too: as many as there are, where the mask is known."""
    kernel = _kernel("nonzero")
    if kernel is None:
        return

    def run(keys, mask):
        try:
            found = _on_cpu(mask).nonzero()
        except LookupError:
            if mask.numel():
                assumptions.assume("masks that kernels compute select nothing (nonzero, boolean indexing)")
            return kernel.call_boxed(keys, mask)
        # It reads a count that nobody has: the one below is right.
        runtime().rematic_quiet(True)
        try:
            result = kernel.call_boxed(keys, mask)
        finally:
            runtime().rematic_quiet(False)
        if found.shape[0]:
            result = _torch.empty_strided(found.shape, (1, found.shape[0]), dtype=found.dtype, device=mask.device)
            _write(result, found)
        return result

    library.impl("nonzero", run, "CUDA", with_keyset=True, allow_override=True)


def _compare(library):
    """`torch.equal`, by which checks decide whether something was computed again as before."""

    def run(one, other):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        try:
            return _torch.equal(_on_cpu(one), _on_cpu(other))
        except LookupError:
            assumptions.assume("tensors that are compared as a whole (torch.equal) are equal")
            return True

    library.impl("equal", run, "CUDA", allow_override=True)
