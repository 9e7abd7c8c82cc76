"""Traces with damage: cut off, with values that make no sense, in odd order, or no traces at all."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any, Final

from tests.example_traces.jobs import Document, Event, recorded
from tests.example_traces.variants import gloo_beside_a_device, packed, schema_of_2023, without_sequence


def _trace() -> Document:
    document = recorded("ddp", steps=1)[0]
    events: list[Event] = document.pop("traceEvents")
    # Kineto writes what runs on the device last.
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    return document | {"traceEvents": sorted(events, key=lambda event: event.get("cat") in device)}


def _kernels(document: Document) -> list[Event]:
    return [event for event in document["traceEvents"] if event.get("cat") == "kernel"]


def _changed(change: Callable[[list[Event]], object]) -> bytes:
    """Return a trace whose kernels were changed."""
    document = _trace()
    change(_kernels(document))
    return packed(document)


def _cut(share: float) -> bytes:
    text = json.dumps(_trace()).encode()
    return text[: int(len(text) * share)]


def truncated_gzip() -> bytes:
    """Return compressed data that ends in the middle of the device's events."""
    data = packed(_trace())
    return data[: int(len(data) * 0.93)]


def truncated_json() -> bytes:
    """Return compressed text that ends in the middle of the device's events."""
    return gzip.compress(_cut(0.9), mtime=0)


def truncated_before_the_device() -> bytes:
    """Return text that ends before the first event of the device."""
    return gzip.compress(_cut(0.5), mtime=0)


def missing_args() -> bytes:
    """Return a trace with kernels that lack arguments, streams, devices and correlations."""

    def change(kernels: list[Event]) -> None:
        for number, kernel in enumerate(kernels):
            if number % 7 == 0:
                del kernel["args"]
            elif number % 7 == 1:
                kernel["args"] = None
            else:
                kernel["args"].pop(("stream", "device", "correlation", "External id", "Seq")[number % 7 - 2], None)

    return _changed(change)


def impossible_durations() -> bytes:
    """Return a trace with negative, missing and absurd times."""

    def change(kernels: list[Event]) -> None:
        durations = (-3, None, 1e30, "-0.5", [1])
        for kernel, value in zip(kernels[3:8], durations, strict=True):
            kernel["dur"] = value
        kernels[8]["ts"], kernels[9]["ts"] = 1e300, "soon"
        del kernels[1]["dur"]
        del kernels[2]["ts"]

    return _changed(change)


def not_a_number() -> bytes:
    """Return a trace with times that JSON does not have."""

    def change(kernels: list[Event]) -> None:
        for number, kernel in enumerate(kernels[2:7]):
            kernel["dur"] = 123_400_000 + number

    text = gzip.decompress(_changed(change)).decode()
    for number, word in enumerate(("nan", "-nan", "inf", "-Infinity", "NaN")):
        text = text.replace(str(123_400_000 + number), word)
    return gzip.compress(text.encode(), mtime=0)


def huge_integers() -> bytes:
    """Return a trace with whole numbers beyond 64 bits, and beyond those of devices and streams."""

    def change(kernels: list[Event]) -> None:
        values: list[dict[str, Any]] = [
            {"correlation": 2**63},
            {"correlation": 2**80},
            {"stream": 2**70},
            {"correlation": -(2**70)},
            {"External id": 10**40},
            {"In msg nelems": 2**66, "Out msg nelems": 2**66},
            {"Seq": 2**64},
        ]
        for kernel, value in zip(kernels[2:], values, strict=False):
            kernel["args"] |= value
        kernels[0]["tid"] = 2**90
        kernels[1]["dur"] = 10**40

    return _changed(change)


def overlapping_on_a_stream() -> bytes:
    """Return a trace whose kernels begin before the one before them on the stream has ended."""

    def change(kernels: list[Event]) -> None:
        for number, kernel in enumerate(kernels):
            kernel["dur"] = round(kernel["dur"] * (1 + number % 3 / 2), 3)

    return _changed(change)


def out_of_order() -> bytes:
    """Return a trace whose events are in no order of time: later ones first, kernels before their calls."""
    document = _trace()
    document["traceEvents"] = document["traceEvents"][::-1][1::2] + document["traceEvents"][::-1][::2]
    return packed(document)


def repeated() -> bytes:
    """Return a trace in which every event of the device is there twice."""
    document = _trace()
    device = [event for event in document["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy")]
    document["traceEvents"] += device
    return packed(document)


def without_duration() -> bytes:
    """Return a trace with kernels that take no time."""

    def change(kernels: list[Event]) -> None:
        for kernel in kernels[::3]:
            kernel["dur"] = 0

    return _changed(change)


def of_wrong_types() -> bytes:
    """Return a trace with arguments, names and events of wrong types."""

    def change(kernels: list[Event]) -> None:
        kernels[2]["args"] = [1]
        kernels[3]["name"] = {"a": 1}
        kernels[4]["name"] = 17
        kernels[5]["name"] = None
        kernels[6]["args"]["stream"] = "seven"

    document = json.loads(gzip.decompress(_changed(change)))
    document["traceEvents"] += [1, "two", None, [], {"ph": "X"}]
    document |= {"deviceProperties": 3, "baseTimeNanoseconds": "soon", "host_name": 5}
    return packed(document)


