"""Runs one file of tests on the GPU that is not there, and writes down how each ended.

Three things are unlike a GPU. There is no cuDNN, so other kernels are taken. How fast the GPU is, it does not say, so that
torch's data sheet of an A100 is taken, the GPU that the tests' figures are from. And tests that start a process for
each GPU and let them talk run as the first of so many ranks, alone, with PyTorch's own fake process group: what the others
would send does not matter for memory.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import pathlib
import sys
import unittest
from typing import Any

import torch
import torch._inductor.utils as inductor
import torch.distributed as dist
from torch._inductor.analysis import device_info
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.fake_pg import FakeStore

# Its public name cannot be set any more once the tests' helpers are imported.
torch._C._set_cudnn_enabled(False)
torch.backends.cuda.enable_cudnn_sdp(False)
GPU = "NVIDIA A100"
inductor.get_device_tflops = lambda dtype, device=None: device_info.datasheet_tops(dtype, device_name=GPU)
inductor.get_device_dram_gbps = lambda device=None: device_info.datasheet_dram_bw_gbs(GPU)


class FirstRank(TestCase):
    """In place of `FSDPTest`: one of its processes."""

    world_size = 1
    rank = 0

    def setUp(self) -> None:
        super().setUp()
        dist.init_process_group("fake", rank=0, world_size=self.world_size, store=FakeStore())

    def tearDown(self) -> None:
        dist.destroy_process_group()
        super().tearDown()

    def run_subtests(self, choices: dict[str, list[Any]], test: Any, *args: Any, **kwargs: Any) -> None:
        """Runs a test with every combination."""
        for values in itertools.product(*choices.values()):
            with self.subTest(**dict(zip(choices, values))):
                test(*args, **dict(zip(choices, values)), **kwargs)


class Outcomes(unittest.TestResult):
    """How each test ended, and the last line of why."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcomes.setdefault(test._testMethodName, ("passed", ""))

    def _ended(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        self.outcomes[test._testMethodName] = (outcome, why)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._ended(test, "failed", f"{err[0].__name__}: {err[1]}"[:600])

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._ended(test, "failed", f"{subtest._subDescription()}: {err[0].__name__}: {err[1]}"[:600])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._ended(test, "skipped", reason)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._ended(test, "failed", "it was expected to fail")


def main() -> None:
    common_fsdp.FSDPTest = FirstRank  # type: ignore[misc, assignment]
    path, said = (pathlib.Path(word) for word in sys.argv[1:])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    outcomes = Outcomes()
    suite = unittest.TestLoader().loadTestsFromModule(module)
    suite.run(outcomes)
    rows = [{"test": test, "outcome": outcome, "why": why} for test, (outcome, why) in outcomes.outcomes.items()]
    said.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
