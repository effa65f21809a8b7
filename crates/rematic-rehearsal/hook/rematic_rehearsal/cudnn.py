"""What cuDNN is used for, and what is not known about it: the runtime answers its functions, and runs none of its kernels."""

import ctypes

from rematic_rehearsal import assumptions
from rematic_rehearsal.reads import runtime

# By the numbers of `Use` in the runtime's cudnn.rs.
_UNKNOWN = {
    0: "cuDNN's convolutions take no workspace; a card's may, by the algorithm that cuDNN picks there",
    1: "cuDNN's attention takes what PyTorch lays out for it, and no workspace of its kernels beside that",
    2: "cuDNN keeps gates, cell states and outputs between layers for the backward of recurrent layers, and takes no workspace",
    3: "cuDNN's batch norm keeps nothing of its own for backward, and takes no workspace",
    4: "cuDNN takes no workspace",
}
# What C calls must not be collected.
_listener = None


def watch():
    """Called after PyTorch is imported."""
    global _listener
    _listener = ctypes.CFUNCTYPE(None, ctypes.c_int)(_used)
    runtime().rematic_listen_to_cudnn(_listener)


def _used(what):
    assumptions.assume(_UNKNOWN[what], line=False)


def finish():
    """The script is over."""
    if _listener is not None:
        runtime().rematic_listen_to_cudnn(None)
