"""`torch.autocast` on the meta device.

Autocast works in the dispatcher, above autograd, on tensors of its device; meta tensors pass it by. While a step is in
an autocast block of the imitated device, the operators that torch has autocast kernels for get kernels here that cast
their arguments by the same rules.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from .errors import CaptureError

Kernel = Callable[..., Any]

# Which rule an operator follows; those that torch registers and that are not named here run in single precision.
# From ATen/autocast_mode.h (CUDA) and ATen/autocast_mode.cpp (CPU).
_LOWER_ON_BOTH = (
    "_convolution.deprecated conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding conv_tbc "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input prelu addmm matmul mm linalg_vecdot linear addbmm "
    "baddbmm bmm scaled_dot_product_attention"
)
LOWER_PRECISION = {
    "cuda": frozenset(
        f"{_LOWER_ON_BOTH} _convolution convolution addmv addr einsum mv chain_matmul linalg_multi_dot "
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
        "_scaled_dot_product_flash_attention".split()
    ),
    "cpu": frozenset(f"{_LOWER_ON_BOTH} _addmm_activation _native_multi_head_attention mkldnn_rnn_layer".split()),
}
SETS_DTYPE = {
    "cuda": frozenset(
        "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
        "linalg_matrix_norm.str_ord sum sum.dim_IntList".split()
    ),
    "cpu": frozenset[str](),
}
PROMOTES = {
    "cuda": frozenset(
        "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
    ),
    "cpu": frozenset("cat stack index_copy".split()),
}
# They refuse to run, or have no place on the meta device.
_LEFT_OUT = frozenset("binary_cross_entropy _cudnn_rnn cudnn_convolution cudnn_convolution_transpose".split())


def _is_castable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta and value.is_floating_point() and value.dtype != torch.float64


class Autocast:
    """The autocast of one device."""

    def __init__(self, device: str, routed: dict[str, Kernel]) -> None:
        self._device = device
        self._routed = routed
        self._depth = 0
        self._library: torch.library.Library | None = None
        self._inside = False
        # Weights are cast once in an outermost block.
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it is entered, autocast blocks act on the meta device."""
        block = torch.amp.autocast_mode.autocast
        init, enter, leave = block.__init__, block.__enter__, block.__exit__
        enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype

        def made(this: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            init(this, self._named(device_type), *args, **kwargs)

        def entered(this: Any) -> Any:
            # First, because a failure must not leave autocast on.
            if this.device == self._device:
                self._begin()
            return enter(this)

        def left(this: Any, *args: Any) -> Any:
            if this.device == self._device:
                self._end()
            return leave(this, *args)

        with contextlib.ExitStack() as stack:
            for target, name, changed in (
                (block, "__init__", made),
                (block, "__enter__", entered),
                (block, "__exit__", left),
                (torch, "is_autocast_enabled", lambda *device: enabled(*map(self._named, device))),
                (torch, "get_autocast_dtype", lambda device: dtype_of(self._named(device))),
                (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
                (torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True),
            ):
                stack.enter_context(mock.patch.object(target, name, changed))
            stack.callback(self._reset)
            yield

    def _named(self, device: str) -> str:
        return self._device if device == "meta" else device

    def _begin(self) -> None:
        self._depth += 1
        if self._library is not None:
            return
        if "allow_override" not in inspect.signature(torch.library.Library.impl).parameters:
            raise CaptureError(
                f"torch.autocast cannot be captured with PyTorch {torch.__version__}, which lets no kernel be replaced; take a "
                "newer one, or plan without autocast"
            )
        self._library = torch.library.Library("aten", "IMPL")
        listed = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{self._device.upper()}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for qualified in sorted(listed):
                namespace, name = qualified.split("::")
                if namespace == "aten" and name not in _LEFT_OUT:
                    self._library.impl(name, self._kernel(name), "AutogradMeta", allow_override=True)

    def _end(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._cache.clear()
            self._drop_library()

    def _reset(self) -> None:
        self._depth = 0
        self._cache.clear()
        self._drop_library()

    def _drop_library(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, name: str) -> Kernel:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
        keys = torch._C.DispatchKey
        key = keys.CompositeImplicitAutograd if is_composite else keys.Autograd
        routed = self._routed.get(name)

        def run(*args: Any, **kwargs: Any) -> Any:
            return op._op_dk(key, *args, **kwargs) if routed is None else routed(*args, **kwargs)

        if name in SETS_DTYPE[self._device]:
            position = [argument.name for argument in op._schema.arguments].index("dtype")
            change = self._setting_dtype(position, op._schema.arguments[position].kwarg_only)
        elif name in PROMOTES[self._device]:
            change = self._promoting
        elif name in LOWER_PRECISION[self._device]:
            change = self._lowering
        else:
            change = self._raising

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not torch.is_autocast_enabled(self._device):
                return run(*args, **kwargs)
            self._inside = True
            try:
                args, kwargs = change(args, kwargs)
                return run(*args, **kwargs)
            finally:
                self._inside = False

        return kernel

    # ---- rules ----

    def _lowering(self, args: Any, kwargs: Any) -> Any:
        return self._all_to(torch.get_autocast_dtype(self._device), args, kwargs)

    def _raising(self, args: Any, kwargs: Any) -> Any:
        return self._all_to(torch.float32, args, kwargs)

    def _promoting(self, args: Any, kwargs: Any) -> Any:
        found = [item.dtype for value in args for item in (value if isinstance(value, (list, tuple)) else [value])
                 if _is_castable(item)]  # fmt: skip
        widest = torch.float32 if torch.float32 in found else torch.get_autocast_dtype(self._device)
        return self._all_to(widest, args, kwargs)

    def _setting_dtype(self, position: int, is_keyword: bool) -> Callable[[Any, Any], Any]:
        def change(args: Any, kwargs: Any) -> Any:
            given = kwargs.get("dtype") if is_keyword or len(args) <= position else args[position]
            is_half = _is_castable(args[0]) and args[0].dtype in (torch.float16, torch.bfloat16)
            if given is None and is_half:
                if not is_keyword and len(args) > position:
                    args = (*args[:position], torch.float32, *args[position + 1 :])
                else:
                    kwargs = {**kwargs, "dtype": torch.float32}
            return args, kwargs

        return change

    def _all_to(self, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
        # Arguments are cast from the last to the first, as compiled code does.
        keywords = {key: self._to(dtype, value) for key, value in reversed(kwargs.items())}
        positional = [self._to(dtype, value) for value in reversed(args)]
        return tuple(reversed(positional)), keywords

    def _to(self, dtype: torch.dtype, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._to(dtype, item) for item in value]
        if not _is_castable(value) or value.dtype == dtype:
            return value
        is_weight = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and value._base is None
        is_lower = dtype == torch.get_autocast_dtype(self._device)
        if not (is_weight and is_lower and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        known = self._cache.get(id(value))
        if known is None:
            known = self._cache[id(value)] = (value, value.to(dtype))
        return known[1]
