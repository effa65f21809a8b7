r"""Writes what torch's tools say about many steps as fixtures for the Rust tests.

    python make_golden.py                     # all cases
    python make_golden.py gpt2-bf16 llama-*   # those whose names match
    python make_golden.py --convert DIR       # the three dumps of the reference oracle (oracle/golden), not recomputed
    python make_golden.py --check DIR         # that this oracle says of those three steps what the dumps say
    python make_golden.py --random 200 --out DIR && REMATIC_FIXTURES=DIR cargo test -p rematic-torch \
        --test torch_parity -- --ignored      # steps that nobody chose

A fixture is JSON under zstd:

    setup       the model, its options and its config; enough to trace the same step natively
    versions    of torch and transformers
    peak        bytes per category at the highest point (CATEGORIES)
    timeline    columns: name (an index into names), phase (an index into PHASES), total (how it changes)
    modules     by full name: bytes of parameters, buffers, inputs and outputs; per state (STATES) bytes per category,
                or null where torch saw no such moment
    order       the orders in which modules begin and end forward and backward
    runtime_ms, mod_stats, baseline, sac        where torch can
"""
import argparse
import fnmatch
import json
import pathlib
import random

import zstandard

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent.parent / "crates/rematic-torch/tests/golden"
CATEGORIES = ["Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other"]
STATES = ["Pre-Forward", "Peak-Forward", "Post-Forward", "Pre-Backward", "Peak-Backward", "Post-Backward"]
PHASES = ["forward", "backward", "optimizer"]
# Fits of the tradeoff between memory and time: another stage's matter, and large.
SAC_FIELDS = ["sac_runtime", "sac_memory", "n_segments", "slopes", "intercepts", "breakpoints", "tradeoff_curve"]

SEED = {"model": "seed-transformer", "layers": 2, "dim": 64, "heads": 4, "vocab": 512, "dropout": 0.1, "batch": 2, "seq": 64}
GPT2 = {
    "model_type": "gpt2", "vocab_size": 512, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
}
LLAMA = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "attention_dropout": 0.0, "tie_word_embeddings": False,
}
ALL_HEADS = {"num_key_value_heads": 4}
WINDOW = {"sliding_window": 16}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": None}
QWEN2 = LLAMA | {"model_type": "qwen2"}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 32}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def seed(**changes):
    return SEED | changes


def hf(config, *changes, batch=2, seq=64, **options):
    for change in changes:
        config = config | change
    return {"model": "config", "config": config, "batch": batch, "seq": seq} | options


