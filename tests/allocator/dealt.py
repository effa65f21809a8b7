"""How models of transformers are dealt out to ranks by `parallelize_module`: the plan that torchtitan has for Llama, for all families.

Embeddings and the output go by rows of the vocabulary, norms over parts of the sequence, attention by heads, the feed-forward network
by its width, and the loss is computed from logits that stay dealt out. Where families differ:

- A norm whose result is added to the residual gives a tensor of its own (`use_local_output=True`): the residual is one.
- Projections that are one weight (Phi-3), and those whose norm is over all heads (OLMo 2), give all of their result to every rank,
  as in the plans of transformers (`colwise_gather_output`, `rowwise_split_input`).
- The block of experts is given all of the sequence and gives summands; the router is on all ranks the same, and each rank has a part
  of the width of every expert, as torchtitan has it.
- DeepSeek's attention is left whole, as in the plan of transformers for V3: all ranks compute it for all of the sequence. Dense and
  shared networks and experts are dealt out.
- GPT-OSS's sinks go by heads, its experts as torchtitan deals them out: of the bias behind the sum every rank adds an equal share.
- A model that makes a mask makes it of all positions: the embedding gives all of the sequence, and the first layer takes its part.
"""
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.distributed.parallel_utils import _use_local_dtensor_params

PART, WHOLE = Shard(1), Replicate()
# What experts that all tokens go through are called.
SHARED = ("shared_expert", "shared_experts")


