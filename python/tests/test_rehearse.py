"""`rematic rehearse`: scripts run unchanged on a GPU that is not there.

Needs a CUDA build of PyTorch that can be rehearsed; no GPU. The scripts are in `rehearsed/`.
"""

import importlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "rehearsed"
SECONDS = 30

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (torch.version.cuda or "").startswith("13."), reason="needs PyTorch for CUDA 13"
)


def rehearse(*options, script, arguments=(), times=1):
    """The exit code, the answer, and what was said on the error stream. A script may be run several times."""
    run = "import sys; from rematic._command import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "rehearse", *options, "--", sys.executable, str(script), *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Time of the processor: others may use it too.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS * times
    return done.returncode, done.stdout, done.stderr


def answer(*options, script, arguments=(), times=1):
    code, out, said = rehearse("--json", *options, script=script, arguments=arguments, times=times)
    assert code in (0, 3), said
    return code, json.loads(out)


# What PyTorch's allocator says of these steps on a CUDA runtime written in C, independently of ours:
#     FAKEGPU_SM=80 run step.py seed
#     run step.py hf --config gpt2.json --batch 4 --seq 512
GOLDEN = {
    ("seed", "a100-80"): (2_740_549_640, 2_740_550_656, 3_019_898_880),
    ("gpt2", "h100"): (5_307_542_536, 5_316_745_216, 5_662_310_400),
}
# The same of `rehearsed/compiled.py` after three steps: where kernels are compiled and measured, and where a cache has them.
COMPILED = ((267_533_320, 267_534_336, 390_070_272), (257_075_208, 257_076_224, 320_864_256))


@pytest.mark.parametrize("case", GOLDEN, ids="-".join)
def test_allocated_and_reserved_equal_another_runtime_to_the_byte(case):
    model, device = case
    code, found = answer("--device", device, script=SCRIPTS / "step.py", arguments=[model])
    memory = found["memory"]
    assert code == 0 and found["steps"] == 3
    assert (found["requested_bytes"], memory["allocated_bytes"], memory["reserved_bytes"]) == GOLDEN[case]


def test_the_example_of_a_gpt_runs_unchanged():
    code, out, said = rehearse("--json", script=ROOT / "examples" / "nanogpt.py", arguments=["--device", "cuda"])
    found = json.loads(out)
    assert code == 0 and found["fits"] and found["steps"] == 3
    assert found["memory"]["reserved_bytes"] >= found["memory"]["allocated_bytes"] > 0
    # What kernels take for themselves, 32 MiB beside a small model, is promised too.
    assert "that the plan promises" not in said


def test_the_example_of_fsdp2_runs_as_one_of_64():
    script, arguments = ROOT / "examples" / "fsdp2.py", ["--device", "h100"]
    code, found = answer("--gpus", "64", "--rank", "9", script=script, arguments=arguments)
    assert (code, found["world_size"], found["rank"], found["steps"]) == (0, 64, 9, 3)


def test_a_trainer_script_runs_unchanged_and_knows_that_nothing_is_masked():
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    code, found = answer(script=SCRIPTS / "trainer.py")
    assert code == 0 and found["steps"] == 3
    # A mask of ones, uploaded, is none: had it been read as zeros, a mask would have been made.
    assert not any("masking_utils" in (place["file"] or "") for place in found["largest"])


def test_a_lightning_script_runs_unchanged():
    pytest.importorskip("lightning")
    code, found = answer(script=SCRIPTS / "lightning_fit.py")
    assert code == 0 and found["steps"] == 3


def test_a_script_that_runs_out_ends_with_3_and_names_its_line_and_module(tmp_path):
    path, page = tmp_path / "memory.pickle", tmp_path / "page.html"
    options = ("--device", "t4", "--snapshot", str(path), "-o", str(page))
    code, found = answer(*options, script=SCRIPTS / "large.py")
    assert code == 3 and not found["fits"]
    out = found["out_of_memory"]
    lines = (SCRIPTS / "large.py").read_text().splitlines()
    assert lines[out["line"]["line"] - 1].strip() == "loss.backward()"
    assert out["phase"] == "backward" and out["module"].startswith("Net.blocks.")
    memory = found["memory"]
    assert memory["reserved_bytes"] + memory["context_bytes"] <= memory["usable_bytes"]
    assert found["largest"][0]["file"].endswith("large.py")
    assert "Runs out of memory" in page.read_text()
    # PyTorch's own snapshot.
    snapshot = pickle.loads(path.read_bytes())
    assert snapshot["segments"] and snapshot["device_traces"]


