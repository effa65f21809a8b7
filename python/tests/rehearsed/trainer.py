"""A small Llama under the Trainer of transformers."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 1000, (128,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


config = LlamaConfig(
    vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4
)
with tempfile.TemporaryDirectory() as output:
    arguments = TrainingArguments(
        output, per_device_train_batch_size=8, max_steps=10, bf16=True, report_to=[], logging_steps=1
    )
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()
