"""A tenth of the zoo; `tests/zoo` goes through all of it."""

from __future__ import annotations

import pytest

pytest.importorskip("timm")
pytest.importorskip("diffusers")

from zoo.check import COLUMNS, Check
from zoo.run import ENTRIES, Row, chosen, outcome, summary, table

# Quick ones, of as many kinds as there are.
QUICK = [
    "diffusers/FluxTransformer2DModel",
    "diffusers/SD3Transformer2DModel",
    "timm/mixer",
    "timm/vit_tiny",
    "torchvision/shufflenet_v2",
    "torchvision/vision_transformer",
    "transformers/albert",
    "transformers/ast",
    "transformers/bart",
    "transformers/clip",
    "transformers/convnext",
    "transformers/gemma2",
    "transformers/patchtst",
]


@pytest.mark.parametrize("name", QUICK)
def test_promises_are_kept(name: str) -> None:
    found = dict(Check(ENTRIES[name]).verdicts())
    assert list(found) == list(COLUMNS)
    assert {column: verdict.note for column, verdict in found.items() if not verdict.passed} == {}


def test_there_are_enough_models_of_each_library() -> None:
    counts = {library: len(chosen([f"{library}/*"])) for library in ("transformers", "torchvision", "timm", "diffusers")}
    assert sum(counts.values()) >= 110
    assert counts["transformers"] >= 60 and min(counts["torchvision"], counts["timm"]) >= 20 and counts["diffusers"] >= 10


def test_exceptions_are_columns_with_reasons() -> None:
    for entry in ENTRIES.values():
        assert set(entry.exceptions) <= set(COLUMNS), entry.name
        assert all(entry.exceptions.values()), entry.name


def test_the_table_tells_what_is_not_as_expected() -> None:
    exceptions = {"cuda": "a reason", "real": "another"}
    cells = {column: outcome(exceptions, column, column not in ("cpu", "cuda"), "a note") for column in COLUMNS}
    assert [cell["outcome"] for cell in cells.values()] == ["fails", "known", "ok", "passes", "ok", "ok"]
    rows: list[Row] = [{"name": "a model", "columns": cells}]
    assert summary(rows) == {
        column: "0/1" if column in ("cpu", "cuda") else "1/1" for column in COLUMNS
    }  # fmt: skip
    text = table(rows)
    assert "a model, cpu, fails: a note" in text and "a model, cuda, known: a reason" in text
    assert "a model, real, passes: known as an exception (another), and passes: take it off the list" in text
