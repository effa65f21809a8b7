"""Drop-in for `torch.distributed._tools.runtime_estimator`: the time of a step, by torch's roofline or measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Self

from rematic import _core
from rematic.compat._roofline import VIEWS, Sheet, measured, modelled_ms
from rematic.compat.mod_tracker import ModTracker

__all__ = ["RuntimeEstimator"]

COST_MODEL = "operator-level-cost-model"
BENCHMARK = "operator-level-benchmark"


class _Names(ModTracker):
    """Tells the sums which modules run."""

    def __init__(self, estimator: RuntimeEstimator) -> None:
        super().__init__()
        self._estimator = estimator

    def _entered(self, name: str) -> None:
        self._estimator._sums.enter(name)

    def _left(self, name: str) -> None:
        self._estimator._sums.leave(name)

    def _left_all(self) -> None:
        self._estimator._sums.leave_all()
        self._estimator._sums.enter("Global")


class RuntimeEstimator(TorchDispatchMode):
    """Estimates the time of what runs within its context, in milliseconds, under `FakeTensorMode`.

        estimator = RuntimeEstimator()
        with FakeTensorMode():
            ...
            with estimator("operator-level-cost-model"):
                model(batch).sum().backward()
            estimator.display_modulewise_stats()

    `gpu_type` is a name of torch's data sheet ("NVIDIA H100"); without it, it is the GPU that is there.
    """

    _no_fallback_kernel: ClassVar[set[Any]] = set()
    fake_mode: FakeTensorMode
    gpu_type: str | None = None
    _sheet: Sheet = Sheet(None)

    def __init__(self, gpu_type: str | None = None) -> None:
        super().__init__()
        self._gpu_type = gpu_type
        self._estimate: Callable[..., tuple[Any, float]]
        self._estimate_mode_type: str
        self._sums = _core.Runtimes()
        self._mod_tracker = _Names(self)
        self.mod_fw_pre_order: list[str] = []
        self.mod_bw_pre_order: list[str] = []
        self.mod_fw_post_order: list[str] = []
        self.mod_bw_post_order: list[str] = []

    @property
    def total_runtime(self) -> float:
        """The time of everything, in milliseconds."""
        return self._sums.total()

    @property
    def mod_runtimes(self) -> dict[str, dict[str, float]]:
        """The time of each module that ran an operator, by "fw" and "bw", and of all under "Global"."""
        runtimes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for name, forward, backward in self._sums.rows():
            for key, millis in (("fw", forward), ("bw", backward)):
                if millis is not None:
                    runtimes[name][key] = millis
        return runtimes

    @classmethod
    def _use(cls, fake_mode: FakeTensorMode, gpu_type: str | None) -> None:
        cls.fake_mode, cls.gpu_type, cls._sheet = fake_mode, gpu_type, Sheet(gpu_type)

    @classmethod
    def _benchmark_estimate(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """An operator's result, and its time as measured."""
        if not isinstance(cls.fake_mode, FakeTensorMode):
            raise AssertionError("Initialize/Assign FakeTensorMode before using this function")
        kwargs = kwargs or {}
        if func._overloadpacket not in VIEWS:
            try:
                return measured(cls.fake_mode, func, args, kwargs)
            except NotImplementedError:
                cls._no_fallback_kernel.add(func._overloadpacket)
        return func(*args, **kwargs), 0.0

    @classmethod
    def _roofline_estimate(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """An operator's result, and its time by torch's roofline."""
        if not torch.accelerator.is_available():
            raise AssertionError("Roofline estimation needs to access CUDA capabilities to make estimations")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        return result, modelled_ms(cls._sheet, func, args, kwargs, result)

    def display_modulewise_stats(self, depth: int = 2) -> None:
        """Prints the order of the modules and their times, down to a depth of the hierarchy."""
        shown = lambda name: name.count(".") + 1 <= depth
        print("Pre-Forward Execution Order: ")
        for name in filter(shown, self.mod_fw_pre_order):
            print(name)
        print("Pre-Backward Execution Order: ")
        for name in filter(shown, self.mod_bw_pre_order):
            print(name)
        for name, millis in self.mod_runtimes.items():
            if shown(name):
                print(f"{name} fw: {millis.get('fw', 0.0):.3f}ms bw: {millis.get('bw', 0.0):.3f}ms")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, millis = self._estimate(func, args, kwargs)
        self._sums.add(millis, self._mod_tracker.is_bw)
        return result

    def __call__(self, estimate_mode_type: str) -> Self:
        """Says how to estimate: "operator-level-cost-model" (roofline) or "operator-level-benchmark" (measured)."""
        if estimate_mode_type == BENCHMARK:
            self._estimate = RuntimeEstimator._benchmark_estimate
        elif estimate_mode_type == COST_MODEL:
            self._estimate = RuntimeEstimator._roofline_estimate
        else:
            raise NotImplementedError(f"estimate_mode_type {estimate_mode_type} not supported")
        self._estimate_mode_type = estimate_mode_type
        return self

    def _noting(self, names: list[str]) -> Callable[..., None]:
        return lambda module, *_: names.append(self._known(module))

    def _known(self, module: nn.Module) -> str:
        return self._mod_tracker.get_known_fqn(module)  # type: ignore[return-value]

    def __enter__(self) -> Self:
        fake_mode = active_fake_mode()
        if not isinstance(fake_mode, FakeTensorMode):
            raise AssertionError("No FakeTensorMode found, designed to be used under FakeTensorMode")
        RuntimeEstimator._use(fake_mode, self._gpu_type)
        self._sums = _core.Runtimes()
        for name in self._mod_tracker.parents:
            self._sums.enter(name)
        for names in (self.mod_fw_pre_order, self.mod_bw_pre_order, self.mod_fw_post_order, self.mod_bw_post_order):
            names.clear()
        self._mod_tracker.register_user_hooks(
            pre_fw_hook=self._noting(self.mod_fw_pre_order),
            pre_bw_hook=self._noting(self.mod_bw_pre_order),
            post_fw_hook=self._noting(self.mod_fw_post_order),
            post_bw_hook=self._noting(self.mod_bw_post_order),
        )
        self._mod_tracker.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        print(f"Estimated ({self._estimate_mode_type})total_time: {self.total_runtime:.3f} ms")
        if self._no_fallback_kernel:
            print("no_fallback_kernel: ", list(self._no_fallback_kernel))
        super().__exit__(*args)
        self._mod_tracker.clear_user_hooks()
        self._mod_tracker.__exit__()
