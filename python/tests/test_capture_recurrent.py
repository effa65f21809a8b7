"""Recurrent layers, as the CPU and cuDNN run them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import rematic
from rematic._capture.cudnn import RESERVE
from rematic._capture.recurrent import onednn_workspace
from rematic._capture.step import document as capture
from stepping import check_model

# Activations make the peak, not parameters.
WIDTH, STEPS, BATCH = 32, 4, 48
X = torch.randn(STEPS, BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.arange(BATCH) % STEPS + 1


class Block(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = kind(WIDTH, WIDTH, **options)
        self.out = nn.Linear((options.get("proj_size") or WIDTH) * (1 + options.get("bidirectional", False)), WIDTH)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        if lengths is not None:
            y = pack_padded_sequence(y, lengths, enforce_sorted=False)
        y, _ = self.layer(y)
        if lengths is not None:
            y, _ = pad_packed_sequence(y)
        return x + torch.relu(self.out(y))


class Net(nn.Module):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(*args, **options) for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, lengths)
        return self.head(x)


DEEP = {"num_layers": 2, "bidirectional": True, "dropout": 0.2}
LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "deep lstm": (nn.LSTM, {**DEEP, "batch_first": True}),
    "lstm without biases": (nn.LSTM, {"bias": False}),
    "projected lstm": (nn.LSTM, {"proj_size": 16, "batch_first": True}),
    "gru": (nn.GRU, {}),
    "deep gru": (nn.GRU, {**DEEP, "batch_first": True}),
    "rnn": (nn.RNN, {}),
    "relu rnn": (nn.RNN, {"nonlinearity": "relu", "bias": False}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_run_as_on_the_cpu(name: str) -> None:
    kind, options = LAYERS[name]
    check_model(lambda: Net(kind, **options), X)


@pytest.mark.parametrize(("kind", "options"), [(nn.LSTM, {}), (nn.GRU, DEEP)])
def test_packed_sequences_run_as_on_the_cpu(kind: Any, options: dict[str, Any]) -> None:
    # MemTracker fails on packed sequences.
    check_model(lambda: Net(kind, **options), X, LENGTHS, tracked=False)


def test_a_packed_sequence_may_be_an_input() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(WIDTH, WIDTH)

        def forward(self, x: PackedSequence) -> Tensor:
            return self.layer(x)[0].data

    given = pack_padded_sequence(X, LENGTHS, enforce_sorted=False)
    for device in ("cpu", "cuda"):
        assert len(rematic.capture(Given(), given, device=device)) > 0


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 3, 17, 16), (7, 2, 300, 33), (3, 9, 64, 256), (20, 4, 256, 64)])
def test_the_workspace_of_onednn(shape: tuple[int, int, int, int]) -> None:
    steps, batch, width, hidden = shape
    weights = [torch.zeros(4 * hidden, size) for size in (width, hidden)] + [torch.zeros(4 * hidden)] * 2
    states = [torch.zeros(batch, hidden)] * 2
    made = torch.ops.aten.mkldnn_rnn_layer(
        torch.zeros(steps, batch, width), *weights, *states, False, [], 2, hidden, 1, True, False, False, True
    )
    assert made[3].numel() == onednn_workspace(steps, batch, width, hidden)


def test_what_onednn_keeps_in_other_types_is_not_known() -> None:
    model = nn.LSTM(WIDTH, WIDTH)

    def step(model: nn.Module, optimizer: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(X)[0].float().mean()
        loss.backward()
        optimizer.step()

    with pytest.raises(rematic.CaptureError, match="oneDNN's LSTM keeps in bfloat16 is not known; train it in float32"):
        rematic.capture_step(step, model, device="cpu")


@pytest.mark.parametrize("name", LAYERS)
def test_cudnn_runs_all_layers_at_once(name: str) -> None:
    kind, options = LAYERS[name]
    model = Net(kind, **options)
    document = json.loads(capture(model, X, optimizer=False))
    names = [document["names"][op["name"]] for op in document["ops"]]
    assert names.count("_cudnn_rnn.default") == names.count("_cudnn_rnn_backward.default") == 2
    assert RESERVE in document["origin"]["assumptions"]
    # Weights and gradients lie in one buffer each.
    layer = next(row for row in document["modules"] if row["class"] == kind.__name__)
    (row,) = {storage for _, storage, _ in layer["parameters"]}
    real = model.blocks[0].layer
    assert document["storages"][row][0] >= sum(4 * parameter.numel() for parameter in real.parameters())
    backward = next(op for op in document["ops"] if document["names"][op["name"]] == "_cudnn_rnn_backward.default")
    sizes = [document["storages"][storage][0] for storage in {storage for storage, _ in backward["outputs"]}]
    assert sizes.count(document["storages"][row][0]) == 1


def test_the_reserve_of_cudnn_is_as_assumed() -> None:
    document = json.loads(capture(nn.LSTM(WIDTH, WIDTH, 2), X, optimizer=False))
    (op,) = [op for op in document["ops"] if document["names"][op["name"]] == "_cudnn_rnn.default"]
    kept = [document["storages"][row][0] for row, layout in op["outputs"] if document["layouts"][layout][0] == "u8"]
    # Two layers of four gates and a cell's state, and one output between them.
    assert kept == [STEPS * BATCH * WIDTH * 4 * (2 * 5 + 1)]


def test_a_plan_for_cuda_may_have_recurrent_layers() -> None:
    trace = rematic.capture(Net(nn.LSTM), X, LENGTHS)
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1)
    assert rematic.plan(trace, infeasible.value.least_budget).regions
