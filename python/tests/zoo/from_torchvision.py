"""Models of torchvision: classification, segmentation, detection, video and optical flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import detection, optical_flow, segmentation, video
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

from .entry import CONVOLUTIONS, Build, Entry, floats, generator

models = torchvision.models


def images(make: Callable[..., Any], batch: int = 4, size: int = 64, **fields: Any) -> Callable[[str], Build]:
    """A network over a batch of images."""
    return over((batch, 3, size, size), make, **fields)


def over(shape: tuple[int, ...], make: Callable[..., Any], **fields: Any) -> Callable[[str], Build]:
    def build(device: str) -> Build:
        with torch.device(device):
            model = make(weights=None, **fields)
        return model, (floats(*shape),), {}

    return build


def clips(make: Callable[..., Any], frames: int = 8, size: int = 32, **fields: Any) -> Callable[[str], Build]:
    return over((2, 3, frames, size, size), make, num_classes=8, **fields)


def detector(make: Callable[..., Any], size: int, masks: bool = False, **fields: Any) -> Callable[[str], Build]:
    """A detector with two images and the boxes in them; it gives its losses."""

    def build(device: str) -> Build:
        with torch.device(device):
            model = make(weights=None, weights_backbone=None, num_classes=4, **fields)
        return model, (list(floats(2, 3, size, size).sigmoid()), [target(seed, size, masks) for seed in (1, 2)]), {}

    return build


def target(seed: int, size: int, masks: bool) -> dict[str, Tensor]:
    corners = torch.rand(3, 2, generator=generator(seed)) * size / 2
    made = {"boxes": torch.cat([corners, corners + size / 3], dim=1), "labels": torch.tensor([1, 2, 3])}
    return {**made, "masks": torch.ones(3, size, size, dtype=torch.uint8)} if masks else made


def resnext(weights: None) -> nn.Module:
    bottleneck = models.resnet.Bottleneck
    return models.ResNet(bottleneck, [1, 1, 1, 1], num_classes=8, groups=8, width_per_group=4)


def convnext(weights: None) -> nn.Module:
    settings = [models.convnext.CNBlockConfig(16, 32, 1), models.convnext.CNBlockConfig(32, None, 2)]
    return models.ConvNeXt(settings, stochastic_depth_prob=0.1, num_classes=8)


def fcn(weights: None) -> nn.Module:
    layers = {"layer3": "aux", "layer4": "out"}
    backbone = models._utils.IntermediateLayerGetter(models.resnet18(weights=None), return_layers=layers)
    return segmentation.FCN(backbone, segmentation.fcn.FCNHead(512, 4), segmentation.fcn.FCNHead(256, 4))


def video_resnet(convolution: type[nn.Module]) -> Callable[..., nn.Module]:
    def make(weights: None, num_classes: int) -> nn.Module:
        blocks, stem = video.resnet.BasicBlock, video.resnet.BasicStem
        return video.resnet.VideoResNet(blocks, [convolution] * 4, [1, 1, 1, 1], stem, num_classes=num_classes)

    return make


def mobilenet() -> nn.Module:
    return detection.backbone_utils.mobilenet_backbone("mobilenet_v3_large", weights=None, fpn=True)


def on_mobilenet(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    def make(weights: None, weights_backbone: None, **fields: Any) -> nn.Module:
        ratios = ((0.5, 1.0, 2.0) if kind is detection.RetinaNet else (1.0,),) * 3
        return kind(mobilenet(), anchor_generator=AnchorGenerator(((16,), (32,), (64,)), ratios), **fields)

    return make


def mask_rcnn(weights: None, weights_backbone: None, **fields: Any) -> nn.Module:
    backbone = mobilenet()
    anchors = AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3)
    pooling = MultiScaleRoIAlign(["0", "1"], output_size=7, sampling_ratio=2)
    return detection.MaskRCNN(backbone, rpn_anchor_generator=anchors, mask_roi_pool=pooling, box_roi_pool=pooling, **fields)


def headed(make: Callable[..., Any], features: int, batch: int) -> Callable[[str], Build]:
    """Without its classifier, which would be nearly all of its memory."""

    def build(device: str) -> Build:
        with torch.device("meta"):
            model = make(weights=None, init_weights=False) if "vgg" in make.__name__ else make(weights=None)
            model.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(features, 8))
        model.to_empty(device=device)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        return model, (floats(batch, 3, 64, 64),), {}

    return build


def raft(device: str) -> Build:
    with torch.device(device):
        model = optical_flow.raft_small(weights=None)
    return model, (floats(1, 3, 128, 128), floats(1, 3, 128, 128, seed=1)), {"num_flow_updates": 3}


def vision_transformer(device: str) -> Build:
    from torchvision.models.vision_transformer import VisionTransformer

    with torch.device(device):
        model = VisionTransformer(64, 8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128, dropout=0.1, num_classes=8)
    return model, (floats(4, 3, 64, 64),), {}


def swin(version: str) -> Callable[[str], Build]:
    def build(device: str) -> Build:
        from torchvision.models import swin_transformer as swins

        block = {"v1": swins.SwinTransformerBlock, "v2": swins.SwinTransformerBlockV2}[version]
        merging = {"v1": swins.PatchMerging, "v2": swins.PatchMergingV2}[version]
        with torch.device(device):
            model = swins.SwinTransformer(
                patch_size=[4, 4], embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=8,
                stochastic_depth_prob=0.1, block=block, downsample_layer=merging,
            )  # fmt: skip
        return model, (floats(4, 3, 64, 64),), {}

    return build


def maxvit(device: str) -> Build:
    from torchvision.models.maxvit import MaxVit

    with torch.device(device):
        model = MaxVit(
            input_size=(64, 64), stem_channels=16, partition_size=4, block_channels=[16, 32], block_layers=[1, 1], head_dim=8,
            stochastic_depth_prob=0.1, num_classes=8,
        )  # fmt: skip
    return model, (floats(4, 3, 64, 64),), {}


def mvit(device: str) -> Build:
    with torch.device(device):
        settings = [
            video.mvit.MSBlockConfig(1, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
            video.mvit.MSBlockConfig(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
        ]
        model = video.MViT((32, 32), 8, settings, residual_pool=False, residual_with_cls_embed=True, rel_pos_embed=False,
                           proj_after_attn=False, num_classes=8)  # fmt: skip
    return model, (floats(2, 3, 8, 32, 32),), {}


def swin3d(device: str) -> Build:
    with torch.device(device):
        model = video.SwinTransformer3d(
            patch_size=[2, 4, 4], embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4, 4], num_classes=8
        )
    return model, (floats(2, 3, 8, 64, 64),), {}


BUILDS: dict[str, Callable[[str], Build]] = {
    "alexnet": headed(models.alexnet, 256 * 36, batch=64),
    "vgg11_bn": headed(models.vgg11_bn, 512 * 49, batch=8),
    "squeezenet1_1": images(models.squeezenet1_1, num_classes=8),
    "resnet18": images(models.resnet18, batch=16, num_classes=8),
    "resnext": images(resnext, batch=8),
    "densenet121": images(models.densenet121, num_classes=8),
    "googlenet": images(models.googlenet, size=96, num_classes=8, init_weights=False),
    "mobilenet_v2": images(models.mobilenet_v2, num_classes=8),
    "mobilenet_v3_small": images(models.mobilenet_v3_small, batch=16, num_classes=8),
    "shufflenet_v2": images(models.shufflenet_v2_x0_5, batch=16, num_classes=8),
    "mnasnet0_5": images(models.mnasnet0_5, batch=8, num_classes=8),
    "efficientnet_b0": images(models.efficientnet_b0, num_classes=8),
    "regnet_y_400mf": images(models.regnet_y_400mf, num_classes=8),
    "convnext": images(convnext, batch=8),
    "vision_transformer": vision_transformer,
    "swin": swin("v1"),
    "swin_v2": swin("v2"),
    "maxvit": maxvit,
    "fcn": images(fcn),
    "deeplabv3_mobilenet": images(segmentation.deeplabv3_mobilenet_v3_large, weights_backbone=None, num_classes=4),
    "lraspp_mobilenet": images(segmentation.lraspp_mobilenet_v3_large, weights_backbone=None, num_classes=4),
    "fasterrcnn": detector(detection.fasterrcnn_mobilenet_v3_large_320_fpn, 96, min_size=96, max_size=96),
    "maskrcnn": detector(mask_rcnn, 96, masks=True, min_size=96, max_size=96),
    "retinanet": detector(on_mobilenet(detection.RetinaNet), 96, min_size=96, max_size=96),
    "fcos": detector(on_mobilenet(detection.FCOS), 96, min_size=96, max_size=96),
    "ssdlite": detector(detection.ssdlite320_mobilenet_v3_large, 320),
    "r3d": clips(video_resnet(video.resnet.Conv3DSimple), frames=4),
    "r2plus1d": clips(video_resnet(video.resnet.Conv2Plus1D), frames=4),
    "mvit": mvit,
    "swin3d": swin3d,
    "raft_small": raft,
}  # fmt: skip
BOXES = "which boxes are kept, and with them the shapes of what follows"
BY_WEIGHTS = dict.fromkeys(("fasterrcnn", "fcos", "maskrcnn", "ssdlite"), BOXES)
EXCEPTIONS: dict[str, dict[str, str]] = {
    "raft_small": {"least": "0.38 % above: gradients that meet are added in place, into a view that keeps a larger gradient"},
}
ENTRIES = [
    Entry(f"torchvision/{name}", build, CONVOLUTIONS, EXCEPTIONS.get(name, {}), BY_WEIGHTS.get(name, ""))
    for name, build in BUILDS.items()
]
