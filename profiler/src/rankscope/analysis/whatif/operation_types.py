"""Types of operations of a traced training step, named as in the sample format. To add a type, add a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Meets = Literal["nobody", "neighbour", "replicas", "outer_stages", "everybody"]
"""Ranks that an operation waits for: none; the rank of the stage before or after; the same stage of all data-parallel
replicas; the first and the last stage of its own replica; every rank.
"""


@dataclass(frozen=True, slots=True)
class OperationType:
    """Type of operations.

    Its ideal duration is the median of the transfers if it ``communicates``, else the mean of the durations. ``part`` is its name
    in ``by_op`` if it differs from ``name``.
    """

    name: str
    communicates: bool = False
    meets: Meets = "nobody"
    part: str = ""

    @property
    def reported_as(self) -> str:
        """Name of the type in ``by_op``."""
        return self.part or self.name


FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
GATHER: Final = "params-all-gather"
REDUCE: Final = "grads-reduce-scatter"
SEPARATE: Final = "separate-grads-all-reduce"
COLLECTION: Final = "gc"
LAYERNORM: Final = "layernorm-grads-all-reduce"
EMBEDDING: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"

_FORWARD_TRANSFERS: Final = "forward-pp-comm"
_BACKWARD_TRANSFERS: Final = "backward-pp-comm"

TYPES: Final[tuple[OperationType, ...]] = (
    OperationType(FORWARD),
    OperationType(BACKWARD),
    OperationType("forward-send", communicates=True, meets="neighbour", part=_FORWARD_TRANSFERS),
    OperationType("forward-recv", communicates=True, meets="neighbour", part=_FORWARD_TRANSFERS),
    OperationType("backward-send", communicates=True, meets="neighbour", part=_BACKWARD_TRANSFERS),
    OperationType("backward-recv", communicates=True, meets="neighbour", part=_BACKWARD_TRANSFERS),
    OperationType(GATHER, communicates=True, meets="replicas"),
    OperationType(REDUCE, communicates=True, meets="replicas"),
    OperationType(SEPARATE, communicates=True, meets="replicas"),
    OperationType(COLLECTION),
    # Among tensor-parallel ranks, of which the format traces only one: the trace has no other rank to wait for.
    OperationType(LAYERNORM, communicates=True),
    OperationType(EMBEDDING, communicates=True, meets="outer_stages"),
    OperationType(CLIP, communicates=True, meets="everybody"),
    OperationType(OPTIMIZER),
)

CODES: Final[dict[str, int]] = {row.name: code for code, row in enumerate(TYPES)}
"""Name of a type to its row in ``TYPES``."""
