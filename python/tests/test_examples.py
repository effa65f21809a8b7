"""The examples run as their heads say, and what they print is true."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from test_fsdp2 import torchrun

pytest.importorskip("torch")
EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"


def run(name: str, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    # One thread: on a machine with other work, several wait for each other.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+: loss (.+)$", said, re.MULTILINE)]


def mebibytes(said: str, pattern: str) -> float:
    found = re.search(pattern, said)
    assert found, said
    return float(found[1])


@pytest.mark.parametrize("budget", [40, 30])
def test_nanogpt(budget: int) -> None:
    said = run("nanogpt.py", "--budget", f"{budget}MiB")
    assert f"of {budget}.00 MiB" in said and re.search(r"^ blocks\.\d", said, re.MULTILINE)
    steps = losses(said)
    assert len(steps) == 5 and steps[-1] < steps[0]
    real, promised = mebibytes(said, r"peak: (\S+) MiB,"), mebibytes(said, r"as promised (\S+);")
    # To the digit that is printed.
    assert abs(real - promised) <= 0.1
    assert real <= budget < mebibytes(said, r"; (\S+) without")


@pytest.mark.parametrize("share", [70, 50])
def test_huggingface(share: int) -> None:
    said = run("huggingface.py", "--budget", f"{share}%")
    assert re.search(r"^ model\.layers\.\d", said, re.MULTILINE)
    steps = losses(said)
    assert len(steps) == 3 and steps[-1] < steps[0]
    promised, plain = mebibytes(said, r"peak: (\S+) MiB instead"), mebibytes(said, r"instead of (\S+) MiB")
    assert promised <= share / 100 * plain


def test_huggingface_plans_without_weights(tmp_path: pathlib.Path) -> None:
    import transformers

    transformers.LlamaConfig(num_hidden_layers=4, vocab_size=1024).save_pretrained(tmp_path)
    said = run("huggingface.py", "--config", str(tmp_path), "--dtype", "bf16", "--plan-only", "--device", "h100", "--seq", "2048")
    assert "Fits with a plan" in said and not losses(said)


def test_huggingface_without_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert "add --plan-only" in run("huggingface.py", "--device", "h100", code=2)


def test_fsdp2() -> None:
    done = torchrun(str(EXAMPLES / "fsdp2.py"))
    assert done.returncode == 0, done.stderr
    assert "Fits with a plan" in done.stdout and re.search(r"^ layers\.\d", done.stdout, re.MULTILINE)
    steps = losses(done.stdout)
    assert len(steps) == 3 and steps[-1] < steps[0]


def test_tensor_parallel() -> None:
    done = torchrun(str(EXAMPLES / "tensor_parallel.py"))
    assert done.returncode == 0, done.stderr
    assert "Fits with a plan" in done.stdout and re.search(r"^ layers\.\d", done.stdout, re.MULTILINE)
    steps = losses(done.stdout)
    assert len(steps) == 3 and steps[-1] < steps[0]
