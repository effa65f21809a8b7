"""Fine-tune a Hugging Face model under a memory budget.

    python examples/huggingface.py                                  # a small Llama on the CPU, in seconds
    python examples/huggingface.py --budget 50%                     # as little as half of what it takes without a plan
    python examples/huggingface.py --config path/to/llama-3-8b/config.json --batch 2 --seq 8192 --dtype bf16 \\
        --device h200 --budget 125GiB --plan-only

With --plan-only the model is built without weights, so that even a large one is planned on a laptop.
"""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

import rematic

SMALL = LlamaConfig(
    vocab_size=1024, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description="Fine-tune a Hugging Face model under a memory budget.")
    parser.add_argument("--config", help="a config.json, or a folder with one; without it, a small Llama")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu", help='"cpu", or a name of `rematic devices`')
    parser.add_argument("--budget", default="70%", help="a size (70GiB), or a share of what the step takes (70%%)")
    parser.add_argument("--plan-only", action="store_true", help="plan, but do not train")
    args = parser.parse_args()
    if not args.plan_only and args.device != "cpu" and not torch.cuda.is_available():
        parser.error("this machine has no GPU to train on; add --plan-only")

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.config) if args.config else SMALL
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    where = "meta" if args.plan_only else "cpu" if args.device == "cpu" else "cuda"
    with torch.device(where):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    tokens = torch.randint(config.vocab_size, (args.batch, args.seq), device="cpu" if where == "meta" else where)
    batch = {"input_ids": tokens, "labels": tokens, "use_cache": False}

    # `rematic.auto` does all of this in one line. Step by step, the trace can answer questions of one's own: here, what
    # a share of the peak is.
    trace = rematic.capture(model, device="cpu" if args.device == "cpu" else "cuda", **batch)
    budget = args.budget
    if budget.endswith("%"):
        budget = int(trace.peak() * float(budget[:-1]) / 100)
    plan = rematic.plan(trace, budget, **({} if args.device == "cpu" else {"device": args.device}))
    print(plan)
    if args.plan_only:
        return
    rematic.apply(model, plan)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")
    print(f"promised peak: {plan.peak / 2**20:.1f} MiB instead of {plan.baseline_peak / 2**20:.1f} MiB")

    rematic.remove(model)  # the model is as it was, for evaluation or export


if __name__ == "__main__":
    main()
