"""Captures of CUDA graphs in progress, during which the recorder must not touch a device.

An event recorded in a capture would become part of the graph, and a query or a synchronisation invalidates it. In torch's default
mode that holds for calls on other streams and threads, too. So captures are also noted where they begin and end.
"""

from __future__ import annotations

from torch import cuda

_graphs: set[int] = set()


def note_begun(graph: object) -> None:
    """Note that ``graph`` is being captured."""
    _graphs.add(id(graph))


def note_ended(graph: object) -> None:
    """Note that the capture of ``graph`` has ended, or failed."""
    _graphs.discard(id(graph))


def noted() -> bool:
    """Return whether the capture of any graph of torch's has been noted; a cheap check for the middle of a step."""
    return bool(_graphs)


def going_on() -> bool:
    """Return whether any graph is being captured."""
    # On a torch without CUDA, the second question would raise.
    return bool(_graphs) or (cuda.is_initialized() and cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
