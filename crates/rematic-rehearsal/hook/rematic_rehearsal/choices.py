"""Choices that kernels make among a few: experts by `topk` or `argmax` of a router's scores.

The scores are not known. Had all tokens the same choice, or none, the experts' memory would be wrong; so every choice is
taken equally often, which is what routers are trained for. Integers that follow from the choice are worked out as ever.
"""

from rematic_rehearsal import assumptions, values

# A choice among more is one of words or positions, not of experts.
_MOST = 1024
_BALANCED = "choices are balanced, as experts should be: {} of scores that kernels compute takes each of {} equally often"
_torch = None


def watch(torch, library):
    """Called after PyTorch is imported."""
    global _torch
    _torch = torch
    _choose(library, "topk", lambda scores, k, dim=-1, *_rest: (dim, k), 1)
    _choose(library, "sort.stable", lambda scores, *, stable=None, dim=-1, **_rest: (dim, None), 1)
    _choose(library, "max.dim", lambda scores, dim, *_rest: (dim, 1), 1)
    _choose(library, "argmax", lambda scores, dim=None, *_rest: (dim, 1), None)


def _choose(library, name, asked, place):
    """Overrides an operator whose result, or the part of it at `place`, are indices."""
    kernel = values.kernel_of(name)
    if kernel is None:
        return
    base, _, overload = name.partition(".")
    operator = getattr(getattr(_torch.ops.aten, base), overload or "default")

    def run(keys, scores, *arguments, **keywords):
        result = kernel.call_boxed(keys, scores, *arguments, **keywords)
        indices = result if place is None else result[place]
        if not values.is_small(indices):
            return result
        if values.told(operator, (scores, *arguments), keywords, result):
            return result
        dim, count = asked(scores, *arguments, **keywords)
        # Scores lie in the last dimension; a maximum along another one is one of words or pixels.
        if dim in (-1, scores.dim() - 1) and scores.dim() and 1 < scores.shape[-1] <= _MOST:
            values.write(indices, _balanced(scores.shape, count).reshape(indices.shape))
            assumptions.assume(_BALANCED.format(base, scores.shape[-1]))
        return result

    library.impl(name, run, "CUDA", with_keyset=True, allow_override=True)


def _balanced(shape, count):
    """Indices of the last dimension, so many in each row, and other ones from row to row; all of them without a count."""
    among = shape[-1]
    rows = 1
    for size in shape[:-1]:
        rows *= size
    first = _torch.arange(rows, device="cpu").unsqueeze(1) * (count or 1)
    return (first + _torch.arange(count or among, device="cpu")) % among
