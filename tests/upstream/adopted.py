"""Fetches PyTorch's tests of `torch.distributed._tools`, puts our names in place of torch's, and runs them; see `run`."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

FOLDER = "test/distributed/_tools"
# Those of the modules that rematic.compat has.
FILES = (
    "test_mod_tracker.py",
    "test_mem_tracker.py",
    "test_fsdp2_mem_tracker.py",
    "test_runtime_estimator.py",
    "test_sac_estimator.py",
    "test_sac_ilp.py",
    "test_fake_collectives.py",
)
GITHUB = "https://raw.githubusercontent.com/pytorch/pytorch"


def source_of(name: str, place: pathlib.Path | None) -> str:
    """The text of a test: of a checkout, of a bare repository's HEAD, or of the installed version on GitHub."""
    path = f"{FOLDER}/{name}"
    if place is None:
        import torch

        version = re.match(r"\d+\.\d+\.\d+", torch.__version__)
        if version is None:
            sys.exit(f"torch {torch.__version__} is no release, so GitHub has no tests of it; give a checkout of PyTorch")
        address = f"{GITHUB}/v{version.group()}/{path}"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, OSError) as error:
            sys.exit(f"{address} cannot be read ({error}); give a checkout of PyTorch instead")
    if (place / path).is_file():
        return (place / path).read_text()
    done = subprocess.run(["git", "--git-dir", str(place), "show", f"HEAD:{path}"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{place} has no {path}: {done.stderr.strip() or 'no such file'}; give a checkout of PyTorch")
    return done.stdout


def first_lines(why: str) -> str:
    """Without what the tests add about running them again."""
    return "\n    ".join(why.split("\n\nTo execute")[0].splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu", help="starts Python on the fake GPU")
    parser.add_argument("--torch", action="store_true", help="leave torch's names")
    parser.add_argument("--only", help="one file of the tests")
    parser.add_argument("place", nargs="?", type=pathlib.Path)
    args = parser.parse_intermixed_args()
    alone = pathlib.Path(__file__).with_name("alone.py")
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            if args.only not in (None, name):
                continue
            text = source_of(name, args.place)
            if not args.torch:
                text = text.replace("torch.distributed._tools", "rematic.compat")
            test, said = pathlib.Path(folder) / name, pathlib.Path(folder) / f"{name}.json"
            test.write_text(text)
            done = subprocess.run([args.gpu, str(alone), str(test), str(said)], capture_output=True, text=True)
            if not said.exists():
                print(f"FAILED {name}: the process ended with {done.returncode}\n{done.stderr[-2000:]}")
                failed += 1
                continue
            for one in json.loads(said.read_text()):
                passed += one["outcome"] == "passed"
                failed += one["outcome"] != "passed"
                print(f"{one['outcome']:8} {name} {one['test']}" + (f"\n    {first_lines(one['why'])}" if one["why"] else ""), flush=True)
    print(f"{passed} passed, {failed} did not, with the names of {'torch' if args.torch else 'rematic'}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
