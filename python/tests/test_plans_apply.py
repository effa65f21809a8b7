"""Every plan that is made can be applied: a small share of what `plans_apply.py` tries."""

from __future__ import annotations

import pytest
import torch

from plans_apply import try_plans
from writing_models import WRITING

PLANS = 6


@pytest.mark.parametrize("name", WRITING)
def test_plans_can_be_applied_and_change_no_value(name: str) -> None:
    torch.set_num_threads(1)
    said: list[str] = []
    count = try_plans(name, WRITING[name], PLANS, report=said.append)
    assert count.plans and not said, said
