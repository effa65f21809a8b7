"""What the documentation shows can be run, and says what is shown."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "docs/pytorch.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIVIDER = "\x1f"


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page: kind and text."""
    return BLOCK.findall((ROOT / page).read_text())


def as_shown(shown: str) -> re.Pattern[str]:
    """Shown output as a pattern: `…` stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in shown.strip().split("…")), re.DOTALL)


def run(command: list[str], place: pathlib.Path) -> str:
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_python(page: str, tmp_path: pathlib.Path) -> None:
    """A page's blocks are one program; a block of text right after one of Python is what it prints."""
    found = blocks(page)
    programs = [text for kind, text in found if kind == "python"]
    assert len(programs) >= 2
    script = tmp_path / "page.py"
    script.write_text(f"\nprint({DIVIDER!r})\n".join(programs))
    outputs = run([sys.executable, str(script)], tmp_path).split(DIVIDER)
    assert len(outputs) == len(programs)
    at = compared = 0
    for (kind, _), (after, shown) in zip(found, [*found[1:], ("", "")], strict=True):
        if kind == "python":
            if after == "text":
                assert as_shown(shown).fullmatch(outputs[at].strip()), outputs[at]
                compared += 1
            at += 1
    assert compared


def commands(page: str) -> list[str]:
    return [line for kind, text in blocks(page) if kind == "sh" for line in text.splitlines() if line]


@pytest.mark.parametrize("command", commands("docs/pytorch.md"))
def test_commands(command: str) -> None:
    """The README's are run by `tests/readme`."""
    assert "step 0: loss" in run(["bash", "-euc", command], ROOT)


def test_what_is_shown_may_be_wrong() -> None:
    assert as_shown("a\n…\nb 1 …").fullmatch("a\nx\ny\nb 1 2")
    assert not as_shown("a\n…\nb 1 …").fullmatch("a\nx\ny\nb 2 2")
    assert not as_shown("peak 1.5").fullmatch("peak 155")
