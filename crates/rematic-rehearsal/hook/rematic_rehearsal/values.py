"""Integers that are worked out from what was uploaded: positions, masks, lengths, counts.

Kernels do not run. For the few operators that such values go through, the operator runs as ever (it allocates what it
allocates), and, if what goes in is known and small, it also runs on the CPU, and the runtime is told what came out.
"""

import ctypes

from rematic_rehearsal import assumptions, choices, counts, writes
from rematic_rehearsal.reads import runtime

# Elements above which working them out on the CPU would take long.
_LARGEST = 1 << 22
_BINARY = ("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_NAMES = (
    *(f"{name}.Tensor" for name in (*_BINARY, *_COMPARED)),
    *(f"{name}.Scalar" for name in _COMPARED),
    *(f"{name}_.Tensor" for name in (*_BINARY, *_COMPARED)),
    "bitwise_not", "logical_not.out", "logical_and.out", "logical_or.out", "all", "all.dim", "any", "any.dim",
    "sum.dim_IntList", "cumsum", "max", "min", "min.dim", "argmin", "where.self", "fill_.Scalar",
    "zero_", "masked_fill_.Scalar", "arange.start_out", "copy_", "cat", "index_select", "gather", "maximum", "minimum",
    "remainder.Tensor", "div.Tensor_mode", "clamp", "tril", "triu", "abs", "neg", "all.dims", "any.dims", "floor_divide",
    "fmod.Tensor", "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "prod", "prod.dim_int", "cumprod", "flip",
    "roll", "index.Tensor", "take", "isin.Tensor_Tensor", "isin.Tensor_Scalar", "searchsorted.Tensor", "bucketize.Tensor",
    "histc", "scatter.value", "scatter.src", "scatter_.value", "scatter_.src", "scatter_add", "scatter_add_",
    "_index_put_impl_", "index_add_", "index_fill_.int_Scalar", "masked_fill_.Tensor", "fill_.Tensor", "clamp_", "cumsum_",
    "nonzero_static",
)
# Operators that do not look at what they write over.
_ONLY_WRITES = ("fill_.Scalar", "zero_", "copy_", "fill_.Tensor")
# Operators that make counts out of integers as floating-point numbers, and the one that makes these.
_FLOATS = ("histc", "copy_")
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
    _compare(library)
    counts.watch(torch, library)
    choices.watch(torch, library)
    writes.watch(torch, library, _NAMES)


def kernel_of(name):
    """PyTorch's own kernel of an operator, if it has one for CUDA."""
    for key in ("CUDA", "CompositeExplicitAutograd"):
        try:
            return _torch.library.get_kernel(f"aten::{name}", key)
        except RuntimeError:
            continue
    return None


def _mirror(library, name):
    kernel = kernel_of(name)
    if kernel is None:
        return
    base, _, overload = name.partition(".")
    operator = getattr(getattr(_torch.ops.aten, base), overload or "default")
    in_place = base.endswith("_") or overload.endswith("out")
    only_writes = name in _ONLY_WRITES
    floats = name in _FLOATS
    takes_tensor = which_are_tensors(operator)

    def run(keys, *arguments, **keywords):
        if in_place:
            # What an operator writes in place, it may read too.
            known = _before(arguments, keywords, only_writes, floats)
        result = kernel.call_boxed(keys, *boxed(arguments, takes_tensor), **keywords)
        if not in_place:
            known = _known(arguments, keywords, False) if is_small(result, floats) else None
        if known is not None:
            _told(operator, known, result)
        elif floats and not in_place:
            # It fills its result before a kernel counts into it.
            forget(result, True)
        return result

    library.impl(name, run, "CUDA", with_keyset=True, allow_override=True)


def _before(arguments, keywords, only_writes, floats):
    """What goes into an operator that writes in place. If it is not known, what is written over is not either."""
    written = keywords.get("out", arguments[0] if arguments else None)
    if not isinstance(written, _torch.Tensor) or not written.is_cuda:
        return None
    known = None
    if "out" in keywords or is_small(written) or (floats and is_small(arguments[1])):
        known = _known(arguments, keywords, only_writes)
    if known is None:
        # Before the operator: what it copies from the host is known again.
        forget(written)
    return known