CASES = {
    # The Transformer of torch's tests.
    "seed-small": seed(),
    "seed-one-layer-one-head": seed(layers=1, heads=1),
    "seed-odd": seed(batch=3, seq=33, vocab=1001),
    "seed-batch-1": seed(batch=1),
    "seed-seq-1": seed(batch=2, seq=1),
    "seed-no-dropout": seed(dropout=0.0),
    "seed-wide": seed(layers=3, dim=192, heads=6, vocab=96, seq=128),
    "seed-bf16": seed(dtype="bf16"),
    "seed-fp16-odd": seed(dtype="fp16", batch=3, seq=33, vocab=1001, heads=1),
    "seed-bf16-batch-1": seed(dtype="bf16", batch=1, seq=40),
    "seed-adamw": seed(optimizer="adamw"),
    "seed-sgd": seed(optimizer="sgd"),
    "seed-sgd-momentum": seed(optimizer="sgd-momentum"),
    "seed-math": seed(attention="math", dropout=0.0),
    "seed-math-dropout": seed(attention="math"),
    "seed-math-batch-1": seed(attention="math", batch=1, heads=1, seq=33),
    "seed-seq-1-math": seed(attention="math", seq=1),
    "seed-bf16-math": seed(attention="math", dtype="bf16"),
    "seed-bf16-efficient": seed(attention="efficient", dtype="bf16"),
    # GPT-2.
    "gpt2-small": hf(GPT2),
    "gpt2-bf16": hf(GPT2, dtype="bf16"),
    "gpt2-fp16-odd": hf(GPT2, {"vocab_size": 1001}, batch=3, seq=33, dtype="fp16"),
    "gpt2-batch-1": hf(GPT2, batch=1, seq=128),
    "gpt2-bf16-batch-1": hf(GPT2, batch=1, dtype="bf16", optimizer="adamw"),
    "gpt2-inner-gelu": hf(GPT2, {"n_inner": 200, "activation_function": "gelu"}),
    "gpt2-relu-one-head": hf(GPT2, {"activation_function": "relu", "n_head": 1}),
    "gpt2-silu-untied": hf(GPT2, {"activation_function": "silu", "tie_word_embeddings": False}),
    "gpt2-gelu-tanh-no-dropout": hf(GPT2, NO_DROPOUT, {"activation_function": "gelu_pytorch_tanh"}),
    "gpt2-bf16-no-dropout-sgd": hf(GPT2, NO_DROPOUT, dtype="bf16", optimizer="sgd"),
    "gpt2-math": hf(GPT2, attention="math"),
    "gpt2-bf16-math-odd": hf(GPT2, batch=1, seq=33, dtype="bf16", attention="math"),
    "gpt2-seq-1-math": hf(GPT2, seq=1, attention="math"),
    "gpt2-fp16-efficient": hf(GPT2, dtype="fp16", attention="efficient"),
    # Llama.
    "llama-fp32": hf(LLAMA, ALL_HEADS),
    "llama-fp32-grouped": hf(LLAMA),
    "llama-fp32-grouped-batch-1": hf(LLAMA, {"num_key_value_heads": 1}, batch=1, seq=33),
    "llama-fp32-grouped-math": hf(LLAMA, attention="math"),
    "llama-fp32-one-head-math-batch-1": hf(LLAMA, {"num_key_value_heads": 1}, batch=1, seq=33, attention="math"),
    "llama-fp32-odd-width": hf(LLAMA, {"head_dim": 6}),
    "llama-fp16-odd-width": hf(LLAMA, {"head_dim": 20}, dtype="fp16"),
    "llama-bf16-wide": hf(LLAMA, {"head_dim": 264}, dtype="bf16"),
    "llama-fp32-batch-1": hf(LLAMA, ALL_HEADS, batch=1),
    "llama-bf16": hf(LLAMA, dtype="bf16"),
    "llama-bf16-batch-1": hf(LLAMA, batch=1, seq=1, dtype="bf16"),
    "llama-fp16-odd-one-head": hf(
        LLAMA, {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 1001}, batch=3, seq=33, dtype="fp16"
    ),
    "llama-bf16-tied-biases": hf(
        LLAMA, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}, dtype="bf16"
    ),
    "llama-fp32-biases-batch-1": hf(LLAMA, ALL_HEADS, {"attention_bias": True, "mlp_bias": True}, batch=1),
    "llama-head-dim-dropout": hf(LLAMA, ALL_HEADS, {"head_dim": 24, "attention_dropout": 0.1}),
    "llama-grouped-dropout": hf(LLAMA, {"attention_dropout": 0.1}),
    "llama-grouped-dropout-math": hf(LLAMA, {"attention_dropout": 0.1}, attention="math"),
    "llama-rope-llama3": hf(LLAMA, {"rope_scaling": LLAMA3_ROPE}, seq=37, dtype="bf16", optimizer="adamw"),
    "llama-bf16-math": hf(LLAMA, dtype="bf16", attention="math"),
    "llama-bf16-efficient": hf(LLAMA, ALL_HEADS, dtype="bf16", attention="efficient"),
    "llama-bf16-efficient-grouped": hf(LLAMA, dtype="bf16", attention="efficient"),
    "llama-gelu": hf(LLAMA, {"hidden_act": "gelu"}, dtype="bf16", optimizer="sgd-momentum"),
    "llama-seq-1-math": hf(LLAMA, seq=1, attention="math"),
    # Llama's relatives.
    "mistral-bf16": hf(MISTRAL, dtype="bf16"),
    "mistral-fp32-below-window": hf(MISTRAL, ALL_HEADS, {"sliding_window": 100, "head_dim": 16}),
    "mistral-batch-1": hf(MISTRAL, ALL_HEADS, batch=1),
    "mistral-window-fp32": hf(MISTRAL, ALL_HEADS, WINDOW),
    "mistral-window-bf16-grouped": hf(MISTRAL, WINDOW, dtype="bf16"),
    "mistral-window-odd-batch-1": hf(MISTRAL, WINDOW, {"attention_dropout": 0.1}, batch=1, seq=33),
    "mistral-window-one-key-head": hf(MISTRAL, WINDOW, {"num_key_value_heads": 1}, dtype="bf16"),
    "mistral-window-math": hf(MISTRAL, WINDOW, attention="math"),
    "mistral-window-bf16-math-batch-1": hf(MISTRAL, WINDOW, batch=1, dtype="bf16", attention="math"),
    "mistral-window-equals-seq": hf(MISTRAL, {"sliding_window": 64}, dtype="fp16"),
    "qwen2-bf16": hf(QWEN2, dtype="bf16"),
    "qwen2-fp32-tied": hf(QWEN2, ALL_HEADS, {"tie_word_embeddings": True}),
    "qwen2-fp32-grouped-batch-1": hf(QWEN2, batch=1),
    "qwen2-window-some-layers": hf(
        QWEN2, WINDOW, {"num_hidden_layers": 3, "use_sliding_window": True, "max_window_layers": 1}, dtype="bf16"
    ),
    "qwen2-window-no-layers": hf(
        QWEN2, WINDOW, {"use_sliding_window": True, "max_window_layers": 2}, dtype="bf16"
    ),
    "qwen2-window-all-layers-above-seq": hf(
        QWEN2, {"sliding_window": 65, "use_sliding_window": True, "max_window_layers": 0}
    ),
    "qwen3-bf16": hf(QWEN3, dtype="bf16"),
    "qwen3-window-layer-types": hf(
        QWEN3, ALL_HEADS, WINDOW,
        {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}, batch=1, seq=40,
    ),
    "qwen3-fp32": hf(QWEN3, ALL_HEADS, optimizer="adamw"),
    "qwen3-fp32-batch-1": hf(QWEN3, ALL_HEADS, batch=1, seq=33),
    "qwen3-bf16-batch-1-tied": hf(QWEN3, {"tie_word_embeddings": True, "attention_bias": True}, batch=1, dtype="bf16"),
}

