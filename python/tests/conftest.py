import pytest

import rematic

SMALL = {"layers": 4, "batch": 2, "seq": 128, "dim": 64, "heads": 4, "vocab": 512}


@pytest.fixture(scope="session")
def small():
    """A small seed-transformer."""
    return rematic.Trace.model("seed-transformer", **SMALL)


@pytest.fixture(scope="session")
def seed():
    """The step of torch's own test."""
    return rematic.Trace.model("seed-transformer")
