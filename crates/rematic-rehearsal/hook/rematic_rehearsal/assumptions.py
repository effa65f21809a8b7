"""What a rehearsal assumes where values would decide; each is told in the answer."""

from rematic_rehearsal import report


def assume(text):
    """Tells an assumption, once."""
    assumed = report.said("assumed", [])
    if text not in assumed:
        report.write(assumed=[*assumed, text])


def without_cudnn(torch):
    """cuDNN is not there: its attention and convolutions are those of PyTorch itself."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False


def not_packed(masking):
    """transformers asks the device whether several sequences are packed into one; zeros would mean yes."""
    if hasattr(masking, "find_packed_sequence_indices"):
        def none_packed(*_arguments, **_keywords):
            assume("sequences are not packed (transformers asks the positions)")

        masking.find_packed_sequence_indices = none_packed
