"""Arguments that are not tensors, guessed from layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from .geometry import convolutions, pools
from .inputs import DTYPES, Layout, product


class Context:
    """What is known about a call: its tensors by argument, and its results."""

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, Any],
        positions: Mapping[int, tuple[str, int]],
        outputs: list[Layout],
        causal: bool,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.packet = name.split("::")[-1]
        self.tensors = tensors
        self.outputs = outputs
        self.causal = causal
        self.values = values or {}
        self._positions = positions

    def with_values(self, values: Mapping[str, Any]) -> Context:
        """The same with the other arguments."""
        return Context(self.name, self.tensors, self._positions, self.outputs, self.causal, values)

    def shape(self, *names: str) -> list[int]:
        """The shape of the first of these arguments that is there; without names, of the first tensor."""
        for name in names or self.tensors:
            found = self.tensors.get(name)
            if isinstance(found, list) and found:
                found = found[0]
            if found:
                return found[1]
        return []

    def dtype(self) -> str | None:
        """The type of the first tensor."""
        for found in self.tensors.values():
            if isinstance(found, list):
                found = found[0] if found else None
            if found:
                return found[0]
        return None

    def output(self, position: int = 0) -> list[int]:
        """The shape of a result."""
        return self.outputs[position][1] if position < len(self.outputs) else []

    def bound(self, position: int) -> int:
        """What the values of an input must stay below, if they are integers: indices must be valid, 0 always is."""
        argument, place = self._positions[position]
        if argument == "indices" and self.packet == "embedding":
            return self.shape("weight")[0]
        if argument == "indices" and self.packet.startswith("embedding"):
            return self.output()[0]
        if argument == "indices" and "pool" in self.packet:
            return product(self.shape("self")[-2:])
        if argument == "indices":
            listed = self.tensors["indices"]
            # A list has `None` for dimensions that are not indexed, so a place is a dimension.
            return self.shape("self", "input")[place] if isinstance(listed, list) and listed[place] else 1
        if argument == "target" and self.packet.startswith("nll_loss"):
            shape = self.shape("self")
            return shape[1] if len(shape) > 1 else shape[0]
        if argument == "index" and "dim" in self.values and self.shape("self"):
            extents = [self.shape("self")[self.values["dim"]]]
            if self.packet.startswith(("scatter", "index_add", "index_copy")) and self.output():
                extents.append(self.output()[self.values["dim"]])
            return min(extents)
        return 1


def guesses(arguments: list[Any], context: Context) -> Iterator[dict[str, Any]]:
    """Values for all arguments, the most likely ones first."""
    whole = TOGETHER.get(context.packet.removesuffix("_"))
    for known in whole(context) if whole else [{}]:
        free = [argument for argument in arguments if argument.name not in known]
        lists = [_values(argument, context) for argument in free]
        for values in itertools.product(*lists):
            guess = dict(zip((argument.name for argument in free), values, strict=True))
            yield {**guess, **{name: value for name, value in known.items() if any(name == a.name for a in arguments)}}


def _values(argument: Any, context: Context) -> list[Any]:
    rule = BY_NAME.get(argument.name)
    found = list(rule(context)) if rule else []
    if argument.has_default_value() and argument.default_value not in found:
        found.insert(0, argument.default_value)
    return found or list(_by_type(argument, context))


def _by_type(argument: Any, context: Context) -> Iterable[Any]:
    kind = str(argument.type)
    if kind.startswith("Optional"):
        return [None]
    if kind == "List[number]" or kind == "List[float]":
        lists = [value for value in context.tensors.values() if isinstance(value, list)]
        return [[1.0] * (len(lists[0]) if lists else 1)]
    if kind.startswith("List[bool]"):
        return _masks(context)
    if kind.startswith("List"):
        return [context.output()]
    if kind == "bool":
        return [False, True]
    if kind == "int":
        return [1, 0]
    # 1 leaves what it multiplies as it is, however often an operator runs in place.
    return [1 if context.dtype() and not DTYPES[context.dtype() or "f32"].is_floating_point else 1.0]


def _dimensions(context: Context) -> list[int]:
    rank = max(len(context.shape()), len(context.output()))
    return list(range(rank - 1, -1, -1))


def _reduced(context: Context) -> list[Any]:
    """One dimension, or lists of those that a reduction takes."""
    ours, theirs = context.shape(), context.output()
    if len(ours) == len(theirs):
        changed = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
        first = [changed] if changed else []
    else:
        first = []
    count = len(ours) - len(theirs)
    removed = [list(some) for some in itertools.combinations(range(len(ours)), count)] if count > 0 else []
    ones = [list(some) for size in range(1, len(ours) + 1) for some in itertools.combinations(range(len(ours)), size)]
    return first + removed + ones


def _suffixes(context: Context) -> list[list[int]]:
    weight = context.tensors.get("weight")
    shape = context.shape("input", "self")
    return ([weight[1]] if weight else []) + [shape[at:] for at in range(len(shape) - 1, -1, -1)]


def _masks(context: Context) -> list[list[bool]]:
    """Which results are wanted."""
    length = 4 if "attention" in context.packet else 2 if "embedding" in context.packet else 3
    wanted = len(context.outputs)
    return sorted(map(list, itertools.product([True, False], repeat=length)), key=lambda mask: sum(mask) != wanted)


def _type(context: Context) -> list[torch.dtype]:
    return [DTYPES[context.outputs[0][0]]] if context.outputs else []


def _spatial(context: Context) -> list[list[int]]:
    backward = context.packet.endswith("_backward")
    return [(context.shape("grad_output") if backward else context.output())[2:]]


def _repeats(context: Context) -> list[list[int]]:
    ours, theirs = context.shape(), context.output()
    padded = [1] * (len(theirs) - len(ours)) + ours
    return [[b // max(a, 1) for a, b in zip(padded, theirs, strict=True)]]


def _padding(context: Context) -> list[list[int]]:
    added = [b - a for a, b in zip(context.shape(), context.output(), strict=False)]
    return [[side for extent in reversed(added) for side in (0, extent)]]


def _either(*values: Any) -> Callable[[Context], list[Any]]:
    return lambda _: list(values)


BY_NAME: dict[str, Callable[[Context], Iterable[Any]]] = {
    "dim": lambda context: [*_dimensions(context), *_reduced(context)],
    "dims": _reduced,
    "keepdim": _either(False, True),
    "normalized_shape": _suffixes,
    "dtype": _type,
    "input_dtype": _type,
    "half_to_float": lambda context: [len(context.outputs) == 1 and context.dtype() != context.outputs[0][0]],
    "memory_format": _either(None, torch.contiguous_format, torch.channels_last),
    "size": lambda context: [context.output()],
    "input_size": lambda context: [context.output()],
    "input_sizes": lambda context: [context.output()],
    "output_size": _spatial,
    "repeats": _repeats,
    "pad": _padding,
    "bins": lambda context: context.output()[:1],
    "k": lambda context: sorted(set(context.output()), reverse=True),
    "num_weights": lambda context: context.output()[:1],
    "padding_idx": _either(-1),
    "ignore_index": _either(-100),
    # Mean, none, sum.
    "reduction": _either(1, 0, 2),
    "correction": _either(1),
    "training": _either(True),
    "train": _either(True),
    "eps": _either(1e-5),
    "epsilon": _either(1e-5),
    "momentum": _either(0.1),
    "p": _either(0.5),
    "dropout_p": _either(0.0),
    "is_causal": lambda context: [context.causal and not (context.tensors.get("attn_mask") or context.tensors.get("attn_bias"))],
    "compute_log_sumexp": _either(True),
    "compute_logsumexp": _either(True),
    "max_q": lambda context: context.shape("query")[2:3],
    "max_k": lambda context: context.shape("key")[2:3],
    "index": _either(0),
    "accumulate": _either(False),
    "scale_grad_by_freq": _either(False),
    "sparse": _either(False),
    "align_corners": _either(False),
    "exponent": _either(2),
    "lower_scale_factor": _either(1.0),
}


def _convolution(context: Context) -> Iterator[dict[str, Any]]:
    result = context.shape("grad_output") if "grad_output" in context.tensors else context.output()
    return convolutions(context.shape("input"), context.shape("weight"), result)


def _convolution_backward(context: Context) -> Iterator[dict[str, Any]]:
    # The bias has one element for each channel of the result.
    sizes = [context.shape("grad_output")[1]]
    for known in _convolution(context):
        yield {**known, "bias_sizes": sizes}


def _pool(context: Context) -> Iterator[dict[str, Any]]:
    result = context.shape("grad_output") if "grad_output" in context.tensors else context.output()
    return pools(context.shape("self"), result)


def _group_norm(context: Context) -> Iterator[dict[str, Any]]:
    shape = context.shape("input")
    groups = (context.shape("mean") if "mean" in context.tensors else context.output(1))[-1:]
    if len(shape) > 1 and groups:
        yield {"N": shape[0], "C": shape[1], "HxW": product(shape[2:]), "group": groups[0]}


def _range(context: Context) -> Iterator[dict[str, Any]]:
    if context.output():
        yield {"start": 0, "end": context.output()[0], "step": 1}


def _slice_backward(context: Context) -> Iterator[dict[str, Any]]:
    for at, (a, b) in enumerate(zip(context.shape(), context.output(), strict=False)):
        if a != b:
            yield {"dim": at, "start": 0, "end": a, "step": 1}
    yield {"dim": 0, "start": 0, "end": context.shape()[0], "step": 1}


def _select_backward(context: Context) -> Iterator[dict[str, Any]]:
    whole = context.output()
    for at in range(len(whole)):
        if whole[:at] + whole[at + 1 :] == context.shape():
            yield {"dim": at, "index": 0}


def _index_add(context: Context) -> Iterator[dict[str, Any]]:
    ours, theirs, rows = context.shape("self"), context.shape("source"), product(context.shape("index"))
    for at in range(len(ours)):
        if theirs == [*ours[:at], rows, *ours[at + 1 :]]:
            yield {"dim": at}


# Arguments that hang together, by operator.
TOGETHER: dict[str, Callable[[Context], Iterator[dict[str, Any]]]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _pool,
    "max_pool2d_with_indices_backward": _pool,
    "avg_pool2d": _pool,
    "avg_pool2d_backward": _pool,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm,
    "arange": _range,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
    "index_add": _index_add,
    "index_copy": _index_add,
}
