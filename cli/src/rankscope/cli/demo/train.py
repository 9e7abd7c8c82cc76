"""A small transformer language model trained with DistributedDataParallel on generated text.

It knows nothing of rankscope: this is what a user's script looks like. Start it with torchrun.
``--fault KIND:RANK`` makes one rank slow in one way:

* ``input:R``      rank R's dataset takes longer per batch
* ``host:R``       rank R's Python code pauses in the forward pass
* ``backward:R``   rank R pauses late in the backward pass, just before its last gradient is ready
* ``imbalance:R``  rank R's sequences are longer
* ``none``         nothing
"""

from __future__ import annotations

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SUBJECTS = ["the rank", "a slow host", "every worker", "one kernel", "the scheduler", "this gradient", "a full queue"]
VERBS = ["waits for", "sends", "reduces", "delays", "overlaps", "copies", "profiles"]
VOCABULARY = 128
FAULTS = ("input", "host", "backward", "imbalance")


class GeneratedText(Dataset[Tensor]):
    """Sentences made up on the fly, as byte tokens of a fixed length."""

    def __init__(self, *, length: int, seed: int, pause: float) -> None:
        self.length = length
        self.seed = seed
        self.pause = pause

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        if self.pause:
            time.sleep(self.pause)  # the planted fault: slow storage, a heavy transform
        rng = random.Random(self.seed * 1_000_003 + index)  # noqa: S311  # text, not secrets
        text = ""
        while len(text) <= self.length:
            text += f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(SUBJECTS)}. "
        return torch.tensor([ord(letter) % VOCABULARY for letter in text[: self.length + 1]])


class LanguageModel(nn.Module):
    """Embedding, a few causal transformer layers, and a projection back to the vocabulary."""

    def __init__(self, *, width: int, layers: int, pause: float) -> None:
        super().__init__()
        self.pause = pause
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of the next token."""
        if self.pause:
            time.sleep(self.pause)  # the planted fault: a log line to slow storage, a lock, a busy host
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.head(self.body(self.embed(tokens), mask=mask, is_causal=True))
        return logits


def choose_device(local_rank: int, local_world: int) -> tuple[torch.device, str]:
    """CUDA where there is one, with NCCL where every rank gets a GPU of its own; else the CPU with gloo."""
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return torch.device("cpu"), "gloo"
    device = torch.device("cuda", local_rank % gpus)
    torch.cuda.set_device(device)
    return device, "nccl" if gpus >= local_world else "gloo"


def planted(text: str) -> tuple[str, int]:
    """Kind and rank of ``KIND:RANK``; rank -1 for ``none``."""
    kind, _, rank = text.partition(":")
    if text == "none":
        return kind, -1
    if kind not in FAULTS or not (rank.isascii() and rank.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected {', '.join(FAULTS)}, each with :RANK, or none; not {text!r}")
    return kind, int(rank)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", type=planted, default="none", help="KIND:RANK, or none")
    parser.add_argument("--fault-ms", type=float, default=80.0, help="length of the planted pause per step")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    torch.set_num_threads(1)
    device, backend = choose_device(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    dist.init_process_group(backend)
    rank = dist.get_rank()

    kind, target = args.fault
    at_fault = rank == target
    pause = args.fault_ms / 1000 if at_fault else 0.0

    torch.manual_seed(0)
    data = GeneratedText(
        length=args.length * (4 if at_fault and kind == "imbalance" else 1),
        seed=rank,
        pause=pause / args.batch if kind == "input" else 0.0,
    )
    model = LanguageModel(width=args.width, layers=args.layers, pause=pause if kind == "host" else 0.0).to(device)
    if pause and kind == "backward":
        # The embedding's gradient is the last to be ready.
        model.embed.weight.register_hook(lambda _gradient: time.sleep(pause))  # type: ignore[no-untyped-call,unused-ignore]
    parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=3e-4)
    loss_function = nn.CrossEntropyLoss()

    for step, tokens in enumerate(DataLoader(data, batch_size=args.batch)):
        if step == args.steps:
            break
        batch = tokens.to(device)
        optimizer.zero_grad()
        logits = parallel(batch[:, :-1])
        loss = loss_function(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1:4d}  loss {loss.item():.3f}", flush=True)
    # Gloo may hang when it is destroyed while a thread of its own still holds the last gradients (pytorch issue 190489).
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
