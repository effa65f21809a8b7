"""Random calls of attention: which kernels run on the fake GPU, and which capture takes for CUDA.

    run calls.py real FILE COUNT SEED          on the fake GPU: the calls and what came of them
    python calls.py compared CAPABILITY...     the same calls captured, of the files that are called so; ends with 1 if any differs
    python calls.py keep FILE                  the fixture of python/tests/test_capture_attention.py
"""
import collections
import gzip
import json
import pathlib
import random
import sys

import torch

TESTS = pathlib.Path(__file__).resolve().parents[2] / "python/tests"
sys.path.insert(0, str(TESTS))

from attention import Case, kernel_of, outcome, random_case  # noqa: E402

FIXTURE = TESTS / "attention.json.gz"


def real(path, count, seed):
    # There is no cuDNN on the fake GPU.
    torch.backends.cuda.enable_cudnn_sdp(False)
    generator = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(count):
            case = random_case(generator)
            file.write(json.dumps([case.described(), outcome(case, "cuda")]) + "\n")


def captured(paths):
    """The calls of the files, with what came of them there and what comes of them here."""
    from rematic._capture.attention import on_card
    from rematic._capture.routing import as_on
    from rematic._core import card_kind

    for path in paths:
        with as_on("cuda"), on_card(card_kind("", int(pathlib.Path(path).name))), open(path) as file:
            for fields, expected in map(json.loads, file):
                yield path, fields, expected, outcome(Case.of(fields), "meta")


def compared(paths):
    counts = collections.Counter()
    for path, fields, expected, found in captured(paths):
        # A kernel may refuse what it was chosen for: a mask of one key for all, rows of one element.
        same = "as CUDA" if found == expected else "refused by the kernel" if "refused" in expected else "differs"
        counts[path, same, kernel_of(expected)] += 1
        if same == "differs":
            print(f"{path}: {json.dumps(fields)}: {kernel_of(expected)} on CUDA, {kernel_of(found)} captured")
    for (path, same, kernel), count in sorted(counts.items()):
        print(f"{path}: {same}, {kernel}: {count}")
    sys.exit(any(same == "differs" for _, same, _ in counts))


def keep(path):
    calls = captured([path])
    kept = [[fields, real] for _, fields, real, found in calls if "refused" not in real or found == real]
    text = json.dumps({"torch": torch.__version__.split("+")[0], "calls": kept}, separators=(",", ":"))
    FIXTURE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(kept)} calls, {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["real", path, count, seed]:
            real(path, int(count), int(seed))
        case ["compared", *paths]:
            compared(paths)
        case ["keep", path]:
            keep(path)
        case _:
            sys.exit(__doc__)
