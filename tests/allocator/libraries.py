"""Models of other libraries than transformers, with a loss as those of transformers have one."""
from typing import Any

import torch


class Judged(torch.nn.Module):
    """A model whose output is compared with what it should be."""

    def __init__(self, inner: torch.nn.Module, loss: torch.nn.Module):
        super().__init__()
        self.inner, self.loss = inner, loss

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> Any:
        from transformers.modeling_outputs import ImageClassifierOutput

        output = self.inner(**inputs)
        return ImageClassifierOutput(loss=self.loss(getattr(output, "sample", output), labels))


def from_timm(name: str, **fields: Any) -> torch.nn.Module:
    import timm

    return Judged(timm.create_model(name, **fields), torch.nn.CrossEntropyLoss())


def from_torchvision(name: str, **fields: Any) -> torch.nn.Module:
    import torchvision

    return Judged(torchvision.models.get_model(name, **fields), torch.nn.CrossEntropyLoss())


def from_diffusers(name: str, **fields: Any) -> torch.nn.Module:
    import diffusers

    return Judged(getattr(diffusers, name)(**fields), torch.nn.MSELoss())
