"""What fits: the largest batch, the longest sequence, the fewest GPUs, the smallest device."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rematic import _core
from rematic._core import Fit, RematicError, Trace
from rematic._device import CARDS

# What the command calls the fused implementations.
_FUSED = {name: f"{name}-fused" for name in ("adam", "adamw", "sgd", "sgd-momentum")}


def fit(
    source: Any,
    inputs: Callable[[int], Any] | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    gpus: int | None = None,
    tp: int | None = None,
    device: Any = None,
    device_file: str | os.PathLike[str] | None = None,
    alloc_conf: str | None = None,
    **options: Any,
) -> Fit:
    """Says what fits: the largest batch, the longest sequence, the fewest GPUs and the smallest device, and the fastest set-ups.

    `source` is a built-in model, a Hugging Face config (a path or a dict), a `Trace`, a function from a batch size to a
    `Trace`, or an `nn.Module` with `inputs`: a function from a batch size to what the module is called with (a tensor, a
    tuple of arguments, or a dict of keyword arguments), which is called for batches of any size, and whose tensors take no memory
    unless the step looks at numbers that are drawn at random. `batch`, `seq`, `gpus` and `device` fix what they name; the rest is
    free, GPUs up to 1024. Further options are those of `Trace.model` for models, and of `capture` for modules.
    """
    for name, count in (("batch", batch), ("seq", seq), ("gpus", gpus), ("tp", tp)):
        if count is not None and count < 1:
            raise RematicError(f"{name} is {count}; it must be at least 1")
    make, varies, mixed = _steps(source, inputs, tp, options)
    for name, given, is_free in (("batch", batch, varies[0]), ("seq", seq, varies[1])):
        if given is not None and not is_free:
            whose = "the trace has its sizes" if isinstance(source, Trace) else "the inputs say how long they are"
            raise RematicError(f"{name} is for models that are given by name or config; {whose} already, so drop it")
    return _core.fit(
        make,
        varies,
        batch=batch,
        seq=seq,
        gpus=gpus,
        tp=tp,
        mixed=mixed,
        device=device,
        device_file=device_file,
        alloc_conf=alloc_conf,
    )


_Steps = tuple[Callable[..., Trace], tuple[bool, bool, bool, bool], bool]


def _steps(source: Any, inputs: Callable[[int], Any] | None, tp: int | None, options: dict[str, Any]) -> _Steps:
    """The function that makes steps, what it looks at, and whether shards are fp32."""
    if inputs is None and isinstance(source, (str, os.PathLike, dict)):
        return _of_model(source, tp, options)
    if inputs is None and isinstance(source, Trace):
        _refuse(options)
        return lambda *_: source, (False, False, False, False), False
    if inputs is not None:
        return _of_module(source, inputs, options)
    if callable(source) and not hasattr(source, "parameters"):
        _refuse(options)
        return _one_at_a_time(lambda batch, _: source(batch)), (True, False, False, False), False
    if hasattr(source, "parameters"):
        raise RematicError(
            f"{type(source).__name__} is a module; give also inputs=, a function from a batch size to what it is called with, "
            "like lambda batch: torch.zeros(batch, 1024, dtype=torch.long)"
        )
    raise RematicError(
        f"{type(source).__name__} is nothing that can be traced; give a model's name, a config, a Trace, a function from a batch "
        "size to a Trace, or a module and inputs="
    )


def _of_model(source: Any, tp: int | None, options: dict[str, Any]) -> _Steps:
    name = str(options.get("optimizer") or "").lower()
    own = name or Trace.model(source, **options).facts.get("optimizer", "")

    def make(batch: int | None, seq: int | None, shared: int, ranks: int, fused: bool, card: str | None) -> Trace:
        given = {**options, "device": CARDS.get(card or "")}
        if fused:
            given["optimizer"] = _FUSED[own]
        return Trace.model(source, batch=batch, seq=seq, tp=shared if shared > 1 else None, **given)

    return make, (True, True, tp is None, own in _FUSED), False


def _of_module(model: Any, inputs: Callable[[int], Any], options: dict[str, Any]) -> _Steps:
    from rematic._capture.sketch import sketched
    from rematic._capture.step import capture

    # Whether inputs need no memory: until a sketch of them does not do.
    sketches = True

    def captured(given: Any, card: str | None) -> Trace:
        on = {"device": CARDS.get(card or "", "cuda"), **options}
        if isinstance(given, Mapping):
            return capture(model, **given, **on)
        arguments = given if isinstance(given, tuple) else (given,)
        return capture(model, *arguments, **on)

    def make(batch: int, card: str | None) -> Trace:
        nonlocal sketches
        if sketches:
            # Whatever is wrong with real inputs too is said of those.
            with contextlib.suppress(Exception):
                return captured(sketched(lambda: inputs(batch)), card)
            sketches = False
        return captured(inputs(batch), card)

    return _one_at_a_time(make), (True, False, False, False), False


def _one_at_a_time(make: Callable[[int, str | None], Trace]) -> Callable[..., Trace]:
    """Makes each step once. Several are asked for at a time, and a capture that another one runs beside is not the same."""
    known: dict[tuple[int, str | None], Trace] = {}
    alone = threading.Lock()

    def made(batch: int | None, *rest: Any) -> Trace:
        asked = (batch or 1, rest[-1])
        with alone:
            if asked not in known:
                known[asked] = make(*asked)
            return known[asked]

    return made


def _refuse(options: dict[str, Any]) -> None:
    for option in options:
        raise RematicError(f"{option} is for models and modules; the trace has its sizes already, so drop it")
