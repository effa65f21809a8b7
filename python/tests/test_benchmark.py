"""Operators, run and measured."""

import json
import subprocess
import sys
import warnings

import pytest

import rematic

torch = pytest.importorskip("torch")

import models  # noqa: E402
from rematic._benchmark.geometry import convolutions, pools  # noqa: E402
from rematic._benchmark.inputs import elements, make, on_meta, same_layout, storage_bytes  # noqa: E402
from rematic._benchmark.progress import Progress  # noqa: E402
from rematic._benchmark.rebuild import NotRebuilt, operator, rebuild  # noqa: E402
from rematic._benchmark.timing import measure  # noqa: E402
from rematic._capture.step import document as capture  # noqa: E402
from rematic._core import modelled_shares  # noqa: E402

# Times do not matter here, only that there are some.
QUICK = {"repeats": 1, "seconds": 1e-3}
CPU = torch.device("cpu")


def captured(name, device):
    model, args, kwargs = models.MODELS[name]("cpu")
    return rematic.Trace.from_bytes(capture(model, *args, device=device, **kwargs))


def measured(trace, **options):
    """A table, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", rematic.RematicWarning)
        table = rematic.benchmark(trace, "cpu", **QUICK, **options)
    return table, [str(warning.message) for warning in caught if warning.category is rematic.RematicWarning]


@pytest.fixture(scope="module")
def step():
    pytest.importorskip("transformers")
    return captured("gpt2", "cpu")


@pytest.mark.parametrize("name", ["seed-transformer", "gpt2", "llama-bf16", "mixtral", "unet"])
def test_operators_of_the_cpu_are_measured_or_named(name):
    if name not in ("seed-transformer", "unet"):
        pytest.importorskip("transformers")
    trace = captured(name, "cpu")
    table, warned = measured(trace)
    signatures, shares = rematic.signatures(trace), modelled_shares(trace)
    rows = {(row["op"], json.dumps([row["inputs"], row["outputs"]])) for row in json.loads(table.to_json())["ops"]}
    is_measured = [
        (signature.op, json.dumps([[list(layout) for layout in signature.inputs], [list(layout) for layout in signature.outputs]]))
        in rows
        for signature in signatures
    ]
    assert sum(share for share, found in zip(shares, is_measured, strict=True) if found) >= 0.95
    for signature, share, found in zip(signatures, shares, is_measured, strict=True):
        assert found or share == 0 or any(f"  {signature.op} (" in text for text in warned), signature
    assert len(table) == sum(is_measured)
    assert bool(warned) == (len(table) < len(signatures))


@pytest.mark.parametrize("name", ["seed-transformer", "gpt2", "llama-bf16", "mistral-bf16", "bert", "vit", "unet"])
def test_calls_for_the_gpu_return_what_the_trace_says(name):
    """Without a GPU, on the meta device: attention, fused norms and lists of tensors among them."""
    if name not in ("seed-transformer", "unet"):
        pytest.importorskip("transformers")
    seen = set()
    for signature in rematic.signatures(captured(name, "cuda")):
        seen.add(signature.op)
        if signature.op == "_local_scalar_dense.default":
            continue
        call = rebuild(operator(signature.op), signature.inputs, signature.outputs, False)
        with torch.no_grad():
            results = call.run([on_meta(layout) for layout in signature.inputs], torch.device("meta"))
        tensors = [result for result in torch.utils._pytree.tree_leaves(results) if isinstance(result, torch.Tensor)]
        if len(tensors) == len(signature.outputs):
            pairs = zip(tensors, signature.outputs, strict=True)
            assert all(same_layout(tensor, layout) for tensor, layout in pairs), signature
        else:
            call.check(results, signature.outputs)
    if name == "llama-bf16":
        assert {"_scaled_dot_product_flash_attention.default", "_scaled_dot_product_flash_attention_backward.default"} <= seen
    assert any(op.startswith("_foreach_") for op in seen)


def layout(*shape, dtype="f32"):
    strides = [1] * len(shape)
    for at in range(len(shape) - 2, -1, -1):
        strides[at] = strides[at + 1] * max(shape[at + 1], 1)
    return dtype, list(shape), strides


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [
        ("sum.dim_IntList", [layout(4, 5, 6)], [layout(5)]),
        ("mean.dim", [layout(4, 5, 6)], [layout(4, 1, 6)]),
        ("var_mean.correction", [layout(4, 5)], [layout(4, 1), layout(4, 1)]),
        ("cat.default", [layout(2, 3), layout(2, 5)], [layout(2, 8)]),
        ("_softmax.default", [layout(4, 6, dtype="bf16")], [layout(4, 6, dtype="bf16")]),
        ("_to_copy.default", [layout(4, 6)], [layout(4, 6, dtype="bf16")]),
        ("mul.Tensor", [layout(4)], [layout(4)]),
        ("gather.default", [layout(4, 9), layout(4, 3, dtype="i64")], [layout(4, 3)]),
        ("index.Tensor", [layout(4, 9), layout(7, dtype="i64")], [layout(7, 9)]),
        ("index.Tensor", [layout(4, 9), layout(7, dtype="i64")], [layout(4, 7)]),
        ("index_add_.default", [layout(9, 4), layout(5, dtype="i64"), layout(5, 4)], [layout(9, 4)]),
        ("topk.default", [layout(4, 9)], [layout(4, 2), layout(4, 2, dtype="i64")]),
        ("constant_pad_nd.default", [layout(4, 9)], [layout(4, 12)]),
        ("repeat.default", [layout(4, 9)], [layout(8, 9)]),
        ("slice_backward.default", [layout(4, 3)], [layout(4, 9)]),
        ("native_group_norm.default", [layout(2, 8, 4, 4), layout(8), layout(8)], [layout(2, 8, 4, 4), layout(2, 4), layout(2, 4)]),
        ("upsample_nearest2d.default", [layout(2, 8, 4, 4)], [layout(2, 8, 8, 8)]),
        ("convolution.default", [layout(2, 8, 9, 9), layout(8, 1, 3, 3), layout(8)], [layout(2, 8, 5, 5)]),
        ("arange.default", [], [layout(7, dtype="i64")]),
        ("_foreach_add_.List", [layout(3), layout(4), layout(3), layout(4)], []),
        ("_fused_adam_.default", [layout(3), layout(4)] * 4 + [layout(), layout()], []),
        ("nll_loss_forward.default", [layout(4, 9), layout(4, dtype="i64")], [layout(), layout()]),
        ("embedding_dense_backward.default", [layout(4, 9), layout(4, dtype="i64")], [layout(50, 9)]),
        ("native_dropout.default", [layout(4, 9)], [layout(4, 9), layout(4, 9, dtype="bool")]),
        ("convolution_backward.default", [layout(2, 8, 9, 9), layout(2, 3, 9, 9), layout(8, 3, 3, 3)], [layout(8, 3, 3, 3), layout(8)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_arguments_are_found_and_the_operator_runs(op, inputs, outputs):
    with torch.no_grad():
        call = rebuild(operator(op), inputs, outputs, False)
        tensors = [make(one, CPU, bound=call.bound(at), positive=False) for at, one in enumerate(inputs)]
        call.check(call.run(tensors, CPU), outputs)


def test_results_of_other_shapes_are_refused():
    inputs = [layout(4, 5), layout(5, 6)]
    with pytest.raises(NotRebuilt, match="cannot be told"), torch.no_grad():
        call = rebuild(operator("mm.default"), inputs, [layout(7, 7)], False)
        call.check(call.run([make(one, CPU, bound=1, positive=False) for one in inputs], CPU), [layout(7, 7)])
    with pytest.raises(NotRebuilt, match="other tensors"):
        rebuild(operator("mm.default"), inputs[:1], [layout(4, 6)], False)
    with pytest.raises(NotRebuilt, match="no such operator"):
        operator("no_such_thing.default")


def test_windows_lead_from_sizes_to_sizes():
    def first(*arguments):
        found = next(convolutions(*arguments))
        return found["stride"], found["padding"], found["dilation"], found["transposed"], found["groups"]

    assert first([1, 3, 32, 32], [8, 3, 3, 3], [1, 8, 32, 32]) == ([1, 1], [1, 1], [1, 1], False, 1)
    assert first([1, 3, 224, 224], [64, 3, 7, 7], [1, 64, 112, 112]) == ([2, 2], [3, 3], [1, 1], False, 1)
    assert first([1, 3, 224, 224], [64, 3, 16, 16], [1, 64, 14, 14]) == ([16, 16], [0, 0], [1, 1], False, 1)
    assert first([1, 8, 30], [8, 1, 3], [1, 8, 28]) == ([1], [0], [1], False, 8)
    assert first([1, 32, 8, 8], [32, 16, 2, 2], [1, 16, 16, 16]) == ([2, 2], [0, 0], [1, 1], True, 1)
    assert list(convolutions([1, 3, 8, 8], [8, 3, 3, 3], [1, 8, 100, 100])) == []
    pool = next(pools([1, 8, 32, 32], [1, 8, 16, 16]))
    assert (pool["kernel_size"], pool["stride"], pool["padding"]) == ([2, 2], [2, 2], [0, 0])


def test_inputs_have_their_layouts():
    transposed = ("bf16", [4, 5], [1, 4])
    tensor = make(transposed, CPU, bound=1, positive=True)
    assert same_layout(tensor, transposed) and not same_layout(tensor.contiguous(), transposed)
    assert 0.09 < tensor.min() and tensor.max() <= 1
    assert (elements(("f32", [4, 5], [0, 1])), storage_bytes(("f64", [2, 0], [1, 1]))) == (5, 0)
    indices = make(layout(1000, dtype="i32"), CPU, bound=7, positive=False)
    assert (indices.min(), indices.max(), indices.dtype) == (0, 6, torch.int32)
    assert set(make(layout(100, dtype="bool"), CPU, bound=1, positive=False).tolist()) == {True, False}


def test_the_median_counts():
    # What the clock says: one call, then series of one call each.
    said = iter([1.0, 0.5, 9.0, 0.7])
    calls = []

    def clock(run, count):
        calls.append(count)
        return next(said)

    assert measure(lambda: None, clock, repeats=3, seconds=100.0) == pytest.approx(700.0)
    assert calls == [1, 1, 1, 1]
    # A short call is repeated until a series is long enough; after the time is up, what there is counts.
    said = iter([1e-5, 5e-4])
    calls.clear()
    assert measure(lambda: None, clock, repeats=3, seconds=1e-4) == pytest.approx(0.01)
    assert calls == [1, 50]


def test_plans_and_the_command_line_use_the_table(step, command, tmp_path):
    table, _ = measured(step)
    path, trace = tmp_path / "table.json", tmp_path / "step.rmt"
    table.save(path)
    step.save(trace)
    assert rematic.CostTable.load(path) == table
    assert table.device.startswith("CPU, ")
    budget = step.peak() * 9 // 10
    plan = rematic.plan(step, budget, cost="measured", cost_table=table)
    assert plan.outcome == "planned" and plan.recompute_ms > 0
    assert plan.step_ms == pytest.approx(step.stats(cost="measured", cost_table=table)["measured"]["of_ms"])
    assert plan == rematic.plan(step, budget, cost="measured", cost_table=path)
    options = ["--budget", str(budget), "--cost", "measured", "--cost-table", str(path), "--json"]
    said = subprocess.run([command, "plan", str(trace), *options], capture_output=True, text=True, check=True)
    answer = json.loads(said.stdout)
    assert (answer["recompute_ms"], answer["step_ms"]) == (plan.recompute_ms, plan.step_ms)
    assert answer["measured"]["device"] == table.device


def test_what_does_not_run_here_is_named():
    pytest.importorskip("transformers")
    trace = captured("vit", "cuda")
    with pytest.warns(rematic.RematicWarning) as caught:
        table = rematic.benchmark(trace, "cpu", **QUICK)
    text = str(caught[0].message)
    assert caught[0].filename == __file__
    assert "2 of 41 operators were not measured" in text and "which covers them in plans" in text
    assert "_scaled_dot_product_efficient_attention.default (" in text and "has no kernel for cpu" in text
    assert len(table) == len(rematic.signatures(trace)) - 2


def test_memory_is_bounded(monkeypatch, step):
    from rematic._benchmark import run

    monkeypatch.setattr(run, "_free_memory", lambda: 100_000)
    table, warned = measured(step)
    assert 0 < len(table) < len(rematic.signatures(step))
    assert "and 100000 are free" in warned[0]
    monkeypatch.setattr(run, "_free_memory", lambda: 0)
    with pytest.raises(rematic.RematicError, match="none of the step's"), pytest.warns(rematic.RematicWarning):
        rematic.benchmark(step, "cpu", **QUICK)


def test_random_numbers_of_the_caller_stay_the_same(step):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    measured(step)
    assert torch.equal(torch.rand(3), expected)
    assert torch.is_grad_enabled()


def test_questions_that_cannot_be_answered(step):
    for options, part in [
        ({"device": "tpu"}, "there is no device `tpu`; give cuda, cpu, or one of those"),
        ({"device": "meta"}, "there is no device `meta`; give cuda, cpu, or one of those"),
        ({"device": "cpu", "repeats": 0}, "repeats is 0"),
        ({"device": "cpu", "seconds": 0}, "seconds 0"),
    ]:
        with pytest.raises(rematic.RematicError, match=part):
            rematic.benchmark(step, **options)
    if not torch.cuda.is_available():
        with pytest.raises(rematic.RematicError, match="no CUDA device here"):
            rematic.benchmark(step, "cuda")


def test_the_bar_is_for_terminals(monkeypatch, capsys):
    with Progress(4, shown=True) as bar:
        bar.show(1, "mm.default")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress(4, shown=True) as bar:
        bar.show(2, "mm.default")
    said = capsys.readouterr().err
    assert "#" * 15 + "-" * 15 + " 2 of 4 operators, mm.default" in said and said.endswith("\r\x1b[K")
    with Progress(4, shown=False) as bar:
        bar.show(1, "mm.default")
    assert capsys.readouterr().err == ""


def test_importing_it_needs_no_torch():
    code = "import sys, rematic; rematic.benchmark; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
