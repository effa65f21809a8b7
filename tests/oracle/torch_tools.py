"""Runs PyTorch's own `torch.distributed._tools` on one training step and says all that they say.

It needs no GPU: the model lives on the meta device, and CUDA's choice of operators is made for it where meta would make
another one.  Used by `make_golden.py`, which writes the fixtures of `crates/rematic-torch/tests/golden`.

    pip install torch==2.15.0 transformers==5.22.2 numpy pulp pwlf expecttest zstandard
"""

import contextlib
import copy
import gc
import math
import warnings

warnings.filterwarnings("ignore")

import torch
import transformers.masking_utils
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import mem_tracker as mt
from torch.distributed._tools import runtime_estimator as rt
from torch.distributed._tools import sac_estimator as st
from torch.distributed._tools.ilp_utils import (
    aggregate_stats,
    get_peak_memory_runtime_baseline,
    parse_module_info,
)
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

COST_MODEL = "operator-level-cost-model"
GPU = "NVIDIA A100"
DEVICE = torch.device("meta")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, foreach=True),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, foreach=True),
}
# The allocator's granularity; what MemTracker asks CUDA for, and cannot ask here.
CUDA_BLOCK = 512
aten = torch.ops.aten



def dropout_as_on_cuda(input, p=0.5, train=True):
    """`at::dropout` is one fused operator on CUDA, and bernoulli + mul elsewhere."""
    return aten.native_dropout(input, p, True)[0] if train and p > 0 else input


# C++ code (the math kernel of attention) calls `at::dropout` too, where no function mode sees it.
LIBRARY = torch.library.Library("aten", "IMPL")
LIBRARY.impl("dropout", dropout_as_on_cuda, "AutogradMeta")


# `mem_eff_alignment` and `pad_last_dim<8>` in ATen/native/transformers/attention.cpp
BIAS_ALIGNMENT = 8
FLASH_WIDTH_ALIGNMENT = 8
# `check_head_dim_size_flash` and `minimum_gemm_alignment` in cuda/sdp_utils.cpp there
FLASH_WIDEST = 256
EFFICIENT_WIDTH_ALIGNMENT = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}


def kernel_on_cuda(q, mask):
    """What `select_sdp_backend` takes for the steps of these models; both fused kernels take grouped heads."""
    if q.dtype != torch.float32 and mask is None and q.size(-1) <= FLASH_WIDEST:
        return "flash"
    return "math" if q.size(-1) % EFFICIENT_WIDTH_ALIGNMENT[q.dtype] else "efficient"


def flash_as_on_cuda(q, k, v, dropout_p, is_causal, scale):
    """What `at::scaled_dot_product_attention` makes of heads whose width flash attention does not take as it is."""
    width = q.size(-1)
    missing = -width % FLASH_WIDTH_ALIGNMENT
    if missing:
        scale = width**-0.5 if scale is None else scale
        q, k, v = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    return out[..., :width] if missing else out


def bias_as_on_cuda(mask, q, k):
    """What `at::scaled_dot_product_attention` makes of a boolean mask before it calls the memory-efficient kernel:
    a bias of the queries' type, whose rows begin at multiples of BIAS_ALIGNMENT elements."""
    assert mask.dtype == torch.bool
    bias = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=q.dtype, device=mask.device))
    aligned = bias  # `bias` lives until the kernel is called, as there
    if any(stride % BIAS_ALIGNMENT for stride in bias.stride()[:-1]) or bias.stride(-1) != 1:
        keys = bias.size(-1)
        aligned = torch.nn.functional.pad(bias, (0, BIAS_ALIGNMENT - keys % BIAS_ALIGNMENT))[..., :keys]
    return aligned.expand(q.size(0), q.size(1), q.size(2), k.size(2))


