"""Where the tests find the package, the command line and their own modules."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

# Some virtual machines announce AMX, which oneDNN takes for bf16, and end a process that uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import rematic

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def command() -> str:
    """The `rematic` command: the one that REMATIC names, or the release build, or the one on the path."""
    built = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/rematic"
    found = os.environ.get("REMATIC") or (str(built) if built.exists() else shutil.which("rematic"))
    if not found:
        pytest.fail("there is no `rematic` command: run `cargo build --release`, or name one with REMATIC=path")
    return found


@pytest.fixture
def stats(command: str, tmp_path: pathlib.Path) -> Callable[..., dict[str, Any]]:
    """What `rematic stats` says about a trace document; the document is checked on the way."""

    def run(document: bytes, *options: str) -> dict[str, Any]:
        path = tmp_path / "captured.rmt"
        path.write_bytes(document)
        done = subprocess.run([command, "stats", str(path), "--json", *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def native(command: str, tmp_path: pathlib.Path) -> Callable[..., dict[str, Any]]:
    """The trace of a model that Rematic knows by itself."""

    def run(source: str, *options: str) -> dict[str, Any]:
        path = tmp_path / "native.rmt"
        subprocess.run([command, "trace", source, "-o", str(path), *options], check=True, capture_output=True)
        return json.loads(path.read_text())

    return run


SMALL = {"layers": 4, "batch": 2, "seq": 128, "dim": 64, "heads": 4, "vocab": 512}


@pytest.fixture(scope="session")
def small():
    """A small seed-transformer."""
    return rematic.Trace.model("seed-transformer", **SMALL)


@pytest.fixture(scope="session")
def seed():
    """The step of torch's own test."""
    return rematic.Trace.model("seed-transformer")
