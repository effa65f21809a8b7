"""An epoch of a loop with accelerate, under a memory budget.

    python examples/with_accelerate.py               # a small Llama on the CPU, in seconds
    python examples/with_accelerate.py --budget 9MiB
"""

import argparse

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

from rematic.integrations.accelerate import PlanHook

SMALL = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    use_cache=False,
)  # fmt: skip


def train(budget, **settings):
    """Trains with a plan for the budget, or without one; returns the model, and the plan."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, **settings)
    model = LlamaForCausalLM(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(torch.randint(256, (32, 64)), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    hook = None if budget is None else PlanHook(accelerator, model, optimizer, budget=budget)
    for tokens in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if hook is not None:
        hook.remove()
    return model, None if hook is None else hook.plan


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="9MiB", help="what a step may take")
    _, plan = train(parser.parse_args().budget)
    print(plan)


if __name__ == "__main__":
    main()