def broken_in_the_middle() -> bytes:
    """Return a trace in which a few bytes of two events are overwritten."""
    text = bytearray(json.dumps(_trace()).encode())
    for share in (0.3, 0.8):
        at = text.index(b'"name": ', int(len(text) * share))
        text[at : at + 4] = b"####"
    return gzip.compress(bytes(text), mtime=0)


def not_utf8() -> bytes:
    """Return a trace with a name that is not UTF-8."""
    text = json.dumps(_trace()).encode().replace(b"attention_forward_kernel", b"attention_forward_kern\xe9l")
    return gzip.compress(text, mtime=0)


def appended() -> bytes:
    """Return a trace with other data behind the compressed data."""
    return packed(_trace()) + b"not compressed"


def changed_checksum() -> bytes:
    """Return compressed data whose checksum is that of other data."""
    data = bytearray(packed(_trace()))
    data[-8] ^= 0xFF
    return bytes(data)


def in_a_zip() -> bytes:
    """Return a zip archive with a trace in it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("rank-0.json"), json.dumps({"traceEvents": []}))
    return archive.getvalue()


FILES: Final[dict[str, Callable[[], bytes]]] = {
    "truncated-gzip": truncated_gzip,
    "truncated-json": truncated_json,
    "truncated-before-the-device": truncated_before_the_device,
    "missing-args": missing_args,
    "impossible-durations": impossible_durations,
    "not-a-number": not_a_number,
    "huge-integers": huge_integers,
    "overlapping-on-a-stream": overlapping_on_a_stream,
    "out-of-order": out_of_order,
    "repeated": repeated,
    "without-duration": without_duration,
    "of-wrong-types": of_wrong_types,
    "broken-in-the-middle": broken_in_the_middle,
    "not-utf8": not_utf8,
    "appended": appended,
    "changed-checksum": changed_checksum,
    "in-a-zip": in_a_zip,
    "empty-file": lambda: b"",
    "empty-gzip": lambda: gzip.compress(b"", mtime=0),
    "empty-list": lambda: b"[]",
    "empty-trace": lambda: packed({"schemaVersion": 1, "traceEvents": []}),
    "without-events": lambda: packed({"schemaVersion": 1}),
    "no-json": lambda: b"\x7fELF\x02\x01\x01\x00" * 20,
}
"""Damage to the file with it; each is ``rank-0.json.gz`` in a folder of its own."""


def _lacking(documents: list[Document]) -> None:
    """Remove the second collective of rank 2."""
    device = documents[2]["traceEvents"]
    device.remove([event for event in _kernels(documents[2]) if event["name"].startswith("nccl")][1])


def _lacking_without_sequence(documents: list[Document]) -> None:
    for document in documents:
        without_sequence(document)
    _lacking(documents)


def _differing(**values: Any) -> Callable[[list[Document]], None]:
    """Return a function that changes the metadata of the first collective of rank 1."""

    def change(documents: list[Document]) -> None:
        kernel = next(event for event in _kernels(documents[1]) if event["name"].startswith("nccl"))
        kernel["args"] |= {key.replace("_", " "): value for key, value in values.items()}

    return change


def _without_a_call(documents: list[Document]) -> None:
    """Let gloo communicate, and remove the call of the first collective of rank 0."""
    for document in documents:
        gloo_beside_a_device(document)
    events = documents[0]["traceEvents"]
    events.remove(next(event for event in events if event["name"] == "c10d::allreduce_"))


DISAGREEMENTS: Final[dict[str, Callable[[list[Document]], None]]] = {
    "lacks-a-collective": _lacking,
    "lacks-a-collective-without-sequence": _lacking_without_sequence,
    "sizes-differ": _differing(In_msg_nelems=5, Out_msg_nelems=5),
    "types-differ": _differing(dtype="Half"),
    "operations-differ": _differing(Collective_name="_allgather_base"),
    "call-missing": _without_a_call,
}
"""Jobs whose ranks do not agree on a collective."""


def jobs() -> dict[str, dict[str, bytes]]:
    """Return jobs with damage: folder to files by name."""
    disagreeing: dict[str, dict[str, bytes]] = {}
    for name, change in DISAGREEMENTS.items():
        documents = recorded("ddp", steps=1)
        change(documents)
        disagreeing[name] = {f"rank-{number}.json.gz": packed(trace) for number, trace in enumerate(documents)}
    ranks = {f"rank-{number}.json.gz": packed(trace) for number, trace in enumerate(recorded("ddp", steps=1))}
    old = [packed(schema_of_2023(document)) for document in recorded("ddp", steps=1)]
    last = ranks["rank-3.json.gz"]
    first = ranks["rank-0.json.gz"]
    return disagreeing | {
        "duplicate-ranks": ranks | {"again/rank-0.json.gz": first},
        "missing-rank": {name: data for name, data in ranks.items() if name != "rank-3.json.gz"},
        "missing-rank-without-groups": {f"rank-{number}.json.gz": data for number, data in enumerate(old[:3])},
        "torn-rank": ranks | {"rank-3.json.gz": last[: int(len(last) * 0.93)]},
    }