class CudaDispatch(TorchFunctionMode):
    """On meta, attention always takes the math kernel.  Route it to CUDA's choice, or to the one that is asked for."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        if func is torch.nn.functional.dropout:
            return self.dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def attention(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        kernel = kernel_on_cuda(q, attn_mask) if self.kernel == "auto" else self.kernel
        if kernel == "flash":
            assert attn_mask is None, "flash takes no mask"
            return flash_as_on_cuda(q, k, v, dropout_p, is_causal, scale)
        if kernel == "efficient":
            attn_mask = None if attn_mask is None else bias_as_on_cuda(attn_mask, q, k)
            return aten._scaled_dot_product_efficient_attention(
                q, k, v, attn_mask, q.requires_grad, dropout_p, is_causal, scale=scale
            )[0]
        # On meta this is always the math kernel.
        return torch._C._nn.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def dropout(self, input, p=0.5, training=True, inplace=False):
        return dropout_as_on_cuda(input, p, training)


class StepTracker(mt.MemTracker):
    """MemTracker that also writes down the total after every operator, and the order of modules."""

    timeline = None

    def start(self):
        """Begins to write down, and forgets what earlier steps reached."""
        self.timeline = []
        self.order = {"fw_pre_order": [], "fw_post_order": [], "bw_pre_order": [], "bw_post_order": []}
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: snap["Total"] for device, snap in self._peak_mem_snap.items()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.timeline is not None and not str(func).startswith("profiler."):
            total = self._curr_mem_snap.get(DEVICE, {}).get("Total", 0)
            phase = "optimizer" if self._in_opt else "backward" if self._mod_tracker.is_bw else "forward"
            self.timeline.append([str(func).removeprefix("aten."), phase, total])
        return out

    def _note(self, order, module):
        if self.timeline is not None:
            self.order[order].append(self._mod_tracker.get_known_fqn(module))

    def _pre_fw_hook(self, module, inputs):
        self._note("fw_pre_order", module)
        super()._pre_fw_hook(module, inputs)

    def _post_fw_hook(self, module, inputs, outputs):
        self._note("fw_post_order", module)
        super()._post_fw_hook(module, inputs, outputs)

    def _pre_bw_hook(self, module, args):
        self._note("bw_pre_order", module)
        super()._pre_bw_hook(module, args)

    def _post_bw_hook(self, module, args):
        self._note("bw_post_order", module)
        super()._post_bw_hook(module, args)


def build(setup):
    """The model, its forward, the loss of its output, and the batch."""
    dtype = DTYPES[setup["dtype"]]
    torch.set_default_dtype(dtype)
    shape = (setup["batch"], setup["seq"])
    if setup["model"] == "seed-transformer":
        with DEVICE:
            model = Transformer(ModelArgs(
                n_layers=setup["layers"], n_heads=setup["heads"], vocab_size=setup["vocab"],
                max_seq_len=setup["seq"], dim=setup["dim"], dropout_p=setup["dropout"],
            ))
        tokens = torch.randint(0, setup["vocab"], shape, device=DEVICE)
        return model, lambda: model(tokens), lambda output: output.sum(), tokens
    fields = copy.deepcopy(setup["config"])
    config = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    with DEVICE:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    model.train()
    tokens = torch.randint(0, config.vocab_size, shape, device=DEVICE)
    return model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False), lambda output: output.loss, tokens


@contextlib.contextmanager
def as_on_cuda(kernel):
    torch.accelerator.is_available = lambda: True  # the roofline only reads a datasheet
    torch.optim.Optimizer._accelerator_graph_capture_health_check = lambda self: None
    mt._WeakRefInfo._calculate_mem_consumed = (
        lambda self: math.ceil(self.size * self.element_size / CUDA_BLOCK) * CUDA_BLOCK
    )
    # Looks at the values of position_ids, which meta tensors do not have; on real data it finds nothing packed.
    transformers.masking_utils.find_packed_sequence_indices = lambda *a, **k: None
    # The estimators insist on a FakeTensorMode but never use it in cost-model mode.  Plain meta tensors are
    # closer to a real run: Hugging Face models, for one, take another path when they see fake tensors.
    fake = FakeTensorMode()
    rt.active_fake_mode = st.active_fake_mode = lambda: fake
    # Nothing in a step may hang on when the collector of cycles happens to run.
    gc.collect()
    gc.disable()
    try:
        with CudaDispatch(kernel):
            yield
    finally:
        gc.enable()
        torch.set_default_dtype(torch.float32)


def snapshot(snap):
    return {getattr(key, "value", key): value for key, value in snap.get(DEVICE, {}).items()}


def run(setup, memory_only=False, with_sac=False, with_graph=False):
    """Everything that torch's tools say about the second step, when optimizer state exists."""
    with as_on_cuda(setup["attention"]):
        model, forward, loss_of, tokens = build(setup)
        optimizer = OPTIMIZERS[setup["optimizer"]](model.parameters())
        tracker = StepTracker()
        tracker.track_external(model, optimizer, tokens)
        with tracker:
            for step in range(2):
                if step == 1:
                    tracker.reset_mod_stats()
                    gc.collect()
                    tracker.start()
                # As in upstream's tests: the variable holds the output until the next step's forward is done.
                output = forward()
                loss_of(output).backward()
                last = tracker.get_tracker_snapshot("current")
                optimizer.step()
                optimizer.zero_grad()
        for stats in tracker.memory_tracking.values():
            stats.snapshots.setdefault(mt._ModState.POST_BW, [copy.deepcopy(last)])
        out = {
            "peak": snapshot(tracker.get_tracker_snapshot("peak")),
            "timeline": tracker.timeline,
            "modules": {
                stats.mod_fqn: {
                    "parameter": stats.parameter_mem, "buffer": stats.buffer_mem,
                    "input": stats.input_mem, "output": stats.output_mem,
                    "snapshots": {key.value: snapshot(value[-1]) for key, value in stats.snapshots.items()},
                }
                for stats in tracker.memory_tracking.values()
            },
            "order": tracker.order,
        }
        if memory_only:
            return out

        runtime = RuntimeEstimator(gpu_type=GPU)
        with runtime(COST_MODEL):
            output = forward()
            loss_of(output).backward()
            optimizer.step()
            optimizer.zero_grad()
        for name, order in out["order"].items():
            assert list(getattr(runtime, f"mod_{name}")) == order, name
        out["runtime_ms"] = {
            "total": runtime.total_runtime,
            "modules": {key: dict(value) for key, value in runtime.mod_runtimes.items()},
        }
        if not all(mt._ModState.PRE_BW in stats.snapshots for stats in tracker.memory_tracking.values()):
            return out  # `aggregate_stats` takes for granted that every module has a backward; rotary embeddings have none
        sac = SACEstimator(gpu_type=GPU)
        with sac(estimate_mode_type=COST_MODEL):
            loss = loss_of(forward())
        loss.backward()
        if with_sac:
            out["sac"] = {key: vars(value) for key, value in sac.sac_mod_stats.items()}
        graph = parse_module_info(aggregate_stats(model, tracker, runtime, sac, DEVICE))
    out["mod_stats"] = [dict(node) for node in graph.nodes]
    out["baseline"] = dict(zip(("peak_bytes", "compute_ms"), get_peak_memory_runtime_baseline(graph)))
    if with_graph:
        out["graph"] = graph
    return out