# The reference oracle's own dumps, by the name of their file.
REFERENCE = ["seed-transformer", "gpt2", "llama-tiny"]


def is_memory_only(setup):
    """RuntimeEstimator refuses fused attention in half precision: its log-sum-exp is fp32 ("Only support single out dtype")."""
    return setup["dtype"] != "fp32" and setup["attention"] != "math"


def bytes_by_category(snapshot):
    assert snapshot["Total"] == sum(snapshot[category] for category in CATEGORIES), snapshot
    return [snapshot[category] for category in CATEGORIES]


def columns(timeline):
    timeline = [entry for entry in timeline if not entry[0].startswith("profiler.")]
    names = sorted({name for name, _, _ in timeline})
    totals = [total for _, _, total in timeline]
    return {
        "names": names,
        "name": [names.index(name) for name, _, _ in timeline],
        "phase": [PHASES.index(phase) for _, phase, _ in timeline],
        "total": [total - before for before, total in zip([0, *totals], totals)],
    }


def fixture(setup, dump, versions, with_sac=False):
    out = {
        "setup": setup,
        "versions": versions,
        "peak": bytes_by_category(dump["peak"]),
        "timeline": columns(dump["timeline"]),
        "modules": {
            name: {key: stats[key] for key in ("parameter", "buffer", "input", "output")} | {
                "snapshots": [
                    bytes_by_category(stats["snapshots"][state]) if state in stats["snapshots"] else None
                    for state in STATES
                ]
            }
            for name, stats in dump["modules"].items()
        },
    }
    assert all(set(stats["snapshots"]) <= set(STATES) for stats in dump["modules"].values())
    out |= {key: dump[key] for key in ("order", "runtime_ms", "baseline") if key in dump}
    if "runtime_ms" in out:
        # Torch walks a set.
        out["runtime_ms"] = {"total": dump["runtime_ms"]["total"], "modules": dict(sorted(dump["runtime_ms"]["modules"].items()))}
    if "mod_stats" in dump:
        out["mod_stats"] = [
            {key: value for key, value in node.items() if key not in SAC_FIELDS} for node in dump["mod_stats"]
        ]
    if with_sac:
        out["sac"] = dump["sac"]
    return out


def write(name, content, directory=GOLDEN):
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":")).encode()
    packed = zstandard.ZstdCompressor(level=22).compress(text)
    (directory / f"{name}.json.zst").write_bytes(packed)
    print(f"{name}: {len(content['timeline']['name'])} ops, {len(content['modules'])} modules, {len(packed)} bytes")


def references(directory):
    import transformers

    for name in REFERENCE:
        dump = json.loads((directory / "golden" / f"{name}.json").read_text())
        said = dump["setup"]
        setup = {key: said[key] for key in ("batch", "seq", "dtype")} | {"optimizer": "adam", "attention": "auto"}
        if said["kind"] == "seed":
            setup |= {"model": "seed-transformer"} | {
                key: said[key] for key in ("layers", "dim", "heads", "vocab", "dropout")
            }
        else:
            config = json.loads((directory / "configs" / said["config"]).read_text())
            setup |= {"model": "config", "config": config}
        versions = {"torch": said["torch"].split("+")[0], "transformers": transformers.__version__}
        yield name, setup, fixture(setup, dump, versions, with_sac=name == "seed-transformer")


