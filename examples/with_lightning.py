"""An epoch with the Trainer of Lightning, under a memory budget.

    python examples/with_lightning.py                # a small transformer on the CPU, in seconds
    python examples/with_lightning.py --budget 20MiB
"""

import argparse

import lightning
import torch
from torch import nn

from rematic.integrations.lightning import PlanCallback


class Classifier(lightning.LightningModule):
    """Training enters through `training_step`, which calls a part of the module."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def training_step(self, batch, index):
        points, labels = batch
        loss = nn.functional.cross_entropy(self.head(self.encoder(points).mean(1)), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(budget, **settings):
    """Trains with a plan for the budget, or without one; returns the module, and the plan."""
    torch.manual_seed(0)
    module = Classifier()
    data = torch.utils.data.TensorDataset(torch.randn(32, 64, 64), torch.randint(10, (32,)))
    callbacks = [] if budget is None else [PlanCallback(budget=budget)]
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=callbacks, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **settings,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    return module, callbacks[0].plan if callbacks else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="20MiB", help="what a step may take")
    _, plan = train(parser.parse_args().budget)
    print(plan)


if __name__ == "__main__":
    main()
