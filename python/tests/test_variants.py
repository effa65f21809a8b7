"""One plan for the variants of a step: which of them runs is found out while it runs."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rematic
from models import Layer
from plans import WIDTH, Runs, X, check_equal, edited, is_inside, results, whole


class Body(nn.Module):
    """Parts from itself after some operators, as its flags say."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, masked: bool) -> Tensor:
        x = nn.functional.dropout(self.first(x), 0.3)
        x = nn.functional.dropout(x.sin(), 0.3)
        if masked:
            x = x + x.tanh()
        return self.second(nn.functional.dropout(x, 0.3))


class Parting(nn.Module):
    """Two bodies and what comes after them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Body() for _ in range(2))
        self.after = Layer(WIDTH, dropout=0.2)

    def forward(self, x: Tensor, masked: bool = False, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, masked)
        return self.after(x if mask is None else x * mask)


def joined(plans: list[rematic.Plan]) -> rematic.Plan:
    """One plan of several, as plan files have them."""
    documents = [json.loads(plan.to_json()) for plan in plans]
    first = {**documents[0], "version": 2, "name": "variant 0", "variants": []}
    for at, document in enumerate(documents[1:], 1):
        fields = ("facts", "baseline_peak_bytes", "peak_bytes", "step_ms", "recompute_ms", "lower_bound_ms", "regions")
        first["variants"].append({"name": f"variant {at}", **{field: document[field] for field in fields}})
    return rematic.Plan.from_json(json.dumps(first))


def saving_some(plan: rematic.Plan, every: int, offset: int) -> rematic.Plan:
    """The same plan; some outputs of operators that change nothing in place are saved, whatever they are."""

    def edit(document: dict[str, Any]) -> None:
        for region in document["regions"]:
            for op in region["policy"]:
                in_place = op["op"].split(".")[0].endswith("_") or op["op"] == "empty_like.default"
                saved = (op["index"] + offset) % every == 0 and not in_place
                op["decision"] = "save" if saved else "recompute"

    return edited(plan, edit)


def without(plan: rematic.Plan, *modules: str) -> rematic.Plan:
    def edit(document: dict[str, Any]) -> None:
        document["regions"] = [region for region in document["regions"] if region["module"].partition(".")[2] not in modules]

    return edited(plan, edit)


MODES = [False, True]


@pytest.mark.parametrize(("every", "offsets"), [(1, (0, 0)), (2, (0, 1)), (3, (0, 1)), (3, (2, 1)), (100, (99, 98))])
def test_decisions_that_differ_before_variants_part(every: int, offsets: tuple[int, int]) -> None:
    model = Parting()
    expected = {masked: results(model, X, masked=masked, passes=2) for masked in MODES}
    plans = [
        saving_some(whole(model, X, masked), every, offset) for masked, offset in zip(MODES, offsets, strict=True)
    ]
    rematic.apply(model, joined(plans))
    for masked in (False, True, True, False):
        check_equal(results(model, X, masked=masked, passes=2), expected[masked])


def test_what_the_right_variant_does_not_save_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from rematic._apply import modes

    kept: list[modes.Kept] = []
    close = modes.Kept.close
    monkeypatch.setattr(modes.Kept, "close", lambda self: (kept.append(self), close(self))[1])
    model = Parting()
    plans = [saving_some(whole(model, X, masked), 3, masked) for masked in MODES]
    rematic.apply(model, joined(plans))
    for masked, plan in zip(MODES, plans, strict=True):
        kept.clear()
        model(X, masked)
        found = [sorted(one.policy.positions[at] for at in one.values) for one in kept]
        assert found == [[at for at, (_, saved) in enumerate(region.policy) if saved] for region in plan.regions]
        assert any(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((), ("layers.0",)),
        ((), ("layers.0", "layers.1")),
        (("layers.1",), ("layers.0",)),
        (("layers.0", "layers.1", "after"), ()),
    ],
)
def test_regions_that_only_some_variants_have(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    model = Parting()
    expected = {masked: results(model, X, masked=masked) for masked in MODES}
    plans = [saving_some(parts_of(model, masked), 3, masked) for masked in MODES]
    rematic.apply(model, joined([without(plans[0], *one), without(plans[1], *other)]))
    for masked in (False, True, True, False):
        check_equal(results(model, X, masked=masked), expected[masked])


def parts_of(model: nn.Module, masked: bool) -> rematic.Plan:
    """A plan with all of the model's three parts."""
    layers, after = whole(model, X, masked), json.loads(whole(model, X, masked, only="after").to_json())
    return edited(layers, lambda document: document["regions"].extend(after["regions"]))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Parting()

    def forward(self, x: Tensor, masked: bool = False) -> Tensor:
        return self.inner(x.cos(), masked)


