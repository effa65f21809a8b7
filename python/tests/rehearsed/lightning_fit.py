"""A small network under Lightning's Trainer."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch, _index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = DataLoader(TensorDataset(torch.randn(640, 64), torch.randint(10, (640,))), batch_size=64)
trainer = lightning.Trainer(max_epochs=2, precision="bf16-mixed", logger=False, enable_checkpointing=False)
trainer.fit(Net(), data)
