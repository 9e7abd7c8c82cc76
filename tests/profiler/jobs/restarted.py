"""A rank that trains by itself, under an elastic agent of its own: ``restarted.py FOLDER NAME``.

In the first start A fails once B has trained, and B trains until its agent ends it; in the second both train to their end.
"""

import os
import sys
import time
from pathlib import Path

import torch

folder, name = Path(sys.argv[1]), sys.argv[2]
again = (folder / "failed").exists()
(folder / f"{name}-{int(again)}").write_text(f"{os.environ['RANK']} {os.environ['TORCHELASTIC_RESTART_COUNT']}")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps: int) -> None:
    """Train, without communication."""
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)


train(5)
while not again:
    train(1)
    (folder / f"{name}-trains").touch()
    if name == "A" and (folder / "B-trains").exists():
        (folder / "failed").touch()
        sys.exit(3)
