"""Networks with convolutions, attention over patches, and recurrent layers, as their libraries build them; half in bf16."""

import sys

import torch
from torch import nn


class Double(nn.Sequential):
    """Two convolutions of a U-Net."""

    def __init__(self, inputs, outputs):
        layers = []
        for width in (inputs, outputs):
            layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner = Double(3, 32), Double(32, 64)
        self.pool, self.up = nn.MaxPool2d(2), nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.out = nn.Sequential(Double(64, 32), nn.Conv2d(32, 2, 1))

    def forward(self, x):
        skipped = self.down(x)
        return self.out(torch.cat([skipped, self.up(self.inner(self.pool(skipped)))], dim=1))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(64, 128, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True)
        self.out = nn.Linear(256, 9)

    def forward(self, x):
        return self.out(self.layers(x)[0])


def built(name):
    """A model, its input, and what it says as one tensor."""
    images = torch.randn(8, 3, 224, 224)
    if name == "unet":
        return UNet(), images, lambda result: result
    if name == "lstm":
        return Tagger(), torch.randn(8, 100, 64), lambda result: result
    if name == "resnet":
        import torchvision

        return torchvision.models.resnet50(), images, lambda result: result
    import transformers

    if name == "vit":
        model = transformers.ViTForImageClassification(transformers.ViTConfig(num_hidden_layers=4))
        return model, images, lambda result: result.logits
    config = transformers.WhisperConfig(
        d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4
    )
    model = transformers.WhisperForConditionalGeneration(config)
    words = torch.randint(100, (2, 64), device="cuda")
    forward = model.forward
    model.forward = lambda sound: forward(input_features=sound, decoder_input_ids=words)
    return model, torch.randn(2, 80, 3000), lambda result: result.logits


def main():
    model, batch, say = built(sys.argv[1])
    model, batch = model.cuda().train(), batch.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(100):
        with torch.autocast("cuda", torch.bfloat16, enabled=step % 2 == 1):
            loss = say(model(batch)).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
