"""Plans of native steps are followed by transformers' own models: gradients are those without a plan, bit for bit.

On the CPU, where attention and dropout are other operators than on CUDA: regions without them, or models whose attention is of plain
operators. What is not as the plan says is refused.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import families
import networks
import rematic
from rematic._hugging_face.batch import batch_of
from rematic._hugging_face.model import class_of, config_of
from test_networks import request_of

STILL = {
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0, "dropout_rate": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
# Which regions have operators that are the CPU's too.
ONLY = {
    "bert": "*.layer.*.intermediate", "roberta": "*.layer.*.intermediate", "t5": "*.block.*.DenseReluDense", "vit": "*.layers.*.mlp",
    "clip": "*.layers.*.mlp", "gpt_oss": None, "deepseek_v2": "*.layers.*.mlp", "deepseek_v3": "*.layers.*.mlp",
}  # fmt: skip
ALL = [*networks.CASES, *families.CASES]
CASES = {kind: next(case for case in ALL if case.kind == kind and case.dtype == "fp32") for kind in ONLY}
BATCH = 16


def still(fields: dict[str, Any]) -> dict[str, Any]:
    """Without dropout, in the configs inside too."""
    inner = {name: still(value) for name, value in fields.items() if name in ("text_config", "vision_config")}
    return {**fields, **{name: value for name, value in STILL.items() if name in fields}, **inner}


def gradients(model: torch.nn.Module, arguments: dict[str, Any]) -> dict[str, Tensor]:
    loss = model(**arguments).loss
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("kind", ONLY)
def test_native_plans_change_no_gradient(kind: str) -> None:
    torch.set_num_threads(1)
    case = CASES[kind]
    fields = still({**STILL, **case.fields} if kind in ("bert", "roberta", "t5", "vit") else case.fields)
    case = networks.Case(kind, fields, "fp32", BATCH, case.seq)
    config = config_of(request_of(case, "fp32"))
    torch.manual_seed(0)
    model = class_of(config, fields.get("architectures"))._from_config(config, dtype=torch.float32).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.05)
    arguments = batch_of(model, config, BATCH, case.seq).arguments
    sizes = {} if case.seq is None else {"seq": case.seq}
    trace = rematic.Trace.model(json.loads(json.dumps({"model_type": kind, **fields})), batch=BATCH, dtype="fp32", optimizer="none", **sizes)
    least = min(point.peak for point in rematic.curve(trace, 8, only=ONLY[kind]))
    plan = rematic.plan(trace, least, only=ONLY[kind])
    assert plan.peak < trace.peak() and plan.regions
    plain = gradients(model, arguments)
    rematic.apply(model, plan)
    planned = gradients(model, arguments)
    assert plain.keys() == planned.keys()
    assert all(torch.equal(plain[name], planned[name]) for name in plain)
