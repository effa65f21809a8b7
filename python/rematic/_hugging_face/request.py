"""What the command asks for: a config and how its model is trained."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

# A model is built for real, if without its memory: each layer takes a few milliseconds, and each operator of it too.
MOST_LAYERS = 1_000
# Larger numbers are no sizes; Python would try to count to them.
MOST = 1 << 40
# A config of a model has one of others, and that has lists.
DEEPEST = 16


class Refused(Exception):
    """The request cannot be done; the text says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A config, and the options of the command; those that are None are the model's own."""

    name: str
    config: dict[str, Any]
    optimizer: str
    attention: str
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    layers: int | None = None
    dropout: float | None = None
    autocast: str | None = None
    # Of which kind the card is.
    card: str = "data-center"

    @staticmethod
    def read(text: str) -> Request:
        """A request as the command writes it. The config in it may hold anything."""
        request = Request(**json.loads(text))
        _check(request.config, "the config", 0)
        return request


def _check(value: Any, name: str, depth: int) -> None:
    """Refuses numbers that no model has, before anything is built of them."""
    if depth > DEEPEST:
        raise Refused(f"{name} lies {depth} levels deep in the config; a config has at most {DEEPEST}")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check(inner, f"`{key}`", depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, name, depth + 1)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > MOST:
        raise Refused(f"{name} is {value}; no model has numbers over {MOST:,}")
    elif isinstance(value, int) and not isinstance(value, bool) and _counts_layers(name) and value > MOST_LAYERS:
        raise Refused(f"{name} is {value}; at most {MOST_LAYERS} layers are captured")


def _counts_layers(name: str) -> bool:
    words = name.strip("`").split("_")
    return any(word in ("layer", "layers", "depth", "depths", "blocks") for word in words) and "size" not in words