STEPS = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
CAUGHT = """
import torch
size = 1 << 40
for _ in range(25):
    try:
        torch.zeros(size, device="cuda")
    except torch.OutOfMemoryError:
        pass
kept = torch.zeros(1 << 20, device="cuda")
"""


def test_a_script_that_looks_for_torch_before_it_imports_it_is_watched(tmp_path):
    script = tmp_path / "script.py"
    script.write_text('import importlib.util\nassert importlib.util.find_spec("torch")\n' + STEPS)
    code, found = answer(script=script)
    assert code == 0 and found["steps"] == 3


def test_a_script_that_catches_it_and_ends_well_fits(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CAUGHT)
    code, out, _ = rehearse(script=script)
    assert code == 0
    # All are counted; none of them is an attempt that helped.
    assert out.splitlines()[1].startswith("Fits ")
    said = "It ran out of memory 25 times on the way, which the script caught: it last asked for 4.00 TiB at"
    assert said in " ".join(out.split())
    script.write_text(CAUGHT + "raise SystemExit(1)")
    assert rehearse(script=script)[0] == 3


@pytest.mark.parametrize("option", ["--snapshot", "-o"])
def test_files_that_cannot_be_written_are_refused_before_the_run(tmp_path, option):
    script, path = tmp_path / "script.py", tmp_path / "no" / "file"
    script.write_text("print('it ran')")
    code, out, error = rehearse(option, str(path), script=script)
    assert (code, out) == (2, "") and "it ran" not in error
    assert f"cannot write {path}: No such file or directory" in error


def test_a_child_or_a_thread_that_runs_out_is_not_a_script_that_went_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, sys, threading, torch

def work():
    torch.zeros(1 << 40, device="cuda")

if __name__ == "__main__":
    kind = threading.Thread if sys.argv[1] == "thread" else multiprocessing.get_context("spawn").Process
    worker = kind(target=work)
    worker.start()
    worker.join()
""")
    for kind in ("thread", "process"):
        code, found = answer(script=script, arguments=[kind])
        assert code == 3 and found["out_of_memory"]["line"]["function"] == "work"


def test_a_snapshot_that_could_not_be_written_is_told(tmp_path, monkeypatch):
    script, folder = tmp_path / "script.py", tmp_path / "gone"
    folder.mkdir()
    script.write_text(f"import os, torch\ntorch.zeros(8, device='cuda')\nos.rmdir({str(folder)!r})\n")
    # Wide enough for the path.
    monkeypatch.setenv("COLUMNS", "400")
    code, out, error = rehearse("--snapshot", str(folder / "file"), script=script)
    assert code == 0 and "Traceback" not in error
    assert f"PyTorch's snapshot was not written to {folder / 'file'}: No such" in " ".join(out.split())


def test_lines_of_the_hook_and_of_generated_code_are_nobodys(tmp_path, monkeypatch):
    hook = ROOT / "crates" / "rematic-rehearsal" / "hook"
    monkeypatch.syspath_prepend(str(hook))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    watching = importlib.import_module("rematic_rehearsal.watching")
    monkeypatch.setattr(watching, "_package", "/site-packages/torch/")
    files = [
        str(hook / "rematic_rehearsal" / "values.py"),
        str(tmp_path / "inductor" / "ab" / "cab.py"),
        "/site-packages/torch/_inductor/utils.py",
        "/home/user/rematic_rehearsal_of_mine/train.py",
    ]
    frames = [{"filename": file, "line": line, "name": "call"} for line, file in enumerate(files)]
    assert watching._place(frames) == (files[-1], 3, "call")
    assert watching._place(frames[:-1]) is None


def test_a_python_without_the_runtime_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, sys
if os.environ.pop("LD_PRELOAD", None):
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv])
{STEPS}""")
    code, out, error = rehearse(script=script)
    assert (code, out) == (2, "")
    assert "the runtime of the rehearsal was not loaded: LD_PRELOAD was changed on the way to Python" in error


def test_settings_of_the_allocator_reach_it():
    options = ("--device", "a100-80", "--alloc-conf", "expandable_segments:True")
    _, found = answer(*options, script=SCRIPTS / "step.py", arguments=["seed"])
    requested, _, reserved = GOLDEN["seed", "a100-80"]
    assert found["requested_bytes"] == requested
    assert found["memory"]["reserved_bytes"] < reserved