class Replicated(ParallelStyle):
    """On all ranks the same, on what all ranks have: torchtitan's `NoParallel`. What it gives are tensors of the rank's own, whose
    gradients are the same on all ranks, or summands."""

    def __init__(self, gradient: Any = WHOLE) -> None:
        super().__init__()
        self.gradient = gradient

    def _apply(self, module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        def given(_, inputs: Any, mesh: Any) -> Any:
            first = inputs[0]
            return (first if isinstance(first, DTensor) else DTensor.from_local(first, mesh, [WHOLE], run_check=False), *inputs[1:])

        def local(tensor: Any) -> Any:
            return tensor.to_local(grad_placements=[self.gradient])

        def made(_, output: Any, mesh: Any) -> Any:
            return tuple(map(local, output)) if isinstance(output, tuple) else local(output)

        return distribute_module(module, mesh, None, given, made)


class Experts(ParallelStyle):
    """Every rank has a part of the width of every expert: torchtitan's `TensorParallel` for experts, with both halves of what is one
    weight in transformers cut as its `packed_colwise` does. Tokens are those that all ranks have; what it makes of them, summands."""

    def _apply(self, module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        def cut(_, module: torch.nn.Module, mesh: Any) -> None:
            for name, how in (("gate_up_proj", _StridedShard(1, split_factor=2)), ("down_proj", Shard(2))):
                if name in module._parameters:
                    dealt = distribute_tensor(module._parameters[name], mesh, [how], src_data_rank=None)
                    module.register_parameter(name, torch.nn.Parameter(dealt))

        def given(_, inputs: Any, mesh: Any) -> Any:
            return (inputs[0].to_local(grad_placements=[Partial()]), *inputs[1:])

        distribute_module(module, mesh, cut, given, None)
        plain = module.forward

        def forward(*args: Any) -> Any:
            with _use_local_dtensor_params(module):
                return plain(*args)

        module.forward = forward
        return module


class Divided(torch.autograd.Function):
    """An equal share of a bias that every rank adds; the gradient is that of all of it: torchtitan's `ScaleBiasForward`."""

    @staticmethod
    def forward(ctx: Any, bias: torch.Tensor, ranks: int) -> torch.Tensor:
        return bias / ranks

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class BiasedExperts(ParallelStyle):
    """GPT-OSS's experts, whose weights are the other way round and have biases: torchtitan's `GptossTensorParallel`."""

    def _apply(self, module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        cuts = {"gate_up_proj": Shard(2), "gate_up_proj_bias": Shard(1), "down_proj": Shard(1), "down_proj_bias": WHOLE}

        def given(_, inputs: Any, mesh: Any) -> Any:
            return (inputs[0].to_local(grad_placements=[Partial()]), *inputs[1:])

        for name, how in cuts.items():
            dealt = distribute_tensor(module._parameters[name], mesh, [how], src_data_rank=None)
            module.register_parameter(name, torch.nn.Parameter(dealt))
        distribute_module(module, mesh, lambda *_: None, given, None)
        plain = module.forward

        def forward(*args: Any) -> Any:
            dealt = dict(module._parameters)
            own = {name: parameter.to_local() for name, parameter in dealt.items()}
            own["down_proj_bias"] = Divided.apply(own["down_proj_bias"], mesh.size())
            module._parameters.update(own)
            try:
                return plain(*args)
            finally:
                module._parameters.update(dealt)

        module.forward = forward
        return module


class Sinks(PrepareModuleInput):
    """Attention with a number for each head, of which every rank has those of its heads."""

    def _apply(self, module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        dealt = distribute_tensor(module.sinks, mesh, [Shard(0)], src_data_rank=None)
        module.register_parameter("sinks", torch.nn.Parameter(dealt))
        plain = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with _use_local_dtensor_params(module):
                return plain(*args, **kwargs)

        module.forward = forward
        return super()._apply(module, mesh)


LATENT = ("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")


def normed(layer: torch.nn.Module) -> dict[str, Any]:
    """The norms of a layer: those before a part of it, and those behind one."""
    behind = hasattr(layer, "post_feedforward_layernorm")
    plan: dict[str, Any] = {}
    for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
        if hasattr(layer, name):
            plan[name] = SequenceParallel(use_local_output=behind and name.startswith("post"))
    return plan


def attending(attention: torch.nn.Module) -> dict[str, Any]:
    """Attention."""
    if hasattr(attention, "kv_a_proj_with_mqa"):
        return {name: Replicated() for name in LATENT if getattr(attention, name, None) is not None}
    norms = [name for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    if hasattr(attention, "qkv_proj") or type(attention).__name__.startswith("Olmo2"):
        plan: dict[str, Any] = {"o_proj": RowwiseParallel(input_layouts=WHOLE, output_layouts=PART)}
        for name in ("qkv_proj", "q_proj", "k_proj", "v_proj"):
            plan[name] = ColwiseParallel(output_layouts=WHOLE)
        return {**plan, **{name: Replicated() for name in norms}}
    plan = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj", "query_key_value")}
    for name in ("o_proj", "dense"):
        plan[name] = RowwiseParallel(output_layouts=PART)
    dimension = 1 if type(attention).__name__.startswith("Gemma3") else 2
    return {**plan, **{name: SequenceParallel(sequence_dim=dimension, use_local_output=True) for name in norms}}


def feeding(network: torch.nn.Module) -> dict[str, Any]:
    """The feed-forward network."""
    if hasattr(network, "experts"):
        return {
            "gate": Replicated(Partial()), "router": Replicated(Partial()),
            "experts": BiasedExperts() if hasattr(network.experts, "down_proj_bias") else Experts(), "shared_expert_gate": Replicated(Partial()),
            **{f"{shared}.{name}": ColwiseParallel() for shared in SHARED for name in ("gate_proj", "up_proj")},
            **{f"{shared}.down_proj": RowwiseParallel(output_layouts=Partial()) for shared in SHARED},
        }  # fmt: skip
    if hasattr(network, "gate_up_proj"):
        return {
            "gate_up_proj": ColwiseParallel(output_layouts=WHOLE),
            "down_proj": RowwiseParallel(input_layouts=WHOLE, output_layouts=PART),
        }
    plan: dict[str, Any] = {name: ColwiseParallel() for name in ("gate_proj", "up_proj", "dense_h_to_4h")}
    for name in ("down_proj", "dense_4h_to_h"):
        plan[name] = RowwiseParallel(output_layouts=PART)
    return plan


def has(module: torch.nn.Module, path: str) -> bool:
    try:
        return module.get_submodule(path) is not None
    except AttributeError:
        return False


def dealt_layer(layer: torch.nn.Module) -> dict[str, Any]:
    """How the modules of a layer are dealt out."""
    name = "self_attn" if hasattr(layer, "self_attn") else "attention"
    attention = getattr(layer, name)
    plan = normed(layer)
    if name == "self_attn":
        keywords = {"input_kwarg_layouts": {"hidden_states": PART}, "desired_input_kwarg_layouts": {"hidden_states": WHOLE}}
        if hasattr(attention, "kv_a_proj_with_mqa"):
            outputs = {"output_layouts": (WHOLE, None), "desired_output_layouts": (PART, None)}
            plan[name] = PrepareModuleInputOutput(**keywords, **outputs)
        else:
            plan[name] = (Sinks if hasattr(attention, "sinks") else PrepareModuleInput)(**keywords)
    else:
        plan[name] = PrepareModuleInput(input_layouts=(PART,), desired_input_layouts=(WHOLE,))
    gathered = {"input_layouts": (PART,), "desired_input_layouts": (WHOLE,)}
    if hasattr(layer.mlp, "experts"):
        # GPT-OSS's gives shares of experts too.
        others = (None,) if hasattr(layer.mlp, "router") else ()
        sums = {"output_layouts": (Partial(), *others), "desired_output_layouts": (PART, *others)}
        plan["mlp"] = PrepareModuleInputOutput(**gathered, **sums)
    else:
        plan["mlp"] = PrepareModuleInput(**gathered)
    inside = {"mlp": (layer.mlp, feeding(layer.mlp)), name: (attention, attending(attention))}
    for around, (module, styles) in inside.items():
        plan.update({f"{around}.{inner}": style for inner, style in styles.items() if has(module, inner)})
    return plan


def makes_masks(config: Any, length: int) -> bool:
    """Whether the model makes a mask of its own, of the length of what the embedding gives."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or (["sliding_attention"] if window else [])
    return config._attn_implementation == "eager" or (bool(window) and length >= window and "sliding_attention" in kinds)


def share(module: Any, mesh: Any, length: int) -> None:
    """Deals the model out to the ranks of a mesh."""
    base = module.base_model
    at = module.base_model_prefix
    embedding, norm = ("embed_in", "final_layer_norm") if hasattr(base, "embed_in") else ("embed_tokens", "norm")
    masked = makes_masks(module.config, length)
    whole = {
        f"{at}.{embedding}": RowwiseParallel(input_layouts=WHOLE, output_layouts=WHOLE if masked else PART),
        f"{at}.{norm}": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=PART, output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(module, mesh, whole)
    for layer in base.layers:
        parallelize_module(layer, mesh, dealt_layer(layer))
    if masked:
        first = PrepareModuleInput(input_layouts=(WHOLE,), desired_input_layouts=(PART,), use_local_output=True)
        parallelize_module(base.layers[0], mesh, first)
