"""A `parallelize_fn` for torchtitan: the model's own, after which the model follows a plan.

    spec = model_registry("8B", attn_backend="varlen")
    spec.parallelize_fn = parallelize(spec.parallelize_fn, budget="70GiB")
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.models.common.attention import FlexAttention, VarlenAttention
from torchtitan.tools import utils
from torchtitan.tools.logging import logger

from rematic._apply.wrapping import AUDITED_STEPS
from rematic._capture.arguments import OptimizerChoice

from ._planning import Planning, is_compiled

# From the model's output and the labels to a scalar.
Loss = Callable[[Tensor, Tensor], Tensor]


def parallelize(
    parallelize_fn: Callable[..., nn.Module],
    *,
    budget: int | str | None = None,
    device: Any = None,
    loss: Loss = cross_entropy_loss,
    optimizer: OptimizerChoice = None,
    required: bool = True,
    audit: int = AUDITED_STEPS,
) -> Callable[..., nn.Module]:
    """The `parallelize_fn` of a `ModelSpec`, after which the model follows a plan for one rank's step.

    The step is captured from the model as `parallelize_fn` leaves it, without weights, on `local_batch_size` sequences of
    `seq_len` tokens with their positions. `loss` takes the output and the labels, and is by default torchtitan's cross
    entropy; `optimizer` makes one from parameters, and is by default fused AdamW. `budget`, `device` and `audit` are those
    of `rematic.auto`. Without `required`, training goes on where there can be no plan, and a warning says why. The
    function that is returned has the `plan` when it has been called.
    """

    @functools.wraps(parallelize_fn)
    def planned(model: nn.Module, **settings: Any) -> nn.Module:
        planning = Planning(logger, budget, device, required, audit)
        goes_without = planning.refuse_if(_reasons(settings))
        model = parallelize_fn(model, **settings)
        compiled = (
            "parallelize_fn compiles the model, and the compiler decides by itself what to keep, so that a plan would promise "
            "nothing; set compile.enable=False"
        )
        flex = (
            "FlexAttention is made by the compiler, and cannot be captured; take varlen, as by model_registry(…, "
            'attn_backend="varlen")'
        )
        if goes_without or planning.refuse_if({compiled: is_compiled(model), flex: _has(model, FlexAttention)}):
            return model
        step = _Step(model, loss, settings["training"], settings["parallel_dims"])
        chosen = functools.partial(torch.optim.AdamW, fused=True) if optimizer is None else optimizer
        planning.make(model, {"as given": step}, chosen, step.tokens, torch.device(utils.device_type))
        planned.plan = planning.plan  # type: ignore[attr-defined]
        return model

    return planned


def _reasons(settings: dict[str, Any]) -> dict[str, bool]:
    """Why there can be no plan."""
    training, compiling = settings["training"], settings["compile_config"]
    return {
        "torchtitan recomputes activations already (activation_checkpoint); set it to None, and the plan recomputes what it takes "
        "to fit, and no more": settings["ac_config"] is not None,
        "torch.compile decides by itself what to keep, so that a plan would promise nothing; set compile.enable=False, or leave "
        '"model" out of compile.components': compiling.enable and "model" in compiling.components,
        "A plan is followed by Python code, which CUDA graphs leave out; set training.disable_cuda_graphs=True": (
            utils.device_type == "cuda" and not training.disable_cuda_graphs
        ),
        "The parts of a pipeline are not planned for; set parallelism.pipeline_parallel_degree=1": (
            settings["parallel_dims"].pp_enabled
        ),
    }


def _has(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


class _Step:
    """A step of torchtitan's trainer. Of several that accumulate, one that finds gradients, which is the highest."""

    def __init__(self, model: Any, loss: Loss, training: Any, dims: Any) -> None:
        self.loss = loss
        size = (training.local_batch_size, training.seq_len)
        self.tokens = torch.zeros(size, dtype=torch.int64)
        positions = torch.arange(training.seq_len).expand(size).contiguous()
        self.inputs = {"positions": positions}
        if _has(model, VarlenAttention):
            self.inputs["attention_masks"] = model.get_attention_masks(positions=positions)
        self.max_norm = training.max_norm
        self.accumulates = training.global_batch_size > training.local_batch_size * dims.dp_replicate * dims.dp_shard

    def __call__(self, model: nn.Module, optimizer: Any) -> Tensor:
        if not self.accumulates:
            optimizer.zero_grad()
        output = model(self.tokens, **self.inputs)
        loss = self.loss(output, self.tokens) / self.tokens.numel()
        del output
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)
        optimizer.step()
        return loss
