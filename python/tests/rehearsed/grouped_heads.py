"""A Llama with few keys for many queries, in bf16: attention is where most memory is."""

import torch
import transformers

CONFIG = {
    "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 4096,
}  # fmt: skip

if __name__ == "__main__":
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).train()
        tokens = torch.zeros(4, 2048, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        output = model(input_ids=tokens, labels=tokens, use_cache=False)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
