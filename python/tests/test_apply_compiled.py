"""Plans on models under torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer
from plans import Stack, X, check_equal, results, saving, whole

@pytest.fixture
def compiled() -> Any:
    torch._dynamo.reset()
    yield lambda model: torch.compile(model, backend="aot_eager")
    torch._dynamo.reset()


def test_compiled_models_follow_the_plan(compiled: Any) -> None:
    model = Stack()
    for layer in model.layers:
        layer.dropout.p = 0.0
    plan = whole(model, X)
    expected = results(compiled(model), X)
    torch._dynamo.reset()

    saved: list[int] = []

    def held(plan: rematic.Plan | None) -> int:
        """What autograd holds between forward and backward."""
        torch._dynamo.reset()
        if plan is not None:
            rematic.apply(model, plan)
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        wrapped = compiled(model)
        wrapped(X)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            wrapped(X)
        check_equal(results(wrapped, X), expected)
        if plan is not None:
            rematic.remove(model)
        return sum(sizes.values())

    saved = [held(None), held(saving(plan, "addmm.default")), held(plan)]
    assert saved[0] > saved[1] > saved[2], saved


def test_compiled_models_that_run_other_operators(compiled: Any) -> None:
    class Choosy(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.exp() if torch.compiler.is_compiling() else x.sin())

    model = nn.Sequential(Choosy(), Choosy())
    rematic.apply(model, whole(model, X, only="?"))
    with pytest.raises(Exception, match=r"in the plan operator 0 is `sin.default`, but in forward it runs `exp.default`"):
        compiled(model)(X)
