"""The process of one GPU: samples its GPU at a fixed interval and sends the samples until the daemon closes the socket."""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from rankscope.exporter.fleet.call_board import CallBoard
from rankscope.exporter.fleet.wire import DeltaEncoder, Failed, Opened, send_frame
from rankscope.exporter.source import Gpu, SourceError

_PARTS: Final = 2  # the fewest that give a minimum and a maximum; each further one wakes every GPU's process once more
_SHORTEST_PART_S: Final = 0.1  # minimum interval between two reads of the hardware's activity counters


def work(connection: socket.socket, board: CallBoard, make_gpu: Callable[[], Gpu], *, interval_s: float) -> None:
    """Open the GPU, then sample and send until the connection closes.

    Returns on any error after sending ``Failed``; the daemon retries with a new process, which resets all driver state.
    """
    try:
        try:
            _sample_until_closed(connection, board, make_gpu(), interval_s=interval_s)
        except SourceError as error:
            board.mark("")
            send_frame(connection, Failed(error.reason, str(error), xids=error.xids))
        except ConnectionError:
            return  # the daemon closed the connection
        except Exception as error:  # noqa: BLE001  the daemon logs it
            board.mark("")
            send_frame(connection, Failed("nvml_error", f"{type(error).__name__}: {error}"))
    except ConnectionError:
        return


def _sample_until_closed(connection: socket.socket, board: CallBoard, gpu: Gpu, *, interval_s: float) -> None:
    encoder = DeltaEncoder()
    identity = gpu.open()
    board.mark("")
    send_frame(connection, Opened(identity, gpu.driver_version))
    hung_up = select.poll()
    hung_up.register(connection, select.POLLIN)
    parts = _PARTS if interval_s >= _PARTS * _SHORTEST_PART_S else 1
    # A fixed grid: passes neither drift nor pile up after a slow one. It is the same for all GPUs of the node: their values are
    # of one moment, the ranks of a job are disturbed together rather than in turn, and caches are warm.
    step_s = interval_s / parts
    tick, passes = round(time.monotonic() / step_s), -1  # rounded, so that the second tick is not too close to the first
    while True:
        # Compare intervals rather than tick numbers: a slow GPU skips ticks and might always miss a pass's own tick.
        if tick // parts == passes:
            gpu.sample_activity()
            board.mark("")
        else:
            passes = tick // parts
            pass_at = time.monotonic()
            sample = gpu.sample()
            board.mark("")
            send_frame(connection, encoder.encode(sample, time.monotonic() - pass_at))
        tick = max(tick + 1, math.ceil(time.monotonic() / step_s))
        if hung_up.poll(math.ceil(1000 * max(0.0, tick * step_s - time.monotonic()))):
            break
    gpu.close()
