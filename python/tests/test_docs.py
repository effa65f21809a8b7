"""What the documentation shows of Python can be run, and says what is shown. `tests/docs` runs the other commands."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests"))
from pages import PAGES, ROOT, WITH_TORCH, as_shown, blocks, followed

DIVIDER = "\x1f"
# Its program is run by the test `trace_format` of the crate `rematic`.
ELSEWHERE = "docs/trace-format.md"
WITH_PYTHON = [page for page in PAGES if page != ELSEWHERE and any(kind == "python" for kind, _ in blocks(page))]
COMMANDS = [
    (page, block)
    for page in PAGES
    for kind, block in blocks(page)
    if kind == "sh" and block.startswith(WITH_TORCH)
]


def run(command: list[str], place: pathlib.Path) -> str:
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pages_have_programs() -> None:
    assert {"README.md", "docs/start.md", "docs/pytorch.md", "docs/report.md"} <= set(WITH_PYTHON)
    shown = [output for page in WITH_PYTHON for kind, _, output in followed(page) if kind == "python" and output]
    assert len(shown) >= 5


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python(page: str, tmp_path: pathlib.Path) -> None:
    """A page's blocks are one program; a block of text right after one of Python is what it prints."""
    programs = [(text, shown) for kind, text, shown in followed(page) if kind == "python"]
    script = tmp_path / "page.py"
    script.write_text(f"\nprint({DIVIDER!r})\n".join(text for text, _ in programs))
    outputs = run([sys.executable, str(script)], tmp_path).split(DIVIDER)
    for (_, shown), output in zip(programs, outputs, strict=True):
        assert shown is None or as_shown(shown).fullmatch(output.strip()), output


@pytest.mark.parametrize(("page", "block"), COMMANDS)
def test_commands(page: str, block: str) -> None:
    """Examples, all of which train."""
    for command in block.splitlines():
        assert "step 0: loss" in run(["bash", "-euc", command], ROOT), page


def test_commands_are_there() -> None:
    assert len(COMMANDS) >= 2


def test_what_is_shown_may_be_wrong() -> None:
    assert as_shown("a\n…\nb 1 …").fullmatch("a\nx\ny\nb 1 2")
    assert not as_shown("a\n…\nb 1 …").fullmatch("a\nx\ny\nb 2 2")
    assert not as_shown("peak 1.5").fullmatch("peak 155")
