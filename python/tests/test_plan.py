"""Plans, curves, replays, and what is said where there is none."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import pytest

import rematic


@pytest.fixture(scope="module")
def plan(seed):
    return rematic.plan(seed, "1.6GiB", device="h100")


def test_a_plan_keeps_its_promise(seed, plan):
    assert plan.outcome == "planned"
    assert plan.budget == int(1.6 * 2**30)
    assert plan.peak <= plan.budget < plan.baseline_peak == seed.peak()
    assert 0 < plan.lower_bound_ms <= plan.recompute_ms < plan.step_ms
    assert (plan.source, plan.device, plan.world_size) == ("seed-transformer", "h100", 1)
    replayed = rematic.replay(seed, plan)
    assert (replayed.peak, replayed.baseline_peak) == (plan.peak, plan.baseline_peak)
    assert replayed.recompute_ms == plan.recompute_ms
    assert replayed.plan == plan
    assert sum(replayed.categories.values()) == plan.peak
    assert replayed.recompute_flops > 0
    # What else would help is said of a plan that was asked for.
    assert str(replayed) == re.sub(r"Cheaper than this plan:.*?(?=\nStep)\n", "", str(plan), flags=re.DOTALL)


def test_regions_say_what_applying_needs(seed, plan):
    names = [op.name for op in seed.ops if op.phase == "forward"]
    paths = {module.path for module in seed.modules}
    recomputed = rematic.replay(seed, plan).recomputed
    for region in plan.regions:
        assert region.module in paths and region.call == 0
        assert 0 < region.discard <= 1 and region.freed > 0 and region.recompute_ms > 0
        ops = [name for name, _ in region.policy]
        assert ops == [op.name for op in seed.ops if op.phase == "forward" and f"{op.module}.".startswith(f"{region.module}.")]
        assert region.saved == [name for name, saved in region.policy if saved]
        assert set(ops) <= set(names)
    assert 0 < len(recomputed) <= sum(len(region.policy) - len(region.saved) for region in plan.regions)


def test_files_and_texts_hold_the_same(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = rematic.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert (tmp_path / "plan.json").read_text() == plan.to_json()
    assert rematic.Plan.from_json(plan.to_json()) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert json.loads(plan.to_json())["format"] == "rematic-plan"
    # The regions; what the memory looks like is only known with the step.
    table = str(plan)[str(plan).index(" checkpoint, each") :]
    assert str(loaded).endswith(table) and len(table.splitlines()) == 1 + len(plan.regions)


def run_command(*arguments):
    code = "import sys; from rematic._command import main; sys.exit(main())"
    # As wide as it is where nobody says how wide.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)


def test_what_a_plan_says(seed, plan, tmp_path):
    assert repr(plan).startswith("<rematic.Plan for seed-transformer: ")
    assert "peak 2.50 GiB -> 1.60 GiB of 1.60 GiB" in repr(plan)
    # Given the model's name, the command also traces it with other batches and losses.
    seed.save(tmp_path / "step.rmt.zst")
    said = run_command("plan", str(tmp_path / "step.rmt.zst"), "--budget", "1.6GiB", "--device", "h100")
    assert said.returncode == 0
    assert str(plan) == said.stdout.rstrip("\n")


def test_a_step_that_fits_needs_nothing(seed):
    plan = rematic.plan(seed)
    assert (plan.outcome, plan.regions, plan.recompute_ms) == ("fits", [], 0.0)
    assert plan.memory["fits"] and plan.budget == plan.memory["usable_bytes"] - plan.memory["context_bytes"]
    assert plan.peak == plan.baseline_peak == seed.peak()
    assert "fits as it is" in repr(plan) and "Fits as it is" in str(plan)
    assert rematic.Plan.from_json(plan.to_json()) == plan
    assert rematic.replay(seed, plan).recomputed == []


def test_without_a_budget_what_is_reserved_fits_the_device(seed):
    whole = rematic.plan(seed).memory
    usable = (whole["reserved_bytes"] + whole["context_bytes"]) * 3 // 4
    plan = rematic.plan(seed, usable=usable)
    assert plan.outcome == "planned" and plan.memory["fits"]
    assert plan.memory["allocated_bytes"] <= plan.memory["reserved_bytes"]
    assert plan.memory["reserved_bytes"] + plan.memory["context_bytes"] <= usable
    assert rematic.Plan.from_json(plan.to_json()).memory is None
    with pytest.raises(rematic.Infeasible, match="No plan was found that fits NVIDIA H100 SXM5 80GB"):
        rematic.plan(seed, usable="1GiB")


def test_settings_of_the_allocator(seed, monkeypatch):
    expandable = "expandable_segments:True"
    plain, given = rematic.plan(seed).memory, rematic.plan(seed, alloc_conf=expandable).memory
    assert plain["reserved_bytes"] != given["reserved_bytes"]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", expandable)
    assert rematic.plan(seed).memory == given
    assert rematic.plan(seed, alloc_conf="").memory == plain
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandible:True")
    with pytest.raises(rematic.RematicError, match="PYTORCH_CUDA_ALLOC_CONF: There is no allocator setting 'expandible'"):
        rematic.plan(seed)
    with pytest.raises(rematic.RematicError, match="alloc_conf: There is no allocator setting 'huge'"):
        rematic.plan(seed, alloc_conf="huge:1")
    with pytest.raises(rematic.RematicError, match="alloc_conf sets PyTorch's allocator for CUDA.*allocator=\"cuda\""):
        rematic.plan(seed, allocator="cpu", alloc_conf=expandable)


def test_budgets_are_bytes_or_texts(small):
    half = small.peak() * 3 // 4
    assert rematic.plan(small, half) == rematic.plan(small, str(half))


def test_options_reach_the_planner(seed):
    budget = "2GiB"
    whole = rematic.plan(seed, budget, whole=True)
    assert all(region.saved == [] for region in whole.regions)
    only = rematic.plan(seed, budget, only=["layers.1", "layers.2"])
    assert {region.module for region in only.regions} <= {"Transformer.layers.1", "Transformer.layers.2"}
    never = rematic.plan(seed, budget, never="*feed_forward*")
    assert not any("feed_forward" in region.module for region in never.regions)
    exact = rematic.plan(seed, budget)
    greedy = rematic.plan(seed, budget, planner="greedy")
    assert exact.recompute_ms <= greedy.recompute_ms
    assert rematic.plan(seed, budget, world_size=4).baseline_peak < exact.baseline_peak
    assert rematic.plan(seed, budget, device="a100-80").step_ms != exact.step_ms
    assert rematic.plan(seed, budget, cost="torch").step_ms != exact.step_ms


def test_a_budget_that_cannot_be_met(small):
    with pytest.raises(rematic.Infeasible) as caught:
        rematic.plan(small, "100KiB")
    error = caught.value
    assert isinstance(error, rematic.PlanError) and isinstance(error, ValueError)
    assert error.budget == 100 * 2**10
    told = re.search(r"Raise budget to at least (\S+), shard with fsdp", str(error))
    assert told is not None and rematic.plan(small, told[1]).outcome == "planned"
    assert "--" not in str(error)
    assert rematic.plan(small, error.least_budget).peak == error.least_budget


TORCH = {"cost": "torch", "device": "a100-80", "planner": "milp"}


def milp_of_the_command(trace, tmp_path, budget, world_size=1):
    """What the command says about the same trace, and the plan that it writes."""
    trace.save(tmp_path / "step.rmt")
    options = ["--budget", budget, "--world-size", str(world_size), "-o", str(tmp_path / "plan.json")]
    options += [part for name, value in TORCH.items() for part in (f"--{name}", value)]
    said = run_command("plan", str(tmp_path / "step.rmt"), *options)
    return said, rematic.Plan.load(tmp_path / "plan.json") if (tmp_path / "plan.json").exists() else None


def test_the_planner_of_torch_plans_as_the_command_does(seed, tmp_path):
    plan = rematic.plan(seed, "1.6GiB", world_size=4, **TORCH)
    assert plan.outcome == "planned" and len(plan.regions) == 4 and plan.peak <= plan.budget
    said, written = milp_of_the_command(seed, tmp_path, "1.6GiB", world_size=4)
    assert said.returncode == 0 and written == plan
    assert str(plan) == said.stdout.rstrip("\n") and "by torch's model" in str(plan)
    assert rematic.replay(seed, plan, cost="torch").plan == plan
    only = rematic.plan(seed, "1.9GiB", world_size=4, only="layers.?", never="*.0", **TORCH)
    assert {region.module for region in only.regions} <= {f"Transformer.layers.{layer}" for layer in (1, 2, 3)}


@pytest.mark.parametrize(("budget", "outcome"), [("1.6GiB", "planned"), ("2.45GiB", "planned"), ("4GiB", "fits")])
def test_where_torch_promises_too_much_there_is_a_warning(seed, tmp_path, budget, outcome):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = rematic.plan(seed, budget, **TORCH)
    said, written = milp_of_the_command(seed, tmp_path, budget)
    assert said.returncode == 0 and written == plan
    # Options have other names there.
    assert str(plan) == said.stdout.rstrip("\n").replace("--planner exact", 'planner="exact"')
    assert plan.outcome == written.outcome == outcome
    above = plan.peak > plan.budget
    assert [("replayed it is" in str(warning.message), warning.filename) for warning in caught] == [(True, __file__)] * above
    assert ("above the budget" in str(plan)) == ("Does not fit" in str(written)) == above


def test_a_budget_that_torch_cannot_meet(seed, tmp_path):
    with pytest.raises(rematic.Infeasible) as caught:
        rematic.plan(seed, "0.8GiB", world_size=4, **TORCH)
    said, written = milp_of_the_command(seed, tmp_path, "0.8GiB", world_size=4)
    assert said.returncode == 3 and written is None
    least = caught.value.least_budget
    told = re.search(r"to at least (\S+), shard", str(caught.value))
    assert told is not None and f"to at least {told[1]}, shard" in said.stdout
    with pytest.warns(rematic.RematicWarning, match="replayed it is"):
        assert rematic.plan(seed, told[1], world_size=4, **TORCH).budget >= least
    with pytest.warns(rematic.RematicWarning, match="replayed it is"):
        assert rematic.plan(seed, least, world_size=4, **TORCH).budget == least


def test_a_budget_that_the_device_does_not_have(small):
    with pytest.warns(rematic.RematicWarning) as caught:
        plan = rematic.plan(small, "100GiB", device="a100-80")
    assert plan.outcome == "fits"
    assert [str(warning.message) for warning in caught] == [
        "the budget of 100.00 GiB is larger than the memory of NVIDIA A100 SXM4 80GB, 79.25 GiB"
    ]
    assert caught[0].filename == __file__


def refused(error, parts, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert type(caught.value) is error
    for part in parts:
        assert part in str(caught.value)


def test_what_cannot_be_planned_is_refused(small):
    plan = rematic.plan
    refused(rematic.PlanError, ["the budget is 0 B"], plan, small, 0)
    refused(rematic.RematicError, ["`lots` is not a size", "38GiB"], plan, small, "lots")
    refused(rematic.RematicError, ["`-5` is not a size"], plan, small, -5)
    refused(TypeError, ["a size is a number of bytes", "float"], plan, small, 1.5)
    refused(rematic.RematicError, ["no device `a100`", "a100-80"], plan, small, "1GiB", device="a100")
    refused(rematic.RematicError, ["planner is `magic`; give exact, greedy or milp"], plan, small, "1GiB", planner="magic")
    refused(rematic.PlanError, ["chooses a share", "drop whole"], plan, small, "1GiB", planner="milp", whole=True)
    refused(rematic.PlanError, ['gap is for planner="milp"', "is exact"], plan, small, "1GiB", gap=0.1)
    refused(rematic.PlanError, ["gap is 1; give"], plan, small, "1GiB", planner="milp", gap=1)
    refused(rematic.PlanError, ["time_limit is -1; give"], plan, small, "1GiB", planner="milp", time_limit=-1)
    refused(rematic.PlanError, [f"world_size is {2**40}"], plan, small, "1GiB", planner="milp", world_size=2**40)
    refused(rematic.RematicError, ["cost is `guess`; give physical, torch or measured"], plan, small, "1GiB", cost="guess")
    refused(rematic.RematicError, ["need a table", "give it as cost_table"], plan, small, "1GiB", cost="measured")
    refused(rematic.PlanError, ['only="nothing*" matches no module'], plan, small, "1GiB", only="nothing*")
    refused(rematic.PlanError, ["world_size is 0"], plan, small, "1GiB", world_size=0)


def test_plans_for_other_models_are_refused(small, seed, plan):
    other = rematic.Trace.model("gpt2", layers=2, batch=1, seq=32)
    refused(rematic.PlanError, ["for another step", "call 0 (from 0) of `Transformer."], rematic.replay, other, plan)
    no_dropout = rematic.Trace.model("seed-transformer", dropout=0.0)
    refused(rematic.PlanError, ["for another step", "operator"], rematic.replay, no_dropout, plan)


def test_plans_that_are_none_are_refused(tmp_path):
    refused(rematic.PlanError, ["the plan is not a plan", "line 1"], rematic.Plan.from_json, "hello")
    refused(rematic.PlanError, ["version 7", "reads 1 to 6"], rematic.Plan.from_json, '{"format":"rematic-plan","version":7}')
    refused(rematic.PlanError, ["cannot read", "none.json"], rematic.Plan.load, tmp_path / "none.json")


def test_curves_fall_with_the_budget(small):
    curve = rematic.curve(small, 8)
    assert len(curve) == 8 == len(curve.points) == len(list(curve))
    budgets = [point.budget for point in curve]
    assert budgets == sorted(budgets, reverse=True) and budgets[0] == small.peak()
    times = [point.recompute_ms for point in curve]
    assert times == sorted(times) and times[0] == 0
    assert all(point.peak <= point.budget and point.lower_bound_ms <= point.recompute_ms for point in curve)
    assert curve[-1] == curve.points[-1]
    with pytest.raises(IndexError):
        curve[8]
    assert json.loads(curve.to_json())["step_ms"] == curve.step_ms
    assert str(curve).startswith("seed-transformer · fp32 · Adam · ")
    refused(rematic.RematicError, ["points is 1; give a number from 2 to 10000"], rematic.curve, small, 1)


# Minutes of work, if nothing stops it; afterwards, how long the worker goes on, and whether it computes at all then.
LONG = """
import signal, sys, time, rematic
# A shell that starts a job in the background has it ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
trace = rematic.Trace.model("{model}", batch=4, seq=8192)
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(0.5)
    print(time.process_time() - before, flush=True)
    sys.exit(7)