def test_a_region_of_one_variant_inside_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Outer()
    expected = {masked: results(model, X, masked=masked) for masked in MODES}
    outer = whole(model, X, False, only="inner")
    inner = whole(model, X, True, only="inner.layers.*")
    assert is_inside(json.loads(inner.to_json())["regions"][0], json.loads(outer.to_json())["regions"][0])
    for plan in (joined([outer, inner]), joined([inner, outer])):
        rematic.apply(model, plan)
        for masked in MODES:
            check_equal(results(model, X, masked=masked), expected[masked])
        rematic.remove(model)
    # The second variant cannot be known when the outer region begins, so all of it runs again, this once.
    rematic.apply(model, joined([outer, inner]))
    runs = Runs(monkeypatch, Body)
    model(X, True).sum().backward()
    assert runs.count == 4


def test_the_inputs_tell_before_the_operators() -> None:
    """Variants with the same operators in their regions: each follows its own decisions."""
    model = Parting()
    mask = torch.ones(8, WIDTH)
    traces = {
        "plain": rematic.capture(model, X, device="cpu", optimizer=False),
        "masked": rematic.capture(model, X, mask=mask, device="cpu", optimizer=False),
        "one": rematic.capture(model, X[:1], device="cpu", optimizer=False),
    }
    assert traces["masked"].facts["inputs"] == "x=float32[8,16] mask=float32[8,16]"
    plan = rematic.plan(traces, "1GiB")
    assert [variant.name for variant in plan.variants] == ["plain", "masked", "one"]
    from rematic._apply.variants import Variants
    from rematic._model.signature import Signature

    variants = Variants(plan)
    for args, kwargs, expected in (
        ((X,), {}, [0]),
        ((X[:1],), {}, [2]),
        ((X[:5],), {}, [0]),
        ((X,), {"mask": mask}, [1]),
        ((), {"x": X, "mask": None}, [0]),
    ):
        variants.begin(0, Signature.of(model, args, kwargs))
        assert variants.possible == expected


def test_shapes_that_were_not_captured_follow_the_next_larger() -> None:
    model = Parting()
    sizes = (4, 8, 2)
    traces = [rematic.capture(model, torch.randn(size, WIDTH), device="cpu", optimizer=False) for size in sizes]
    from rematic._apply.variants import Variants
    from rematic._model.signature import Signature

    variants = Variants(rematic.plan(traces, "1GiB"))
    for size, expected in ((2, 2), (3, 0), (4, 0), (6, 1), (8, 1), (100, 1)):
        variants.begin(0, Signature.of(model, (torch.empty(size, WIDTH),), {}))
        assert variants.possible[0] == expected


