"""What fits of a module of one's own, without the memory of its inputs."""

from __future__ import annotations

import collections
import json
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import rematic
from rematic._capture.sketch import sketched

WIDTH = 32


class Masked(nn.Module):
    """Looks at its mask, as models of language do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return hidden if mask is None or bool(mask.all()) else hidden * mask.unsqueeze(-1)


class Counted(Masked):
    """Looks at its tokens."""

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(ids, mask)[:, : int(ids.max()) + 1]


def largest_batch(fit: Any, kind: str = "as_it_is") -> tuple[int, int]:
    """It, and the next one, which does not fit."""
    (answer,) = [answer for answer in json.loads(fit.to_json())["answers"] if answer["question"] == "largest-batch"]
    return answer[kind]["value"], answer[kind]["neighbour"]


def test_inputs_take_no_memory() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
    made: list[Tensor] = []

    def inputs(batch: int) -> Tensor:
        made.append(torch.zeros(batch, 128, 256))
        return made[-1]

    fit = rematic.fit(model, inputs, device="t4", gpus=1)
    assert len(made) > 3 and all(tensor.is_meta for tensor in made)
    for kind, planned in (("as_it_is", False), ("with_a_plan", True)):
        fits, next_one = largest_batch(fit, kind)
        assert next_one == fits + 1
        for batch, expected in ((fits, True), (next_one, False)):
            trace = rematic.capture(model, torch.zeros(batch, 128, 256, device="meta"), device="t4")
            assert does_fit(trace, planned) == expected, (kind, batch)


def does_fit(trace: rematic.Trace, planned: bool) -> bool:
    if not planned:
        return bool(trace.stats(device="t4")["fits"])
    try:
        rematic.plan(trace, device="t4")
    except rematic.Infeasible:
        return False
    return True


def ones(batch: int) -> dict[str, Tensor]:
    return {"ids": torch.zeros(batch, 16, dtype=torch.long), "mask": torch.ones(batch, 16, dtype=torch.bool)}


def padded(batch: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, 16, dtype=torch.bool, device="cuda")
    mask[:, -2:] = False
    return {"ids": torch.arange(16).repeat(batch, 1).cuda(), "mask": mask}


def mixed(batch: int) -> dict[str, Tensor]:
    ids = torch.from_numpy(numpy.zeros((batch, 16), dtype=numpy.int64))
    mask = torch.tensor([[True] * 16]).pin_memory().repeat(batch, 1).to("cuda:0", non_blocking=True)
    return {"ids": ids, "mask": mask}


def read(batch: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(numpy.zeros((batch, 16), dtype=numpy.int64)), torch.from_numpy(numpy.ones((batch, 16), dtype=bool))


@pytest.mark.parametrize("inputs", [ones, mixed, read])
def test_a_sketch_is_captured_as_what_it_stands_for(inputs: Any) -> None:
    given = sketched(lambda: inputs(3))
    args, kwargs = (given, {}) if isinstance(given, tuple) else ((), given)
    expected = {"ids": torch.zeros(3, 16, dtype=torch.long), "mask": torch.ones(3, 16, dtype=torch.bool)}
    wanted = ((expected["ids"], expected["mask"]), {}) if args else ((), expected)
    assert rematic.capture(Masked(), *args, **kwargs).to_bytes() == rematic.capture(Masked(), *wanted[0], **wanted[1]).to_bytes()


def test_what_a_tokenizer_returns_is_keywords() -> None:
    fit = rematic.fit(Masked(), lambda batch: collections.UserDict(ones(batch)), device="t4", gpus=1)
    assert largest_batch(fit)[0] > 1000


def test_values_of_a_sketch_decide() -> None:
    names = {op.name for op in rematic.capture(Masked(), **sketched(lambda: padded(3))).ops if op.phase == "forward"}
    assert "mul.Tensor" in names
    names = {op.name for op in rematic.capture(Masked(), **sketched(lambda: ones(3))).ops if op.phase == "forward"}
    assert "mul.Tensor" not in names


def test_what_needs_values_has_them() -> None:
    kinds: list[bool] = []

    def drawn(batch: int) -> Tensor:
        ids = torch.randint(0, 8, (batch, 16))
        kinds.append(ids.is_meta)
        return ids

    fit = rematic.fit(Counted(), drawn, device="t4", gpus=1)
    assert largest_batch(fit)[0] > 1000
    assert kinds[0] and not any(kinds[1:])


def test_mistakes_are_those_of_real_inputs() -> None:
    with pytest.raises(rematic.RematicError, match="Masked is a module; give also inputs="):
        rematic.fit(Masked(), device="t4")
    with pytest.raises(KeyError, match="tokens"):
        rematic.fit(Masked(), lambda batch: {}["tokens"], device="t4")
    with pytest.raises(rematic.CaptureError, match="unexpected keyword argument 'tokens'"):
        rematic.fit(Masked(), lambda batch: {"tokens": torch.zeros(batch, 16, dtype=torch.long)}, device="t4")
    with pytest.raises(rematic.RematicError, match="layers is for models and modules"):
        rematic.fit(rematic.capture(Masked(), torch.zeros(1, 16, dtype=torch.long)), layers=2)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"gpus": 0}, "gpus is 0; it must be at least 1"),
        ({"tp": -1}, "tp is -1; it must be at least 1"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"batch": 3}, "batch is for models that are given by name or config; the trace has its sizes already, so drop it"),
        ({"seq": 8}, "seq is for models that are given by name or config; the trace has its sizes already, so drop it"),
        ({"device": "h1000"}, "did you mean"),
    ],
)
def test_sizes_are_checked(said: dict[str, Any], words: str) -> None:
    with pytest.raises(rematic.RematicError) as raised:
        rematic.fit(rematic.Trace.model("gpt2", layers=1, seq=16), **said)
    assert words in str(raised.value)


def test_inputs_have_their_length() -> None:
    with pytest.raises(rematic.RematicError, match="the inputs say how long they are already"):
        rematic.fit(Masked(), lambda batch: torch.zeros(batch, 16, dtype=torch.long), seq=16)
