"""A Hugging Face ``Trainer`` that knows nothing of rankscope: two batches to a step, evaluations and checkpoints between."""

from __future__ import annotations

import os
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

BATCH = 4


class Sequences(Dataset[dict[str, Tensor]]):
    """Dataset with ``batches`` for every rank."""

    def __init__(self, batches: int) -> None:
        self._size = batches * BATCH * int(os.environ.get("WORLD_SIZE", "1"))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(16) * (index + 1)) % 64
        return {"input_ids": tokens, "labels": tokens}


def model() -> GPT2LMHeadModel:
    """Return an untrained language model."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))


def arguments(folder: str) -> TrainingArguments:
    """Return arguments for two epochs."""
    return TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=6,
        logging_strategy="steps",
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model(), arguments(folder), train_dataset=Sequences(9), eval_dataset=Sequences(3))
        trainer.train()
    print(f"{trainer.state.global_step} steps", flush=True)
