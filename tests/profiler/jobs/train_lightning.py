"""Lightning on two ranks that knows nothing of rankscope: two batches to a step, two validations in the middle of each epoch."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

RANKS = 2


class Sums(LightningModule):
    """Model that learns to add."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(16, 1)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        loss: Tensor = (self.network(inputs) - targets).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        self.training_step(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(batches: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader with ``batches`` of four for every rank."""
    numbers = torch.randn(batches * 4 * RANKS, 16)
    return DataLoader(TensorDataset(numbers, numbers.sum(dim=1, keepdim=True)), batch_size=4)


if __name__ == "__main__":
    trainer = Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=2,
        val_check_interval=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Sums(), loader(9), loader(3))
    print(f"{trainer.global_step} steps", flush=True)