def test_values_that_were_uploaded_or_follow_from_them_are_right():
    code, found = answer(script=SCRIPTS / "values.py")
    assert code == 0
    # The script checks the values itself; three of its reads ask for what only a kernel would know.
    assert found["reads"]["unknown"] == 3
    assert found["reads"]["known"] > 10
    assert "values.py" in found["reads"]["lines"][0]["file"]


@pytest.mark.parametrize("way", ["nonzero", "bincount"])
def test_experts_are_balanced_and_the_line_that_routes_is_told(way):
    script = SCRIPTS / "experts.py"
    code, found = answer(script=script, arguments=["router", way])
    # The same with a choice that is uploaded: the same memory.
    _, expected = answer(script=script, arguments=["uploaded", way])
    assert code == 0 and found["steps"] == 3 and found["reads"]["unknown"] == 0
    assert found["requested_bytes"] == expected["requested_bytes"]
    (assumed,) = found["assumed"]
    assert "takes each of 8 equally often" in assumed["text"]
    (line,) = assumed["lines"]
    assert ".topk(" in script.read_text().splitlines()[line["line"] - 1]


def test_a_mask_that_kernels_compute_selects_nothing_and_the_line_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.randn(9, device='cuda')\nassert x[x > 0].shape == (0,)\n")
    code, out, _ = rehearse(script=script)
    said = " ".join(out.split())
    assert code == 0
    assert "Assumed: masks that kernels compute select nothing (nonzero, boolean indexing): what is selected" in said
    assert "script.py:3)" in said


def test_explain_rehearses_a_compiled_model(tmp_path):
    """With what a script of the user's takes for the same model."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32768, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    script = tmp_path / "train.py"
    script.write_text(COMPILED_LLAMA)
    run = "import sys; from rematic._command import main; sys.exit(main())"
    asked = [str(path), "--batch", "4", "--seq", "1024", "--optimizer", "adamw", "--device", "h100", "--with-compile", "--json"]
    done = subprocess.run([sys.executable, "-c", run, "explain", *asked], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    peak = tmp_path / "peak"
    answer("--device", "h100", "--steps", "9", script=script, arguments=[str(path), str(peak)], times=3)
    # Blocks that were left over from measuring kernels are taken whole for a little less: 0.03 % between an empty cache and a full one.
    assert found["compiled"]["allocated_bytes"] == pytest.approx(int(peak.read_text()), rel=1e-3)
    assert found["compiled"]["allocated_bytes"] < 0.9 * found["peak_bytes"]


COMPILED_LLAMA = """
import sys, torch, transformers
config = transformers.AutoConfig.from_pretrained(sys.argv[1], use_cache=False)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
tokens = torch.randint(0, config.vocab_size, (4, 1024)).cuda()
labels = tokens.clone()
step = torch.compile(model)
for number in range(4):
    # What holds memory in the first is the compiler, which measures kernels.
    if number == 1:
        torch.cuda.reset_peak_memory_stats()
    output = step(input_ids=tokens, labels=labels, use_cache=False)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
with open(sys.argv[2], "w") as file:
    file.write(str(torch.cuda.max_memory_allocated()))