def which_are_tensors(operator):
    """Of each argument, whether the operator wants a tensor."""
    return [str(argument.type) == "Tensor" for argument in operator._schema.arguments]


def is_small(result, floats=False):
    """Whether there are integers among the results (or numbers at all), and not too many."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    return any(
        isinstance(tensor, _torch.Tensor)
        and (floats or not tensor.dtype.is_floating_point)
        and 0 < tensor.numel() <= _LARGEST
        for tensor in results
    )


def boxed(arguments, takes_tensor):
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
        first = [_blank(value) if only_writes else on_cpu(value) for value in arguments[:1]]
        rest = [on_cpu(value) for value in arguments[1:]]
        named = {name: _blank(value) if name == "out" else on_cpu(value) for name, value in keywords.items()}
        return [*first, *rest], named
    except LookupError:
        return None


def _blank(tensor):
    """Room on the CPU for what is only written."""
    return _torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def on_cpu(value):
    """A value on the CPU, as the runtime knows it; a `LookupError` if it does not."""
    if isinstance(value, (tuple, list)):
        return [on_cpu(part) for part in value]
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
    if span and not _peek(tensor, flat, span * tensor.element_size()):
        raise LookupError
    return flat.as_strided(tensor.shape, tensor.stride())


def told(operator, arguments, keywords, result):
    """Tells the runtime what an operator gave, if what went in is known; says whether."""
    known = _known(arguments, keywords, False)
    return known is not None and _told(operator, known, result)


def _told(operator, known, result):
    """Runs the operator on the CPU, and tells the runtime what came out."""
    arguments, keywords = known
    try:
        with _torch._C._AutoDispatchBelowAutograd():
            values = operator(*arguments, **keywords)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        forget(result)
        return False
    several = isinstance(result, (tuple, list))
    for tensor, value in zip(result, values) if several else [(result, values)]:
        write(tensor, value)
    return True


def forget(result, floats=False):
    """A kernel wrote integers (or numbers at all) that nobody worked out: what was known of them is over."""
    for tensor in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(tensor, _torch.Tensor) and tensor.is_cuda and tensor.numel() and (floats or not tensor.dtype.is_floating_point):
            size = _span(tensor) * tensor.element_size()
            runtime().rematic_forget(ctypes.c_size_t(tensor.data_ptr()), ctypes.c_size_t(size))


def write(tensor, value):
    """Tells the runtime what a tensor holds."""
    span = _span(tensor)
    if not tensor.is_cuda or tensor.dtype != value.dtype or tensor.shape != value.shape or span == 0:
        return
    size = span * tensor.element_size()
    flat = _torch.empty(span, dtype=tensor.dtype, device="cpu")
    if span != tensor.numel() and not _peek(tensor, flat, size):
        # What lies between its elements is not known, and pieces of single elements would be too many.
        forget(tensor, True)
        return
    flat.as_strided(tensor.shape, tensor.stride()).copy_(value)
    runtime().rematic_poke(ctypes.c_size_t(tensor.data_ptr()), ctypes.c_void_p(flat.data_ptr()), ctypes.c_size_t(size))


def _peek(tensor, flat, size):
    """Reads what is known from a tensor's first element on; says whether all is."""
    start, room = ctypes.c_size_t(tensor.data_ptr()), ctypes.c_void_p(flat.data_ptr())
    return runtime().rematic_peek(start, room, ctypes.c_size_t(size))


def _compare(library):
    """`torch.equal`, by which checks decide whether something was computed again as before."""

    def run(one, other):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        try:
            return _torch.equal(on_cpu(one), on_cpu(other))
        except LookupError:
            assumptions.assume("tensors that are compared as a whole (torch.equal) are equal")
            return True

    library.impl("equal", run, "CUDA", allow_override=True)
