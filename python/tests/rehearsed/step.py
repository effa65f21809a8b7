"""Three steps of a model, as the fake GPU that the figures of the tests come from runs them."""

import sys

import torch


def seed():
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    model = Transformer(ModelArgs(n_layers=4, n_heads=12, vocab_size=8192, max_seq_len=1024, dim=768, dropout_p=0.1))
    return model, (8, 1024), lambda model, tokens: model(tokens), lambda output: output.sum()


def gpt2():
    from transformers import AutoModelForCausalLM, GPT2Config

    model = AutoModelForCausalLM.from_config(GPT2Config(), attn_implementation="sdpa", dtype=torch.float32)
    return model, (4, 512), lambda m, t: m(input_ids=t, labels=t, use_cache=False), lambda output: output.loss


torch.backends.cuda.enable_cudnn_sdp(False)
with torch.device("cuda"):
    model, shape, forward, loss = {"seed": seed, "gpt2": gpt2}[sys.argv[1]]()
model.train()
tokens = torch.zeros(*shape, dtype=torch.long, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    output = forward(model, tokens)
    value = loss(output)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