"""


def test_a_compiled_model_runs_unchanged():
    code, found = answer("--device", "h100", script=SCRIPTS / "compiled.py")
    memory = found["memory"]
    assert code == 0 and found["steps"] == 3
    assert (found["requested_bytes"], memory["allocated_bytes"], memory["reserved_bytes"]) in COMPILED


# What cuDNN is used for by `rehearsed/convolutions.py`, and the library that a model needs.
CUDNN = {
    "resnet": (("convolutions", "batch norm"), "torchvision"),
    "unet": (("convolutions", "batch norm"), "torch"),
    "vit": (("convolutions", "attention"), "transformers"),
    "whisper": (("convolutions", "attention"), "transformers"),
    "lstm": (("recurrent layers",), "torch"),
}


@pytest.mark.parametrize("model", CUDNN)
def test_convolutions_and_recurrent_layers_run_with_cudnn_and_what_is_not_known_is_said(model):
    uses, library = CUDNN[model]
    pytest.importorskip(library)
    code, found = answer("--device", "h100", script=SCRIPTS / "convolutions.py", arguments=[model])
    assert code == 0 and found["steps"] == 3
    told = [assumed["text"] for assumed in found["assumed"] if "cuDNN" in assumed["text"]]
    assert len(told) == len(uses) and all(any(use in text for text in told) for use in uses), told


def test_a_card_that_does_not_prefer_cudnns_attention_takes_another():
    pytest.importorskip("transformers")
    code, found = answer("--device", "a100-80", script=SCRIPTS / "convolutions.py", arguments=["vit"])
    assert code == 0 and not any("attention" in assumed["text"] for assumed in found["assumed"])


@pytest.mark.parametrize("deprioritized", ["0", "1"])
def test_attention_on_an_h100_takes_what_is_predicted_with_cudnns_kernel_and_without(deprioritized, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", deprioritized)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    config = {"model_type": "llama", **importlib.import_module("grouped_heads").CONFIG}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    _, found = answer("--device", "h100", script=SCRIPTS / "grouped_heads.py")
    assert any("attention" in assumed["text"] for assumed in found["assumed"]) == (deprioritized == "0")
    run = "import sys; from rematic._command import main; sys.exit(main())"
    question = ["stats", str(path), *"--batch 4 --seq 2048 --dtype bf16 --device h100 --json".split()]
    said = json.loads(subprocess.check_output([sys.executable, "-c", run, *question], text=True))["memory"]
    kinds = ("allocated_bytes", "reserved_bytes")
    assert [said[kind] for kind in kinds] == [found["memory"][kind] for kind in kinds]


def test_a_network_of_images_under_lightning_runs_unchanged():
    pytest.importorskip("lightning")
    pytest.importorskip("torchvision")
    code, found = answer(script=SCRIPTS / "lightning_images.py")
    assert code == 0 and found["steps"] == 3


def test_what_another_stream_keeps_is_a_range_with_its_line():
    code, found = answer(script=SCRIPTS / "other_stream.py", times=2)
    streams = found["streams"]
    # Up to all but one of the copies of a step wait for their stream, of 4096 x 1024 numbers each.
    more = streams["highest_reserved_bytes"] - streams["lowest_reserved_bytes"]
    assert code == 0 and 4 * 4096 * 1024 < more <= 6 * 4 * 4096 * 1024
    assert found["memory"]["reserved_bytes"] == streams["highest_reserved_bytes"]
    assert [Path(line["file"]).name for line in streams["lines"]] == ["other_stream.py"]
    code, out, _ = rehearse(script=SCRIPTS / "other_stream.py", times=2)
    assert code == 0 and "by how far streams are behind: a block that record_stream keeps (at " in " ".join(out.split())


WAITS = """
import pathlib, sys, time
import torch
kept = torch.zeros(8, device="cuda")
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "name", "shell"), [(signal.SIGINT, "SIGINT (Ctrl-C)", False), (signal.SIGTERM, "SIGTERM", True)]
)
def test_an_interrupted_rehearsal_ends_the_script_and_leaves_nothing_behind(tmp_path, number, name, shell):
    script, ready, files = tmp_path / "script.py", tmp_path / "ready", tmp_path / "files"
    script.write_text(WAITS)
    files.mkdir()
    run = "import sys; from rematic._command import main; sys.exit(main())"
    command = [sys.executable, str(script), str(ready)]
    if shell:
        # A command after it, so that the shell does not become it.
        command = ["sh", "-c", " ".join(command) + "; true"]
    started = subprocess.Popen(
        [sys.executable, "-c", run, "rehearse", "--", *command],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(files)},
    )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ready.exists()
        started.send_signal(number)
        _, error = started.communicate(timeout=30)
    finally:
        started.kill()
    assert started.returncode == 128 + number
    assert f"interrupted by {name} after 0 optimizer steps; the script was ended too" in error
    assert [path.name for path in files.glob("rematic-*")] == []
    others = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(script) in _text(path)]
    assert others == []


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no data')", "it ended with exit code 1: ValueError: no data ("),
        ("import torch; print(torch.ones(2).sum())", "your script did not use CUDA, so there is nothing to say"),
        ("print('no torch')", "your script did not use CUDA, nor import torch, so there is nothing to say"),
        ("import sys; sys.exit(7)", "your script failed by itself, after 0 optimizer steps: it ended with exit code 7"),
        ("import torch\ntorch.distributed.init_process_group()", "rematic rehearse --gpus N"),
    ],
)
def test_scripts_that_cannot_be_answered_for_are_told_why(tmp_path, text, said):
    script = tmp_path / "script.py"
    script.write_text(text)
    code, out, error = rehearse(script=script)
    assert code == 2 and out == ""
    assert said in error.replace("\n", " ")
