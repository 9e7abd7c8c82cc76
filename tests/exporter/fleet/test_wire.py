"""What the processes of the fleet tell each other: frames, delta-encoded readings, counters that go on, the call board."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.exporter.fleet.gpu_child import connected_child, disconnect, identity

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE
from rankscope.exporter.fleet.call_board import CallBoard, new_board
from rankscope.exporter.fleet.children import Children
from rankscope.exporter.fleet.counters import ADDED_UP_BY_PROCESS, MonotonicCounters
from rankscope.exporter.fleet.wire import (
    DeltaEncoder,
    Exited,
    Failed,
    FrameReader,
    Opened,
    Sampled,
    SpawnProbe,
    apply_delta,
    send_frame,
)
from rankscope.exporter.fleet.worker import work
from rankscope.exporter.nvml.gpm import GpmTopic, PcieBytesTopic
from rankscope.exporter.source import GpuIdentity, GpuSample, Reading, SourceError, XidEvent

BUSY = "gpu_busy_seconds_total"
XID = XidEvent(1000.0, 79)
LOST = SourceError("lost", "fell off the bus")
LOST.xids = (XID,)


def test_process_counters_continue_after_a_restart() -> None:
    assert all(BY_NAME[name].type == "counter" for name in ADDED_UP_BY_PROCESS)
    of_instances = {row.name for row in CATALOGUE if row.name.startswith("gpu_mig_") and row.type == "counter"}
    of_gpus = {name for name in GpmTopic.metrics if BY_NAME[name].type == "counter"}
    assert {*of_gpus, *of_instances, *PcieBytesTopic.metrics, BUSY} == ADDED_UP_BY_PROCESS
    counters = MonotonicCounters()

    def published(*readings: Reading) -> list[float]:
        return [reading.value for reading in counters.apply(readings)]

    counters.new_process()
    assert published(Reading(BUSY, 0.0), Reading(BUSY, 1.0, uuid="MIG-1")) == [0.0, 1.0]
    assert published(Reading(BUSY, 10.0), Reading(BUSY, 2.0, uuid="MIG-1")) == [10.0, 2.0]
    counters.new_process()
    assert published(Reading(BUSY, 0.5), Reading(BUSY, 0.0, uuid="MIG-1")) == [10.5, 2.0]
    assert published(Reading(BUSY, 3.0)) == [13.0]
    counters.new_process()
    assert published(Reading(BUSY, 1.0), Reading(BUSY, 1.0, uuid="MIG-1")) == [14.0, 3.0]


def test_driver_counters_are_published_unchanged() -> None:
    counters = MonotonicCounters()
    counters.new_process()
    counters.apply((Reading("gpu_energy_joules_total", 500.0), Reading("gpu_pcie_transmit_bytes_total", 500.0)))
    counters.new_process()

    after = counters.apply((Reading("gpu_energy_joules_total", 5.0), Reading("gpu_pcie_transmit_bytes_total", 600.0)))

    # a decrease of a driver's counter is published as it is; a counter that never decreased needs no offset
    assert [reading.value for reading in after] == [5.0, 600.0]


def test_call_counts_as_hung_only_at_the_second_check() -> None:
    child, theirs, board = connected_child()
    board.mark("nvmlInit")
    board.mark("nvmlDeviceGetPowerUsage" + "x" * 200)
    late = time.monotonic() + 60

    def check(at: float) -> str | None:
        return child.hang_reason(at, deadline_s=5, silence_s=10)

    assert check(late) is None
    board.mark("nvmlDeviceGetTemperature")  # the process was only stopped, together with everything else
    assert check(late) is None
    assert check(late) == "nvmlDeviceGetTemperature did not return within 5 s"
    board.mark("")
    # silent, without a call in progress
    assert check(late) is None
    child.pid = 7
    hang_reason = check(late)
    assert hang_reason is not None
    assert "pid 7" in hang_reason
    assert "10 s" in hang_reason
    child.last_message_s = late
    assert check(late) is None
    disconnect(child, theirs)


@pytest.mark.parametrize("nonsense", [b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"\0\0\0\x01\x80"])
def test_invalid_frame_counts_as_a_closed_connection(nonsense: bytes) -> None:
    child, theirs, _ = connected_child()
    theirs.sendall(nonsense)

    assert child.read() is None
    disconnect(child, theirs)


class SamplingGpu:
    """A GPU whose third sample fails with ``error``."""

    def __init__(self, error: Exception, *, readings: int = 1) -> None:
        self._error = error
        self._readings = tuple(Reading(BUSY, float(number)) for number in range(readings))
        self.samples = 0
        self.closed = False
        self.driver_version = "580.65.06"

    def open(self) -> GpuIdentity:
        return identity(0)

    def sample(self) -> GpuSample:
        self.samples += 1
        if self.samples == 3:
            raise self._error
        return GpuSample(identity(0), time.time(), time.monotonic(), self._readings)

    def sample_activity(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("error", "last_word"),
    [
        (LOST, Failed("lost", "fell off the bus", xids=(XID,))),
        (AttributeError("nvmlNothing"), Failed("nvml_error", "AttributeError: nvmlNothing")),
    ],
)
def test_worker_messages_arrive_complete_and_end_with_the_failure(error: Exception, last_word: Failed) -> None:
    ours, theirs = socket.socketpair()
    fd = new_board()
    gpu = SamplingGpu(error, readings=20_000)  # more than a socket takes at once

    def run() -> None:
        with theirs:
            work(theirs, CallBoard(fd), lambda: gpu, interval_s=0.01)

    worker = threading.Thread(target=run)
    worker.start()
    reader, messages = FrameReader(), list[Any]()
    while piece := ours.recv(10_000):
        messages += reader.feed(piece)
    worker.join()
    ours.close()
    os.close(fd)

    assert [type(message) for message in messages] == [Opened, Sampled, Sampled, Failed]
    assert len(messages[1].sample.readings) == 20_000
    assert messages[-1] == last_word


class SlowGpu(SamplingGpu):
    """A GPU whose first sample takes ten intervals, and whose last one ends the worker."""

    interval_s = 0.05

    def __init__(self) -> None:
        super().__init__(RuntimeError())
        self.intervals: list[int] = []
        """Number of the interval in which each sample was taken."""

    def sample(self) -> GpuSample:
        self.intervals.append(int(time.monotonic() / self.interval_s))
        if len(self.intervals) == 1:
            time.sleep(10 * self.interval_s)
        if len(self.intervals) == 6:
            raise RuntimeError
        return GpuSample(identity(0), time.time(), time.monotonic(), ())


def test_worker_skips_intervals_missed_by_a_slow_sample() -> None:
    ours, theirs = socket.socketpair()
    fd = new_board()
    gpu = SlowGpu()

    work(theirs, CallBoard(fd), lambda: gpu, interval_s=gpu.interval_s)

    os.close(fd)
    ours.close()
    theirs.close()
    assert len(gpu.intervals) == len(set(gpu.intervals)) == 6


def test_worker_closes_the_gpu_after_the_peer_disconnects() -> None:
    ours, theirs = socket.socketpair()
    fd = new_board()
    gpu = SamplingGpu(RuntimeError())
    ours.shutdown(socket.SHUT_WR)

    work(theirs, CallBoard(fd), lambda: gpu, interval_s=60)

    os.close(fd)
    ours.close()
    theirs.close()
    assert (gpu.samples, gpu.closed) == (1, True)


def test_delta_encoding_sends_only_changed_readings() -> None:
    fan, clock = (("fan", "0"),), (("clock", "sm"),)
    passes = [
        (Reading("a", 1), Reading("b", 2, fan), Reading("c", 3)),
        (Reading("a", 1), Reading("b", 2.5, fan), Reading("c", 3)),
        (Reading("a", 1), Reading("b", 2.5, clock), Reading("c", 3, (), "MIG-1")),  # other readings in their places
        (Reading("a", 1), Reading("b", 2.5, clock), Reading("c", 3, (), "MIG-1")),
        (Reading("b", 2.5, clock), Reading("a", 1)),
        (),
    ]
    encoder, sizes = DeltaEncoder(), []
    received: tuple[Reading, ...] = ()

    for readings in passes:
        message = encoder.encode(GpuSample(identity(0), 0.0, 0.0, readings=readings), 0.1)
        before, received = received, apply_delta(received, message.sample.readings, message.indexes)
        assert received == readings
        sizes.append(len(message.sample.readings))
        kept = set(range(len(readings))) - set(message.indexes if message.indexes is not None else range(len(readings)))
        assert all(received[place] is before[place] for place in kept)

    assert sizes == [3, 1, 2, 0, 2, 0]


def test_frames_are_decoded_from_any_split() -> None:
    ours, theirs = socket.socketpair()
    send_frame(ours, Opened(identity(0)))
    send_frame(ours, Failed("lost", "é"))
    ours.close()
    reader, messages = FrameReader(), list[Any]()
    while piece := theirs.recv(1):
        messages += reader.feed(piece)
    theirs.close()

    assert messages == [Opened(identity(0)), Failed("lost", "é")]


def test_empty_first_sample_of_a_new_process_clears_readings() -> None:
    # given readings of a process that has ended
    readings = (Reading("gpu_power_watts", 300.0),)
    gpu = identity(0)
    before = apply_delta((), DeltaEncoder().encode(GpuSample(gpu, 1.0, 1.0, readings), 0.1).sample.readings, None)
    assert before == readings

    # when the first sample of the next process has none
    encoder = DeltaEncoder()
    message = encoder.encode(GpuSample(gpu, 2.0, 2.0), 0.1)

    assert apply_delta(before, message.sample.readings, message.indexes) == ()
    again = encoder.encode(GpuSample(gpu, 3.0, 3.0, readings), 0.1)
    assert apply_delta((), again.sample.readings, again.indexes) == readings


def test_messages_sent_before_exit_are_read_after_exit() -> None:
    fds: list[int] = []
    nursery: Any = SimpleNamespace(request=lambda _message, *sent: fds.extend(map(os.dup, sent)))
    with selectors.DefaultSelector() as selector:
        children = Children(nursery, selector)
        child = children.spawn(lambda number: SpawnProbe(number, -1), 0.0)
        os.close(fds[1])
        with socket.socket(fileno=fds[0]) as connection:
            send_frame(connection, Failed("lost", "fell off the bus"))

        exited = children.handle(Exited(child.number, "ended with status 0"), 1.0)

    assert exited == (child, [Failed("lost", "fell off the bus")])
    assert list(children) == []