class Opened(nn.Module):
    """What parts its variants runs outside of the module that is checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, masked: bool = False) -> Tensor:
        x = x.sin() if masked else x.cos()
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("late", [False, True])
def test_the_first_operators_tell(late: bool) -> None:
    model = Opened()
    traces = [rematic.capture(model, X, masked, device="cpu", optimizer=False) for masked in MODES]
    plan = rematic.plan(traces, "1GiB")
    assert [variant.opening[-1] for variant in plan.variants] == ["cos.default", "sin.default"]
    document = json.loads(plan.to_json())
    plans = [json.loads(saving_some(whole(model, X, masked), 2, masked).to_json()) for masked in MODES]
    for part, own in zip((document, document["variants"][0]), plans, strict=True):
        part["regions"] = own["regions"]
        # The switch itself would tell, too.
        part["facts"] = [fact for fact in part["facts"] if fact[0] != "inputs"]
    if late:
        document["opening"].clear()
        document["variants"][0]["opening"].clear()
    rematic.apply(model, rematic.Plan.from_json(json.dumps(document)))
    root = model.__dict__["forward"].root
    for masked in MODES:
        model(X, masked).sum().backward()
        # Without the first operators nothing tells: then the first is followed, which was captured with as large inputs.
        assert root.variants.possible == ([0, 1] if late else [int(masked)])
    assert torch._C._len_torch_dispatch_stack() == 0


def test_what_no_variant_has() -> None:
    model = Parting()
    plan = joined([whole(model, X, masked) for masked in MODES])
    rematic.apply(model, plan)

    class Tall(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp()

    model.layers[0].second = Tall()
    words = "It is none of the plan's variants, `variant 0`, `variant 1`. .*variants="
    with pytest.raises(rematic.Mismatch, match=words) as raised:
        model(X, mask=torch.ones(8, 1))
    assert "Unlike the captured inputs, `mask` is float32[8,1], and was not given" in str(raised.value)
    assert raised.value.found == "exp.default"
    # Nothing is left behind.
    model.layers[0].second = nn.Linear(WIDTH, WIDTH)
    model(X).sum().backward()


def test_a_mismatch_of_a_plan_without_variants_says_how_to_add_one() -> None:
    model = Parting()
    rematic.apply(model, whole(model, X))
    with pytest.raises(rematic.Mismatch, match=r"`masked` is True, and was not given. .*rematic.plan\(\[trace, other\]"):
        model(X, masked=True)


def test_calls_are_those_of_the_variant_that_runs() -> None:
    class Repeating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Layer(WIDTH)

        def forward(self, x: Tensor, twice: bool = False) -> Tensor:
            for _ in range(3 if twice else 1):
                x = self.block(x.sin() if twice else x)
            return x

    model = Repeating()
    expected = {twice: results(model, X, twice=twice) for twice in MODES}
    plan = joined([whole(model, X, twice, only="block") for twice in MODES])
    rematic.apply(model, plan)
    for twice in (True, False, True):
        check_equal(results(model, X, twice=twice), expected[twice])


def test_models_with_variants_are_copied_and_pickled() -> None:
    model = Parting()
    expected = results(model, X, masked=True)
    rematic.apply(model, joined([whole(model, X, masked) for masked in MODES]))
    model(X)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        check_equal(results(other, X, masked=True), expected)


def test_steps_of_several_forwards() -> None:
    """Each forward of an accumulated step is of its own variant, and the last step of an epoch is shorter."""
    model = Parting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step_of(masks: list[bool]) -> Any:
        def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            for masked in masks:
                model(X, masked).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    order = [[False, True, True], [True, False, False], [True], [False, False, True]]
    start = copy.deepcopy(model.state_dict())

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model.load_state_dict(start)
        for masks in order:
            step_of(masks)(model, optimizer)
        return [parameter.detach().clone() for parameter in model.parameters()]

    expected = train()
    traces = [rematic.capture_step(step_of([masked] * 3), model, optimizer, device="cpu") for masked in MODES]
    fewer = rematic.capture_step(step_of([True]), model, optimizer, device="cpu")
    rematic.apply(model, rematic.plan([*traces, fewer], int(0.9 * traces[0].peak())))
    check_equal(train(), expected)
    rematic.remove(model)
    rests = edited(rematic.plan(traces, "1GiB"), lambda document: document["variants"][0]["facts"].append(["forwards", "rest"]))
    with pytest.raises(rematic.PlanError, match="variant `variant 1` calls it `rest`"):
        rematic.apply(model, rests)


def test_plans_for_several_traces() -> None:
    model = Parting()
    traces = {name: rematic.capture(model, X[:size], device="cpu", optimizer=False) for name, size in (("large", 8), ("small", 4))}
    peaks = {name: trace.peak() for name, trace in traces.items()}
    with pytest.raises(rematic.Infeasible, match="Variant `large`: ") as infeasible:
        rematic.plan(traces, 1024)
    least = infeasible.value.least_budget
    plan = rematic.plan(traces, max(least, peaks["large"] - 512))
    assert [variant.name for variant in plan.variants] == ["large", "small"]
    assert plan.peak == max(variant.peak for variant in plan.variants) <= plan.budget
    assert plan.baseline_peak == peaks["large"] and plan.variants[1].baseline_peak == peaks["small"]
    assert "2 variants of Parting" in str(plan) and "Variant `large`" in str(plan) and "2 variants" in repr(plan)
    assert "large" in plan._repr_html_()
    copied = rematic.Plan.from_json(plan.to_json())
    assert copied == plan and json.loads(plan.to_json())["version"] == 2
    for name, variant in zip(traces, plan.variants, strict=True):
        replay = rematic.replay(traces[name], copied)
        assert (replay.peak, len(replay.plan.regions)) == (variant.peak, len(variant.regions))
    with pytest.raises(rematic.PlanError, match="several variants, `large`, `small`, and a Python file follows one"):
        plan.to_python()
    assert json.loads(rematic.plan([traces["large"]], "1GiB").to_json())["version"] == 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([], rematic.PlanError, "There is no trace to plan for"),
        ("step.rmt", TypeError, "plan takes a Trace, a list of them, or a dict from names to them, not str"),
        ([1], TypeError, "not int"),
        (3, TypeError, "not int"),
    ],
)
def test_what_is_no_trace(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rematic.plan(given, "1GiB")


def test_variants_of_two_models() -> None:
    small = dict(batch=1, seq=16, layers=1)
    traces = [rematic.Trace.model("gpt2", **small), rematic.Trace.model("seed-transformer", **small)]
    with pytest.raises(rematic.PlanError, match="steps of one model, but these are of gpt2 and seed-transformer"):
        rematic.plan(traces, "100GiB")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.update(version=1), "it has variants, which version 1 of the format has not"),
        (lambda plan: plan["variants"][0].update(name="variant 0"), "two of its variants are called `variant 0`"),
        (lambda plan: plan["variants"][0].update(step_ms=-1), r"variants\[0\].step_ms is -1, but must be a time"),
        (lambda plan: plan["variants"][0].pop("regions"), "missing field `regions`"),
        (lambda plan: plan["variants"][0].update(more=1), "unknown field `more`"),
        (lambda plan: plan["variants"][0]["regions"].append(plan["variants"][0]["regions"][0]), "call 0 of .* twice"),
        (lambda plan: plan.update(variants={}), "invalid type: map, expected a sequence"),
        (lambda plan: plan.update(version=7), "format version 7; this rematic reads 1 to 6"),
    ],
)
def test_damaged_variants(change: Any, words: str) -> None:
    model = Parting()
    document = json.loads(joined([whole(model, X, masked) for masked in MODES]).to_json())
    change(document)
    with pytest.raises(rematic.PlanError, match=words):
        rematic.Plan.from_json(json.dumps(document))


def test_a_step_that_is_no_variant_is_not_replayed() -> None:
    model = Parting()
    plan = joined([whole(model, X, masked) for masked in MODES])
    other = copy.deepcopy(model)
    other.layers[0].second = nn.Identity()
    trace = rematic.capture(other, X, device="cpu", optimizer=False)
    with pytest.raises(rematic.PlanError, match="this one is none of its variants, `variant 0`, `variant 1` .*operator"):
        rematic.replay(trace, plan)


def test_auto_takes_variants() -> None:
    model = Parting()
    expected = [results(model, X), results(model, X, masked=True), results(model, X[:1])]
    options: dict[str, Any] = {"device": "cpu", "optimizer": False, "variants": [{"masked": True}, X[:1], (X,)]}
    with pytest.raises(rematic.Infeasible) as infeasible:
        rematic.auto(model, X, budget=1, **options)
    plan = rematic.auto(model, X, budget=infeasible.value.least_budget, **options)
    # The last is the first again.
    assert [variant.name for variant in plan.variants] == ["as given", "masked True", "x float32[1,16]"]
    check_equal(results(model, X), expected[0])
    check_equal(results(model, X, masked=True), expected[1])
    check_equal(results(model, X[:1]), expected[2])
    rematic.remove(model)
    for variants, words in (({"masked": True}, "variants= takes a list, not dict"), ([3], "not int")):
        with pytest.raises(rematic.PlanError, match=words):
            rematic.auto(model, X, budget="1GiB", variants=variants)  # type: ignore[arg-type]


class Counting(nn.Module):
    """Has buffers that each run changes, and operators that the inputs choose."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 32))
        self.norm, self.b = nn.BatchNorm1d(32), nn.Linear(32, 8)

    def forward(self, x: Tensor, scaled: bool) -> Tensor:
        h = self.norm(self.a(x))
        return x + torch.tanh(self.b(torch.sigmoid(h * 2 if scaled else h)))


class CountingNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Counting() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        scaled = bool(x[0, 0] > 0)
        for block in self.blocks:
            x = block(x, scaled)
        return x


def test_buffers_change_once_in_a_module_that_only_another_variant_checkpoints() -> None:
    model, x = CountingNet(), torch.randn(512, 8)
    x[0, 0] = -1
    small = x[:64].clone()
    small[0, 0] = 1
    traces = [rematic.capture(model, one, device="cpu", loss=lambda y: y.square().mean()) for one in (x, small)]
    plan = rematic.plan(traces, int(0.8 * traces[0].peak()))
    assert [bool(variant.regions) for variant in plan.variants] == [True, False]
    plain = copy.deepcopy(model)
    rematic.apply(model, plan)
    for _ in range(2):
        for each in (plain, model):
            each(small).square().mean().backward()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
    assert all(torch.equal(*pair) for pair in zip(plain.buffers(), model.buffers(), strict=True))
