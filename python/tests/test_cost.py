"""Measured times."""

import json

import pytest

import rematic


@pytest.fixture
def table(small):
    return rematic.CostTable("bench", [(signature, 0.5) for signature in rematic.signatures(small)])


def test_signatures_count_the_kernels(small):
    signatures = rematic.signatures(small)
    kernels = [op for op in small.ops if not op.view]
    assert len(signatures) < sum(signature.count for signature in signatures) <= len(kernels)
    first = signatures[0]
    assert first.op == small.ops[0].name or first.count >= 1
    assert all(len(shape) == len(strides) for _, shape, strides in first.inputs + first.outputs)
    assert repr(first).startswith(f"<rematic.Signature {first.op}(")


def test_measured_times_are_used(small, table, tmp_path):
    stats = small.stats(cost="measured", cost_table=table)
    measured = stats["measured"]
    assert (measured["device"], measured["ops"]) == ("bench", measured["of_ops"])
    assert measured["ms"] == measured["of_ms"] == 0.5 * measured["ops"]
    table.save(tmp_path / "table.json")
    assert small.stats(cost="measured", cost_table=tmp_path / "table.json") == stats
    budget = small.peak() * 3 // 4
    plan = rematic.plan(small, budget, cost="measured", cost_table=table)
    assert plan.step_ms == measured["of_ms"]
    assert plan.recompute_ms % 0.5 == 0
    assert "measured on bench." in str(plan)
    assert rematic.replay(small, plan, cost="measured", cost_table=table).recompute_ms == plan.recompute_ms
    assert rematic.curve(small, 3, cost="measured", cost_table=table).step_ms == plan.step_ms


def test_what_was_not_measured_is_physical(small):
    signature = max(rematic.signatures(small), key=lambda signature: signature.count)
    some = rematic.CostTable("bench", [(signature, 0.0)])
    measured = small.stats(cost="measured", cost_table=some)["measured"]
    assert (measured["ops"], measured["ms"]) == (signature.count, 0.0)
    assert 0 < measured["of_ms"] < small.stats()["baseline"]["compute_ms"] * 10
    plan = rematic.plan(small, cost="measured", cost_table=some)
    assert "the rest by the physical rule" in str(plan)


def test_tables_are_files(table, tmp_path):
    table.save(tmp_path / "table.json")
    assert rematic.CostTable.load(tmp_path / "table.json") == table
    assert rematic.CostTable.from_json(table.to_json()) == table
    assert json.loads(table.to_json())["format"] == "rematic-costs"
    assert (table.device, len(table)) == ("bench", len(json.loads(table.to_json())["ops"]))
    assert repr(table) == f"<rematic.CostTable of bench: {len(table)} operators>"


def test_what_cannot_be_used_is_refused(small, table, tmp_path):
    signature = rematic.signatures(small)[0]
    for call, part in [
        (lambda: rematic.CostTable("d", [(signature, -1.0)]), "-1 ms"),
        (lambda: rematic.CostTable("d", [(signature, 1.0)] * 2), "the same as row 0"),
        (lambda: rematic.CostTable.from_json("[]"), "the table is not a cost table"),
        (lambda: rematic.CostTable.load(tmp_path / "none.json"), "cannot read the cost table"),
        (lambda: small.stats(cost_table=table), 'add cost="measured"'),
        (lambda: small.stats(cost="measured", cost_table=rematic.CostTable("d", [])), "none of the step's"),
    ]:
        with pytest.raises(rematic.RematicError) as caught:
            call()
        assert part in str(caught.value)
