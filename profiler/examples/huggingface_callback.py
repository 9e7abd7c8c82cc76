"""Record a Hugging Face ``Trainer`` with the callback, on a small untrained language model.

torchrun --standalone --nproc-per-node 2 huggingface_callback.py runs/huggingface
rankscope analyze runs/huggingface
"""

from __future__ import annotations

import sys
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rankscope.profiler.integrations.huggingface import RankscopeCallback


class Sequences(Dataset[dict[str, Tensor]]):
    """Token sequences computed from their index."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(16) * (index + 1)) % 64
        return {"input_ids": tokens, "labels": tokens}


def main(run_dir: str) -> None:
    """Train for one epoch, two batches to a step, with evaluations and a checkpoint in between."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=4,
            save_steps=6,
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            args,
            train_dataset=Sequences(160),
            eval_dataset=Sequences(16),
            callbacks=[RankscopeCallback(run_dir, window_first=5, window_every=0)],
        )
        trainer.train()
    print(f"{trainer.state.global_step} steps")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
