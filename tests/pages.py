"""The documentation as the tests see it: blocks of code, and output as it is shown."""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that need Python with torch: `tests/python` runs them, and `tests/docs` the others.
WITH_TORCH = ("python ", "torchrun ")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page: kind and text."""
    return BLOCK.findall(text(page))


def followed(page: str) -> list[tuple[str, str, str | None]]:
    """The blocks of a page, each with the block of output that comes next, if one does."""
    found = blocks(page)
    pairs = zip(found, [*found[1:], ("", "")])
    return [(kind, block, shown if after == "text" else None) for (kind, block), (after, shown) in pairs]


def as_shown(shown: str) -> re.Pattern[str]:
    """Shown output as a pattern: `…` stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in shown.strip().split("…")), re.DOTALL)
