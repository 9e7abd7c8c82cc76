"""Fits of one process with the callback, in a folder of its own: a validation alone, the page's example, then others.

Its argument is a file with the example. It is imported under Lightning's other name than ``train_lightning.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import DeviceStatsMonitor, ModelCheckpoint
from pytorch_lightning.callbacks.progress.progress_bar import get_standard_metrics
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.profiler.integrations.lightning import RankscopeCallback


class Sums(lightning.LightningModule):
    """Model that learns to add and reports the cost of a batch."""

    flops_per_batch = 1000

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.network = nn.Linear(16, 1)
        self.fails_at = fails_at

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        if number == self.fails_at:
            raise RuntimeError("the module's own error")
        inputs, targets = batch
        loss: Tensor = (self.network(inputs) - targets).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.training_step(batch, number)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Logging(Sums):
    """Model that logs its loss, the number of the batch, and a number that is not finite."""

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        loss = super().training_step(batch, number)
        self.shown = get_standard_metrics(self.trainer)
        self.log_dict({"loss": loss, "batch": float(number), "undefined": float("nan")})
        # as scripts do to reach W&B or TensorBoard
        for logger in self.loggers:
            if not isinstance(logger, CSVLogger):
                logger.experiment.add_image(number)
                logger.watch(self)
        return loss


class Rivals(Sums):
    """Model with two optimizers that take turns on every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], number: int) -> None:  # type: ignore[override]  # the loss goes nowhere
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.network(batch[0]).mean())
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]  # as above
        return [torch.optim.SGD(self.parameters(), lr=0.01) for _ in range(2)]


def batches(samples: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return batches of four, the last one smaller."""
    numbers = torch.randn(samples, 16)
    return DataLoader(TensorDataset(numbers, numbers.sum(dim=1, keepdim=True)), batch_size=4)


def Trainer(**options: Any) -> lightning.Trainer:  # noqa: N802  # what the example calls
    """Trainer without files and output, on the CPU, with one validation."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet | options)


if __name__ == "__main__":
    # given the names that the example leaves to the user
    model, loader = Sums(), batches(18)
    # when only validated, in a process that may record
    Trainer(callbacks=[RankscopeCallback("runs/none")]).validate(model, loader)
    # when fitted as in the example
    exec(Path(sys.argv[1]).read_text().replace("from lightning.pytorch import Trainer\n", ""))
    # when fitted again, with validations and a checkpoint in the middle, tokens counted
    callback = RankscopeCallback("runs/first", tokens=lambda batch: len(batch[0]) * 10, window_steps=0)
    trainer = Trainer(callbacks=[callback], accumulate_grad_batches=2, val_check_interval=2)
    trainer.fit(model, loader, batches(4))
    print(f"{trainer.global_step} steps", flush=True)
    # when a fit fails
    try:
        Trainer(callbacks=[RankscopeCallback("runs/first")]).fit(Sums(fails_at=3), loader)
    except RuntimeError as error:
        print(error, flush=True)
    # when the callback itself fails
    trainer = Trainer(callbacks=[RankscopeCallback("runs/first", tokens=lambda batch: batch.no_such_thing)])
    trainer.fit(model, loader)
    print(f"{trainer.global_step} steps", flush=True)
    # when two optimizers take turns
    trainer = Trainer(callbacks=[RankscopeCallback("runs/first")])
    trainer.fit(Rivals(), loader)
    print(f"{trainer.global_step} steps", flush=True)
    # when metrics are logged after every second batch, to files beside which the checkpoint lies
    csv = CSVLogger("logs", version=1234)
    kept = ModelCheckpoint()
    callbacks = [DeviceStatsMonitor(), kept, RankscopeCallback("runs/first")]
    trainer = Trainer(callbacks=callbacks, logger=csv, enable_checkpointing=True, log_every_n_steps=2)
    model = Logging()
    trainer.fit(model, loader)
    print(f"logged {trainer.loggers == [csv]} {model.shown} {kept.best_model_path}")
    # and when there is no logger to log to
    Trainer(callbacks=[RankscopeCallback("runs/first")]).fit(Logging(), loader)
