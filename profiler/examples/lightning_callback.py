"""Record a Lightning fit with the callback: two processes on this machine's CPU, without a launcher.

python lightning_callback.py runs/lightning
rankscope analyze runs/lightning
"""

from __future__ import annotations

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.profiler.integrations.lightning import RankscopeCallback


class Sums(LightningModule):
    """Network that learns to add numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def loss(self, batch: list[Tensor]) -> Tensor:
        """Return the mean squared error of a batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.network(inputs), targets)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of one training batch."""
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log the loss of one validation batch."""
        self.log("validation", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def loader(samples: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader of random numbers and their sums."""
    numbers = torch.randn(samples, 32)
    return DataLoader(TensorDataset(numbers, numbers.sum(dim=1, keepdim=True)), batch_size=8)


def main(run_dir: str) -> None:
    """Train for one epoch, two batches to a step, with a validation in the middle."""
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        accumulate_grad_batches=2,
        val_check_interval=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[RankscopeCallback(run_dir, window_first=5, window_every=0)],
    )
    trainer.fit(Sums(), loader(320), loader(64))
    print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
