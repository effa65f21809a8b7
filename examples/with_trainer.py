"""An epoch with the Trainer of transformers, under a memory budget.

    python examples/with_trainer.py                  # a small Llama on the CPU, in seconds
    python examples/with_trainer.py --budget 9MiB
"""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from rematic.integrations.transformers import PlanCallback

SMALL = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    use_cache=False,
)  # fmt: skip


def train(budget, **settings):
    """Trains with a plan for the budget, or without one; returns the model, and the plan."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMALL)
    tokens = torch.randint(256, (32, 64))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            place, per_device_train_batch_size=8, num_train_epochs=1, learning_rate=1e-3, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1, disable_tqdm=True, **settings,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data)
        plan = None
        if budget is not None:
            callback = PlanCallback(trainer, budget=budget)
            trainer.add_callback(callback)
        trainer.train()
        if budget is not None:
            plan = callback.plan
    return model, plan


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="9MiB", help="what a step may take")
    _, plan = train(parser.parse_args().budget)
    print(plan)


if __name__ == "__main__":
    main()
