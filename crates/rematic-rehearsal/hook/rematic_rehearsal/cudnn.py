"""cuDNN is not there: PyTorch's own kernels stand in for it, and what that changes is told."""

from rematic_rehearsal import assumptions, values

# What PyTorch takes for convolutions without cuDNN.
_CONVOLUTIONS = (
    "_slow_conv2d_forward", "_conv_depthwise2d", "conv_depthwise3d", "slow_conv_dilated2d", "slow_conv_dilated3d",
    "slow_conv_transpose2d", "slow_conv_transpose3d",
)
_WORKSPACE = "convolutions take PyTorch's own kernels and a small buffer; cuDNN's, and its workspace, are not counted"
_STEP_BY_STEP = "recurrent layers run step by step in PyTorch's own kernels, which keep other tensors for backward than cuDNN does"
_torch = None


def without(torch):
    """Its attention, convolutions and recurrent layers are those of PyTorch itself."""
    global _torch
    _torch = torch
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False


def watch(library):
    """Called after PyTorch is imported: convolutions are noticed, called by a module or not."""
    for name in _CONVOLUTIONS:
        kernel = values.kernel_of(name)
        if kernel is not None:
            library.impl(name, _noticed(kernel), "CUDA", with_keyset=True, allow_override=True)


def _noticed(kernel):
    def run(keys, *arguments, **keywords):
        assumptions.assume(_WORKSPACE, line=False)
        return kernel.call_boxed(keys, *arguments, **keywords)

    return run


def entered(module):
    """A module is called."""
    if isinstance(module, _torch.nn.RNNBase):
        assumptions.assume(_STEP_BY_STEP, line=False)
