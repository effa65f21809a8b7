"""Traces: made, saved, looked at, refused."""

import json
import pickle
import subprocess
import sys

import pytest

import rematic


def test_the_step_of_torchs_test(seed):
    assert seed.peak() == 2_684_848_128
    assert seed.categories() == {
        "parameter": 141_674_496,
        "buffer": 0,
        "gradient": 0,
        "activation": 2_259_759_104,
        "temp": 0,
        "optimizer": 283_348_992,
        "other": 65_536,
    }
    timeline = seed.timeline()
    assert (len(timeline), max(timeline)) == (len(seed), seed.peak())
    assert seed.peak("cpu") <= seed.peak("cuda")


def test_files_and_bytes_hold_the_same(small, tmp_path):
    for name in ["step.rmt", "step.rmt.zst"]:
        small.save(tmp_path / name)
        assert rematic.Trace.load(tmp_path / name) == small
        assert rematic.Trace.load(str(tmp_path / name)) == small
        assert rematic.Trace.from_bytes((tmp_path / name).read_bytes()) == small
    assert small.to_bytes() == (tmp_path / "step.rmt").read_bytes()
    assert small.to_bytes(compress=True) == (tmp_path / "step.rmt.zst").read_bytes()
    assert rematic.Trace.from_bytes(bytearray(small.to_bytes())) == small
    assert pickle.loads(pickle.dumps(small)) == small


def test_what_a_trace_says_of_itself(small):
    assert small.name == "seed-transformer"
    assert small.facts["batch"] == "2"
    assert repr(small) == f"<rematic.Trace of seed-transformer: {len(small)} operators, {len(small.modules)} modules>"
    root = small.modules[0]
    assert (root.path, root.class_name, root.calls) == ("Transformer", "Transformer", 1)
    ops = small.ops
    assert [op.phase for op in ops] == sorted((op.phase for op in ops), key=["forward", "backward", "optimizer"].index)
    assert ops[0].name == "embedding.default" or "." in ops[0].name
    product = next(op for op in ops if op.name == "addmm.default")
    assert product.module.startswith("Transformer.layers.0.")
    storage, (dtype, shape, strides) = product.outputs[0]
    assert (dtype, len(shape)) == ("f32", len(strides))
    assert storage >= 0 and not product.view and not product.random
    assert any(op.random for op in ops) and any(op.view for op in ops)


def test_stats_are_those_of_the_command(small, tmp_path):
    small.save(tmp_path / "step.rmt")
    code = "import sys; from rematic._command import main; sys.exit(main())"
    arguments = ["stats", str(tmp_path / "step.rmt"), "--json", "--timeline"]
    said = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert small.stats(timeline=True) == json.loads(said.stdout)
    assert "timeline" not in small.stats()


def test_configs_are_paths_or_dicts(tmp_path):
    config = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    from_file = rematic.Trace.model(tmp_path / "config.json", batch=2, seq=32, dtype="bf16", optimizer="adamw")
    from_dict = rematic.Trace.model(config, batch=2, seq=32, dtype="bf16", optimizer="adamw")
    assert [op.name for op in from_dict.ops] == [op.name for op in from_file.ops]
    assert from_dict.peak() == from_file.peak()
    assert from_file.facts["dtype"] == "bf16"


def test_types_are_also_spelled_as_in_torch():
    sizes = {"layers": 2, "batch": 1, "seq": 32}
    assert rematic.Trace.model("gpt2", dtype="torch.bfloat16", **sizes) == rematic.Trace.model("gpt2", dtype="bf16", **sizes)


def test_memory_is_rounded_as_the_step_says(small):
    document = json.loads(small.to_bytes())
    document["origin"]["device"] = "cpu"
    on_cpu = rematic.Trace.from_bytes(json.dumps(document).encode())
    assert (on_cpu.device, small.device) == ("cpu", None)
    assert on_cpu.peak() == small.peak("cpu")
    assert rematic.plan(on_cpu, "70GiB").baseline_peak == small.peak("cpu")
    assert on_cpu.peak("cuda") == small.peak()


def refused(error, parts, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert type(caught.value) is error
    for part in parts:
        assert part in str(caught.value)


def test_what_cannot_be_traced_is_refused(small, tmp_path):
    refused(rematic.TraceError, ["llama-3-9b", "did you mean"], rematic.Trace.model, "llama-3-9b")
    refused(rematic.TraceError, ["batch", "at least 1"], rematic.Trace.model, "gpt2", batch=0)
    refused(rematic.TraceError, ["cannot read", "none.rmt"], rematic.Trace.load, tmp_path / "none.rmt")
    refused(rematic.TraceError, ["the trace", "cut off"], rematic.Trace.from_bytes, small.to_bytes()[:-100])
    refused(rematic.TraceError, ["the trace", "zstd"], rematic.Trace.from_bytes, small.to_bytes(compress=True)[:-100])
    refused(rematic.RematicError, ["config", "no model of type `unheard-of`"], rematic.Trace.model, {"model_type": "unheard-of"})
    refused(rematic.RematicError, ["dtype is `fp13`; give fp32, bf16 or fp16"], rematic.Trace.model, "gpt2", dtype="fp13")
    refused(rematic.RematicError, ["optimizer is `adagrad`", "sgd-momentum"], rematic.Trace.model, "gpt2", optimizer="adagrad")
    refused(rematic.RematicError, ["allocator is `tpu`; give cuda or cpu"], small.peak, "tpu")
    refused(rematic.TraceError, ["cannot write"], small.save, tmp_path / "no" / "folder.rmt")
    with pytest.raises(TypeError):
        rematic.Trace.model(7)
    with pytest.raises(TypeError):
        rematic.Trace()


def test_a_damaged_trace_is_named_by_row(small):
    document = json.loads(small.to_bytes())
    document["ops"][5]["inputs"] = [[10**6, 0]]
    refused(rematic.TraceError, ["the trace", "op 5", "1000000"], rematic.Trace.from_bytes, json.dumps(document).encode())
