"""What the texts of models begin with: imports, and the classes and functions that they use."""

from __future__ import annotations

HEAD = """\
import collections, dataclasses, functools, itertools, random, types
import numpy, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

B, T, W = {shape}
"""

# By a word that shows that a text uses one.
HELPERS = {
    "Record(": """\
@dataclasses.dataclass
class Record:
    a: object
    b: list
""",
    "Thing(": """\
class Thing:
    def __init__(self, a, b):
        self.a, self.b = a, b
""",
    "Slotted(": """\
class Slotted:
    __slots__ = ("a",)
    def __init__(self, a):
        self.a = a
    def value(self):
        return self.a * 0.5
    def bump(self):
        self.a += 0.5
""",
    "Output(": """\
@dataclasses.dataclass
class Output:
    out: torch.Tensor
    side: object = None
""",
    "default_dtype(": """\
class default_dtype:
    def __init__(self, dtype):
        self.dtype = dtype
    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
    def __exit__(self, *error):
        torch.set_default_dtype(self.before)
""",
    "Doubled.": """\
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * 2 + x * 0.01
""",
    "Runner(": """\
class Runner(nn.Module):
    def forward(self, child, x):
        return child(x).tanh()
""",
    "scale_output": """\
def scale_output(module, args, output):
    return output * 1.5
""",
    "count_calls": """\
def count_calls(module, args, output):
    module.seen = getattr(module, "seen", 0) + 1
""",
    "scale_input": """\
def scale_input(module, args):
    return (args[0] * 0.5,)
""",
    "log_gradient": """\
LOG = []
def log_gradient(module, given, got):
    LOG.append(len(given))
""",
    "HOOKED": """\
HOOKED = []
""",
}
