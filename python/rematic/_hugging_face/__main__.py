"""`python -m rematic._hugging_face FILE` reads a request from standard input, and writes the trace of its step.

Exit codes: 0 done, 2 refused with the reason on standard error, 3 something is not installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

REFUSED = 2
NOT_INSTALLED = 3
# Nothing is downloaded, whatever a config asks for.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_TELEMETRY": "1"}


def main() -> int:
    os.environ.update(OFFLINE)
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    from rematic._core import RematicError

    from .request import Refused, Request

    _limit_memory()
    try:
        document = captured(Request.read(sys.stdin.read()))
    except (Refused, RematicError) as refused:
        print(refused, file=sys.stderr)
        return REFUSED
    pathlib.Path(sys.argv[1]).write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    return 0


def captured(request: Any) -> dict[str, Any]:
    """The trace of the step that is asked for."""
    import transformers

    from rematic._capture.step import document
    from rematic._device import CARDS

    from .batch import batch_of
    from .model import build, change, class_of, config_of, dtype_of
    from .optimizer import optimizer_of
    from .request import Refused

    optimizer = optimizer_of(request.optimizer)
    config = config_of(request)
    by_chance = change(config, request)
    model = build(class_of(config, request.config.get("architectures")), config, request)
    batch = batch_of(model, config, request.batch or 1, request.seq)
    with warnings.catch_warnings(record=True) as warned, _kernel(request.attention):
        warnings.simplefilter("always")
        try:
            text = document(model, optimizer=optimizer, device=CARDS[request.card], **batch.arguments)
        except Exception as error:
            # In torch's words.
            if "No available kernel" not in str(error):
                raise
            raise Refused(f"no attention of this step can run in the kernel `{request.attention}`; drop `attention`") from error
    from rematic._core import RematicWarning

    found: dict[str, Any] = json.loads(text)
    origin = found["origin"]
    origin |= {
        "model": request.name, "batch": request.batch or 1, "seq": batch.seq, "attention": request.attention,
        "precision": {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[dtype_of(request)], "optimizer": request.optimizer,
    }  # fmt: skip
    notes = [str(warning.message) for warning in warned if issubclass(warning.category, RematicWarning)]
    origin["options"] = [
        ["captured with", f"transformers {transformers.__version__}"],
        ["class", type(model).__name__],
        ["given", batch.inputs],
        ["loss", batch.loss],
        *(["set", change] for change in by_chance),
        *(["note", note] for note in notes),
    ]
    return found


@contextlib.contextmanager
def _kernel(name: str) -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
    }  # fmt: skip
    with sdpa_kernel(backends[name]) if name != "auto" else contextlib.nullcontext():
        yield


def _limit_memory() -> None:
    """A config can ask for tables that no machine holds; this one is to go on."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        # Not the address space, of which the libraries of CUDA alone take more.
        held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_DATA, (held, resource.getrlimit(resource.RLIMIT_DATA)[1]))


if __name__ == "__main__":
    sys.exit(main())
