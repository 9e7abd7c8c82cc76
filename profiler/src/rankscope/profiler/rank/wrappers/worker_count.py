"""Number of worker processes of the script's data loader, noted when a loader begins to iterate: that costs nothing in a step."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

_workers: int | None = None


def watch() -> None:
    """Note the number of workers of each ``DataLoader`` that begins to iterate, on any thread."""
    original = _BaseDataLoaderIter.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        global _workers  # noqa: PLW0603  # the last loader counts
        original(self, *args, **kwargs)
        workers = getattr(self, "_num_workers", None)
        _workers = workers if isinstance(workers, int) else None

    _BaseDataLoaderIter.__init__ = init  # type: ignore[method-assign]


def worker_count() -> int | None:
    """Return ``num_workers`` of the loader that began to iterate last; ``None``: none has."""
    return _workers
