"""Rank that called a collective, by the arguments of its call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankscope.analysis.operations import operation, operation_name
from rankscope.analysis.trace.schema import EventArgs, integer


def called_rank(args: EventArgs, group: Sequence[int] | None, world_size: int | None) -> int | None:
    """Return the rank that called a collective; ``None`` where its arguments do not tell.

    ``group``: ranks of its process group, where known. A list of more than 30 ranks is cut in the arguments.
    """
    position = integer(args.rank)
    # With a root or a peer, it is their position in the group.
    if position is None or operation(operation_name(args.collective or "")).family is None:
        return None
    size = integer(args.group_size)
    listed = [int(rank) for rank in re.findall(r"\d{1,9}", str(args.group_ranks or ""))]
    if group is None and listed and (size is None or len(listed) == size):
        group = listed
    if group is not None:
        return group[position] if position < len(group) else None
    covers_job = size is not None and size == world_size and not listed
    begins_with_the_job = "..." in str(args.group_ranks) and listed[:2] == [0, 1]
    return position if (covers_job or begins_with_the_job) and position < (size or position + 1) else None
