"""An epoch with TRL's SFTTrainer, under a memory budget.

    python examples/with_trl.py                      # a small Llama on the CPU, in seconds
    python examples/with_trl.py --budget 78MiB
"""

import argparse
import tempfile

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

from rematic.integrations.transformers import PlanCallback

SMALL = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    pad_token_id=0,
)  # fmt: skip


def tokenizer():
    """A tokenizer of bytes: none has to be downloaded."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {chr(number): number for number in range(256)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=chr(1)))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=chr(0), eos_token=chr(2), unk_token=chr(1))


def train(budget, **settings):
    """Trains with a plan for the budget, or without one; returns the model, and the plan."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMALL)
    data = Dataset.from_dict({"input_ids": torch.randint(3, 256, (32, 64)).tolist()})
    with tempfile.TemporaryDirectory() as place:
        # The plan decides what is recomputed; TRL would recompute every layer.
        arguments = SFTConfig(
            place, per_device_train_batch_size=8, num_train_epochs=1, learning_rate=1e-3, use_cpu=True, bf16=False,
            gradient_checkpointing=False, report_to=[], save_strategy="no", disable_tqdm=True, **settings,
        )  # fmt: skip
        trainer = SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer())
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
    parser.add_argument("--budget", default="76MiB", help="what a step may take")
    _, plan = train(parser.parse_args().budget)
    print(plan)


if __name__ == "__main__":
    main()
