"""A torchvision network under Lightning's Trainer, in channels-last."""

import lightning
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet18(num_classes=10).to(memory_format=torch.channels_last)

    def training_step(self, batch, _index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x.to(memory_format=torch.channels_last)), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = DataLoader(TensorDataset(torch.randn(64, 3, 128, 128), torch.randint(10, (64,))), batch_size=16)
trainer = lightning.Trainer(
    max_epochs=2, precision="bf16-mixed", benchmark=True, logger=False, enable_checkpointing=False
)
trainer.fit(Net(), data)