def check(directory):
    import torch_tools

    for name, setup, expected in references(directory):
        with_sac = "sac" in expected
        dump = torch_tools.run(setup, is_memory_only(setup), with_sac)
        found = fixture(setup, dump, expected["versions"], with_sac)
        # Through JSON: tuples become lists.
        found = json.loads(json.dumps(found))
        different = [key for key in expected if found[key] != json.loads(json.dumps(expected[key]))]
        print(f"{name}: {'differs in ' + ', '.join(different) if different else 'the same'}")


def random_case(pick):
    """A small step of any kind that both sides support."""
    options = {
        "batch": pick.choice([1, 1, 2, 3]), "seq": pick.choice([1, 2, 16, 31, 33, 64, 100]),
        "dtype": pick.choice(["fp32", "bf16", "fp16"]), "optimizer": pick.choice(["adam", "adamw", "sgd", "sgd-momentum"]),
    }
    layers, heads, width = pick.choice([1, 2, 3]), pick.choice([1, 2, 4, 6]), pick.choice([6, 8, 16, 20, 24, 64])
    dropout = lambda: pick.choice([0.0, 0.1])
    vocab, flag = pick.choice([1, 97, 512, 1001]), lambda: pick.choice([True, False])
    family = pick.choice(["seed", "gpt2", "llama", "mistral", "qwen2", "qwen3"])
    windowed = False
    if family == "seed":
        case = {
            "model": "seed-transformer", "layers": layers, "dim": heads * width, "heads": heads, "vocab": vocab,
            "dropout": dropout(),
        }
    elif family == "gpt2":
        case = {"model": "config", "config": {
            "model_type": "gpt2", "vocab_size": vocab, "n_positions": 128, "n_embd": heads * width, "n_layer": layers,
            "n_head": heads, "n_inner": pick.choice([None, 40, 1]), "resid_pdrop": dropout(), "embd_pdrop": dropout(),
            "activation_function": pick.choice(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]),
            "attn_pdrop": dropout(), "tie_word_embeddings": flag(),
        }}
    else:
        groups = pick.choice([group for group in (1, 2, 3, 4, 6) if heads % group == 0])
        case = {"model": "config", "config": {
            "model_type": family, "vocab_size": vocab, "hidden_size": heads * width,
            "intermediate_size": pick.choice([1, 48, 200]), "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": heads // groups, "head_dim": pick.choice([width, 8, 40, 264]),
            "max_position_embeddings": 128, "hidden_act": pick.choice(["silu", "gelu", "relu", "gelu_pytorch_tanh"]),
            "attention_dropout": dropout(), "tie_word_embeddings": flag(),
        }}
        windowed = family != "llama" and flag()
        if family == "mistral":
            case["config"]["sliding_window"] = pick.choice([1, 16, 33, 64]) if windowed else None
        if family in ("qwen2", "qwen3"):
            case["config"] |= {
                "use_sliding_window": windowed, "sliding_window": pick.choice([1, 16, 33, 64]),
                "max_window_layers": pick.choice([0, 1, 2]),
            }
        if family in ("llama", "qwen3"):
            case["config"]["attention_bias"] = flag()
        if family == "llama":
            case["config"]["mlp_bias"] = flag()
        if family == "qwen2":
            case["config"]["head_dim"] = width
    kernels = ["auto", "auto", "math"]
    wide = case.get("config", {}).get("head_dim", width)
    if options["dtype"] != "fp32" and not windowed and wide <= 256:
        kernels.append("flash")
    if wide % (4 if options["dtype"] == "fp32" else 8) == 0:
        kernels.append("efficient")
    return case | options | {"attention": pick.choice(kernels)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["*"], help="patterns of the cases to write")
    parser.add_argument("--convert", type=pathlib.Path, metavar="DIR", help="convert the dumps below DIR instead")
    parser.add_argument("--check", type=pathlib.Path, metavar="DIR", help="compare with the dumps below DIR instead")
    parser.add_argument("--random", type=int, metavar="N", help="random cases instead; needs --out")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases")
    parser.add_argument("--out", type=pathlib.Path, default=GOLDEN, metavar="DIR")
    args = parser.parse_args()
    if args.random and args.out == GOLDEN:
        parser.error("--random needs --out")
    if args.convert:
        for name, _, content in references(args.convert):
            write(name, content, args.out)
        return
    if args.check:
        return check(args.check)

    import torch
    import torch_tools
    import transformers

    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    cases = CASES
    if args.random:
        pick = random.Random(args.seed)
        cases = {f"random-{args.seed}-{number:04}": random_case(pick) for number in range(args.random)}
    for name, case in cases.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in args.names):
            setup = {"dtype": "fp32", "optimizer": "adam", "attention": "auto"} | case
            write(name, fixture(setup, torch_tools.run(setup, is_memory_only(setup)), versions), args.out)


if __name__ == "__main__":
    main()
