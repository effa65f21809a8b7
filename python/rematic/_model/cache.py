"""The cache of keys and values that Hugging Face's models make for generation, and make in training too unless told not to.

It is filled while the model runs, so that a layer that is recomputed finds it full and does other things than before. As
PyTorch's own checkpointing in those models does, training under a plan goes without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn


def caching_configs(model: nn.Module) -> list[Any]:
    """The configs in a model that switch a cache on, each once."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:
            found[id(config)] = config
    return list(found.values())


def makes_cache(model: nn.Module, configs: list[Any]) -> bool:
    """Whether a model makes a cache, as far as can be told: encoders have the switch too, and no use for it."""
    modules: Iterable[Any] = model.modules()
    generating = {id(module.config) for module in modules if hasattr(module, "can_generate") and module.can_generate()}
    return any(
        id(config) in generating
        or getattr(config, "is_decoder", True)
        or getattr(config, "is_encoder_decoder", False)
        for config in configs
    )


@contextlib.contextmanager
def without_cache(configs: Iterable[Any]) -> Iterator[None]:
    """Switches the caches off for a while."""
    switched = [config for config in configs if config.use_cache is True]
    for config in switched:
        config.use_cache = False
    try:
        yield
    finally:
        for config in switched:
            config.use_cache = True
