"""What operators take from torch's allocator while they run, besides what they return: measured on the fake GPU.

    FAKEGPU_SM=80 run scratch.py OUT [SEED]      (and with FAKEGPU_SM=90)
    scratch.py OUT SEED convolutions             on the runtime of rehearsals, which answers cuDNN

One line for each call: capability and multiprocessors, operator (and `random`, if it draws numbers, `backward`, if it does what
it does in backward, or `cudnn`, if that is there), layouts of what it reads and returns, and what happens inside:
`oN` where the Nth output is made, a number where so many bytes are taken, `-N` where the Nth of these is given back.
A layout is `dtype[shape]`, with `:[strides]` if it is not contiguous (of convolutions, where another one has other strides, if only
for extents of 1). `crates/rematic-replay/tests/scratch` compares the rules with it.
"""
import itertools
import sys

import kernels
import torch
from calls import Cases

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64", torch.bool: "bool",
         torch.uint64: "u64", torch.int32: "i32", torch.float64: "f64", torch.uint8: "u8"}  # fmt: skip


def layout(tensor, to_the_letter=False):
    shape, strides = list(tensor.shape), list(tensor.stride())
    text = f"{NAMES[tensor.dtype]}{shape}".replace(" ", "")
    is_plain = strides == list(torch.empty(shape, device="meta").stride()) if to_the_letter else tensor.is_contiguous()
    return text if is_plain else f"{text}:{strides}".replace(" ", "")


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in tensors(each)] if isinstance(value, list | tuple) else []


def history():
    return [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] in ("alloc", "free_completed")]


def measure(operator, args, options):
    """One call, after one that has made handles and the like."""
    operator(*args, **options)
    torch.cuda.memory._record_memory_history(max_entries=10**6, context=None)
    outputs = tensors(operator(*args, **options))
    entries = history()
    torch.cuda.memory._record_memory_history(None)
    made = {tensor.untyped_storage().data_ptr(): at for at, tensor in enumerate(outputs) if tensor.is_cuda}
    last = {entry["addr"]: at for at, entry in enumerate(entries) if entry["action"] == "alloc"}
    inside, taken = [], {}
    for at, entry in enumerate(entries):
        address = entry["addr"]
        if entry["action"] == "alloc":
            if address in made and last[address] == at:
                inside.append(f"o{made[address]}")
            else:
                taken[address] = sum(each.isdigit() for each in inside)
                inside.append(str(entry["size"]))
        elif address in taken:
            inside.append(f"-{taken.pop(address)}")
        else:
            inside.append("-?")
    # Wrapped: a schema has lists of tensors too.
    convolves = "convolution" in str(operator)
    read = [layout(tensor, convolves) for tensor in tensors([*args, *options.values()]) if tensor.is_cuda]
    return read, [layout(tensor, convolves) for tensor in outputs], inside


def main():
    out, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    convolves = sys.argv[3:] == ["convolutions"]
    torch.backends.cudnn.enabled = convolves
    properties = torch.cuda.get_device_properties(0)
    card = f"{10 * properties.major + properties.minor} {properties.multi_processor_count}"
    with open(out, "w") as file:
        cases = Cases(seed)
        for operator, args, *options in cases.convolutions() if convolves else itertools.chain(cases.all(), kernels.all(Cases(seed))):
            name = str(operator).removeprefix("aten.")
            if "flash_attention.default" in name and args[3]:
                name += " random"
            elif "index_put" in name and args[3]:
                name += " backward"
            elif convolves:
                name += " cudnn"
            try:
                read, made, inside = measure(operator, args, *options or [{}])
            except (RuntimeError, NotImplementedError) as error:
                print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            file.write("\t".join([card, name, " ".join(read), " ".join(made), " ".join(inside)]) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
