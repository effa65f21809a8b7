"""The forwards of a step, in words."""

from __future__ import annotations

import urllib.parse

# A fact of the trace if a step calls the model several times, or parts of it by themselves: these forwards in order, which
# train or rest, with a part's path, and where the optimizer steps between them.
FORWARDS = "forwards"
TRAIN, REST, STEP = "train", "rest", "step"


def forward_word(trains: bool, path: str) -> str:
    """A forward in that fact: of the model, `train`; of a part, `train:encoder`."""
    kind = TRAIN if trains else REST
    return f"{kind}:{urllib.parse.quote(path, safe='.')}" if path else kind
