"""Plans on models under torch.compile."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import rematic
from models import DECODER, MODELS, Build, Layer, causal
from plans import Stack, X, check_equal, results, saving, whole

SDPA_OFF = {"attn_implementation": "eager"}


def encoder(device: str) -> Build:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (X[None],), {}


FAMILIES: dict[str, Callable[[str], Build]] = {
    "encoder": encoder,
    **{name: MODELS[name] for name in ("seed-transformer", "bert", "unet")},
    "gpt2": causal("gpt2", vocab_size=512, n_positions=128, n_embd=64, n_layer=2, n_head=4, **SDPA_OFF),
    "llama": causal("llama", **DECODER, **SDPA_OFF),
}


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


class Graphs:
    """A compiler that runs what it is given, and counts the operators of the last backward."""

    def __init__(self) -> None:
        self.backward: Counter[str] = Counter()

    def compile(self, model: nn.Module) -> Any:
        torch._dynamo.reset()
        backend = aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
            bw_compiler=self._note,
            partition_fn=min_cut_rematerialization_partition,
        )
        return torch.compile(model, backend=backend)

    def _note(self, graph: Any, _: Any) -> Any:
        called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        self.backward = Counter(name.removeprefix("aten.") for name in called)
        return make_boxed_func(graph.forward)


def test_what_is_dropped_is_recomputed_in_the_backward_graph() -> None:
    model = Stack()
    plan = whole(model, X)
    graphs = Graphs()
    expected = results(graphs.compile(model), X)
    # Of a layer's two products backward needs the output of the first alone.
    for followed, products in ((None, 0), (plan, 3), (saving(plan, "addmm.default"), 0)):
        if followed is not None:
            rematic.apply(model, followed)
        check_equal(results(graphs.compile(model), X), expected)
        rematic.remove(model)
        assert graphs.backward["addmm.default"] == products
        assert graphs.backward["gelu.default"] == (0 if followed is None else 3)
        # Nothing is drawn again.
        assert not any("native_dropout.default" in name or "rng_state" in name for name in graphs.backward)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_models(name: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = FAMILIES[name]("cpu")
    args = tuple(torch.randn_like(value) if value.is_floating_point() else value for value in args)
    weights = copy.deepcopy(model.state_dict())

    def loss_of(output: Any) -> Tensor:
        return output.square().mean() if isinstance(output, Tensor) else output.loss

    trace = rematic.capture(model, *args, loss=loss_of, optimizer=False, device="cpu", **kwargs)
    # A compiler follows no runs.
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.plan(trace, 1, runs=False)
    plan = rematic.plan(trace, infeasible.value.least_budget, runs=False)
    graphs = Graphs()

    def train() -> list[Tensor]:
        """Loss, gradients and buffers of a step."""
        compiled = graphs.compile(model)
        torch.manual_seed(1)
        loss = loss_of(compiled(*args, **kwargs))
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        buffers = [buffer.clone() for buffer in model.buffers()]
        model.zero_grad()
        model.load_state_dict(weights)
        return [loss.detach(), *gradients, *buffers]

    expected, before = train(), graphs.backward.total()
    rematic.apply(model, plan)
    check_equal(train(), expected)
    assert plan.regions and graphs.backward.total() > before


def test_compiled_models_that_run_other_operators(compiled: Any) -> None:
    class Choosy(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.exp() if torch.compiler.is_compiling() else x.sin())

    model = nn.Sequential(Choosy(), Choosy())
    rematic.apply(model, whole(model, X, only="?"))
    with pytest.raises(Exception, match=r"in the plan operator 0 is `sin.default`, but in forward it runs `exp.default`"):
        compiled(model)(X)