"""


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("model", "call"),
    [
        ("llama-3-8b", "rematic.curve(trace, 10_000, world_size=64)"),
        ("llama-3-405b", "[rematic.plan(trace, size << 30, world_size=64) for size in range(300, 900)]"),
    ],
)
def test_ctrl_c_stops_a_long_solve(model, call):
    code = LONG.format(model=model, call=call)
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - start < 2
        assert float(process.stdout.readline()) < 0.1
        assert (process.wait(10), process.stderr.read()) == (7, "")
    finally:
        process.kill()


@pytest.mark.alone
def test_other_threads_run_while_it_computes():
    trace = rematic.Trace.model("llama-3-8b", batch=4, seq=8192)
    done = threading.Event()
    ticks = 0

    def solve():
        rematic.curve(trace, 10, world_size=64)
        done.set()

    thread = threading.Thread(target=solve)
    start = time.monotonic()
    thread.start()
    while not done.wait(0.005) and time.monotonic() - start < 60:
        ticks += 1
    thread.join(60)
    seconds = time.monotonic() - start
    assert done.is_set()
    # One tick per 5 ms if nothing holds the GIL; a fraction of it on a busy machine.
    assert ticks > seconds * 20


def test_a_plan_for_another_step_is_not_replayed() -> None:
    sizes: dict[str, Any] = {"layers": 2, "batch": 4, "seq": 64}
    trace = rematic.Trace.model("gpt2", **sizes)
    plan = rematic.plan(trace, trace.peak())
    assert rematic.replay(trace, plan).peak == plan.peak
    for change, said in (
        ({"batch": 2}, "batch is 4 in the plan, but 2 in this step"),
        ({"dtype": "bf16"}, "dtype is f32 in the plan, but bf16 in this step"),
        ({"layers": 3}, "without a plan that one peaks at"),
    ):
        with pytest.raises(rematic.PlanError, match=said):
            rematic.replay(rematic.Trace.model("gpt2", **sizes | change), plan)
    with pytest.raises(rematic.RematicError, match="the plan is for one of 1 devices, and the step is that of one of 4"):
        rematic.replay(trace.fsdp(4), plan, world_size=4)
