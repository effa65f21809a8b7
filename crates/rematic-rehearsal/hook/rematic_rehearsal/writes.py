"""Integers that kernels write over: what was known of them is over.

A tensor of zeros that a kernel counts into would else read as zeros that are known.
"""

from rematic_rehearsal import values

# What changes where a tensor lies, not what is there, or takes what cannot be handed on.
_OTHERS = ("set_", "resize_", "resize_as_", "record_stream")


def watch(torch, library, followed):
    """Every operator of CUDA that writes one tensor in place, but those whose values are followed."""
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        if namespace != "aten" or name in followed or base in _OTHERS or not base.endswith("_"):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CUDA"):
            _forget(torch, library, name, getattr(getattr(torch.ops.aten, base), overload or "default"))


def _forget(torch, library, name, operator):
    first = operator._schema.arguments[:1]
    written = [argument for argument in first if argument.alias_info and argument.alias_info.is_write]
    # Lists are what optimizers go through: no integers.
    if not written or str(written[0].type) != "Tensor":
        return
    kernel = torch.library.get_kernel(f"aten::{name}", "CUDA")
    takes_tensor = values.which_are_tensors(operator)

    def run(keys, *arguments, **keywords):
        result = kernel.call_boxed(keys, *values.boxed(arguments, takes_tensor), **keywords)
        values.forget(arguments[0])
        return result

    library.impl(name, run, "CUDA", with_keyset=True, allow_override=True)
