"""What is said of types: by the package of itself, and by its stubs of the compiled part."""

import os
import pathlib
import subprocess
import sys

import pytest

import rematic

pytest.importorskip("mypy")
# What the package's types are made of.
pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]


def run(*words: str, **environment: str) -> None:
    given = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_keeps_to_its_types() -> None:
    run("mypy")


def test_the_stubs_describe_the_compiled_part(tmp_path: pathlib.Path) -> None:
    allowed, config = tmp_path / "allowed", tmp_path / "mypy.ini"
    allowed.write_text("rematic._core.__all__  # PyO3 makes it; nobody imports all\n")
    # The package around it names torch, which takes most of a minute to read.
    config.write_text("[mypy]\nfollow_imports = skip\n")
    given = ("--allowlist", str(allowed), "--mypy-config-file", str(config))
    run("mypy.stubtest", "rematic._core", *given, MYPYPATH=str(pathlib.Path(rematic.__file__).parents[1]))
