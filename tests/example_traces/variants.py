"""Traces as other versions of torch, other vendors and other tools write them: the same job in every schema."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.example_traces.jobs import Document, Event, event, recorded

DAYS_90_US: Final = 90 * 86_400 * 10**6
COMMUNICATION: Final = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Seq", "In split size", "Out split size")
GROUP: Final = ("Group size", "Process Group Name", "Process Group Description", "Process Group Ranks")


def packed(content: object, **kwargs: Any) -> bytes:
    """Return gzip of JSON, without a time stamp: the same each time."""
    return gzip.compress(json.dumps(content, **kwargs).encode(), mtime=0)


def today(document: Document) -> Document:
    """Return it as it is."""
    return document


def without_sequence(document: Document) -> Document:
    """Return it as of torch before March 2026; long lists of ranks are cut."""
    for args in _all_args(document):
        args.pop("Seq", None)
        if "Process Group Ranks" in args:
            args["Process Group Ranks"] = "[0, 1, ..., 3]"
    return document


def bases_differ(document: Document) -> Document:
    """Return it with a base that is 90 days earlier on odd ranks: each process rounds its own."""
    if document["distributedInfo"]["rank"] % 2:
        document["baseTimeNanoseconds"] -= DAYS_90_US * 1000
        for event_ in document["traceEvents"]:
            event_["ts"] = round(event_["ts"] + DAYS_90_US, 3)
    return document


def schema_of_2023(document: Document) -> Document:
    """Return it as of 2023: Unix times in whole microseconds without a base, kernels without metadata, recorded shapes."""
    base = document.pop("baseTimeNanoseconds") // 1000
    document["distributedInfo"] = {key: document["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    del document["host_name"]
    sizes = [args for event_, args in _events_and_args(document) if event_["name"] == "record_param_comms"]
    shapes = iter([{"Input Dims": [[args["In msg nelems"]]], "Input type": ["c10::BFloat16"]} for args in sizes])
    for event_, args in _events_and_args(document):
        _forget(args)
        if event_["name"].startswith("nccl:") and event_["cat"] == "user_annotation":
            args.update(next(shapes))
    _whole_microseconds(document["traceEvents"], base)
    return document


def schema_of_2021(document: Document) -> list[Event]:
    """Return it as of 2021: a bare list, capitalised categories, old names of kernels, the rank in the file's name only."""
    names = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    events = []
    for event_ in document["traceEvents"]:
        _forget(event_.get("args", {}))
        if event_.get("cat") in ("gpu_user_annotation", "cuda_sync") or event_["name"].startswith("nccl:"):
            continue
        event_["cat"] = names.get(event_.get("cat", ""), event_.get("cat"))
        if event_["name"].startswith("ncclDevKernel"):
            event_["name"] = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
        if event_["cat"] in ("Kernel", "Memcpy", "Memset"):
            event_["tid"] = f"stream {event_['tid']}"
        events.append(event_)
    _whole_microseconds(events, document["baseTimeNanoseconds"] // 1000)
    return events


def rocm(document: Document) -> Document:
    """Return it as of an AMD device: copies are kernels, and RCCL's kernels have one name for all operations."""
    document["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI300X"}]
    for event_ in document["traceEvents"]:
        if event_.get("cat") == "cuda_runtime":
            event_["name"] = event_["name"].replace("cudaLaunchKernel", "hipLaunchKernel").replace("cuda", "hip")
        if event_["name"].startswith("ncclDevKernel"):
            event_["name"] = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
        if event_.get("cat") in ("gpu_memcpy", "gpu_memset"):
            event_["name"] = f"__amd_rocclr_{'fillBufferAligned' if 'set' in event_['cat'] else 'copyBuffer'}"
            event_["cat"] = "kernel"
    return document


def xpu(document: Document) -> Document:
    """Return it as of an Intel device: its calls, and oneCCL's kernels, without metadata."""
    document["deviceProperties"] = [{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}]
    for event_, args in _events_and_args(document):
        _forget(args)
        if event_.get("cat") == "cuda_runtime":
            event_ |= {"cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"}
        if event_["name"].startswith("ncclDevKernel"):
            event_["name"] = "oneccl_allreduce_AllReduce_large"
    return document


def device_alone(document: Document) -> Document:
    """Return it as recorded with device activities alone."""
    kept = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
    document["traceEvents"] = [event_ for event_ in document["traceEvents"] if event_.get("cat") in kept]
    return document


def without_steps(document: Document) -> Document:
    """Return it without annotations of steps."""
    document["traceEvents"] = [event_ for event_ in document["traceEvents"] if not event_["name"].startswith("ProfilerStep")]
    return document


def numbers_as_text(document: Document) -> Document:
    """Return it with every number of an event as a text."""
    for event_ in document["traceEvents"]:
        for where in (event_, event_.get("args", {})):
            where |= {key: str(value) for key, value in where.items() if isinstance(value, int | float)}
    return document


def without_distributed_info(document: Document) -> Document:
    """Return it without ``distributedInfo``: the rank is in the file's name, the groups are in the metadata of the kernels."""
    del document["distributedInfo"]
    return document


def deep_ep(document: Document) -> Document:
    """Return it with DeepEP's kernels in place of NCCL's: nothing tells groups, sizes or operations but names."""
    names = ("dispatch<false, 8, true, 8>", "combine<__nv_bfloat16, 8>", "notify_dispatch<8>")
    number = 0
    for event_, args in _events_and_args(document):
        _forget(args)
        if event_["name"].startswith("ncclDevKernel"):
            event_["name"] = f"void deep_ep::internode::{names[number % 3]}(...)"
            number += 1
    kept = [event_ for event_ in document["traceEvents"] if not event_["name"].startswith(("nccl:", "record_param_comms"))]
    document["traceEvents"] = kept
    return document


def copy_engines(document: Document) -> Document:
    """Return it with copies between devices in place of NCCL's kernels: two in each annotation."""
    events = []
    for event_ in document["traceEvents"]:
        args = event_.get("args", {})
        if not event_["name"].startswith("ncclDevKernel"):
            events.append(event_)
            continue
        _forget(args)
        half = round(event_["dur"] / 2, 3)
        for begin, length in ((event_["ts"], half), (event_["ts"] + half, event_["dur"] - half)):
            copy = event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", begin, length, event_)
            events.append(copy | {"args": args | {"bytes": 1 << 20}})
    document["traceEvents"] = events
    return document


def gloo_beside_a_device(document: Document) -> Document:
    """Return it with gloo's workers in place of NCCL's kernels: the device computes, the CPU communicates."""
    events: list[Event] = []
    for event_ in document["traceEvents"]:
        _forget(event_.get("args", {}))
        if event_["name"].startswith("ncclDevKernel"):
            events.append(event_ | {"cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 77, "args": {}})
        elif event_["name"] == "record_param_comms":
            events.append(event_ | {"name": "c10d::allreduce_", "args": {}})
        elif not event_["name"].startswith("nccl:"):
            events.append(event_)
    document["traceEvents"] = events
    return document


VARIANTS: Final[dict[str, Callable[[Document], Any]]] = {
    "today": today,
    "without-sequence": without_sequence,
    "bases-differ": bases_differ,
    "schema-2023": schema_of_2023,
    "schema-2021": schema_of_2021,
    "rocm": rocm,
    "xpu": xpu,
    "device-alone": device_alone,
    "without-steps": without_steps,
    "numbers-as-text": numbers_as_text,
    "without-distributed-info": without_distributed_info,
    "deep-ep": deep_ep,
    "copy-engines": copy_engines,
    "gloo-beside-a-device": gloo_beside_a_device,
}


def variant(name: str) -> list[Any]:
    """Return the traces of a variant, one per rank."""
    return [VARIANTS[name](document) for document in recorded("ddp")]


def files(name: str) -> dict[str, bytes]:
    """Return the files of a variant by name: the first rank of today's schema, written in other ways."""
    (document, *_) = recorded("ddp", steps=1)
    text = json.dumps(document).encode()
    events = document.pop("traceEvents")
    after = {"traceEvents": events} | document
    match name:
        case "plain":
            return {"rank-0.json": text}
        case "indented":
            return {"rank-0.json.gz": gzip.compress(b"\xef\xbb\xbf" + json.dumps(after, indent=2).encode(), mtime=0)}
        case "two-gzip-members":
            halves = (text[: len(text) // 2], text[len(text) // 2 :])
            return {"rank-0.json.gz": b"".join(gzip.compress(half, mtime=0) for half in halves)}
        case _:
            from backports.zstd import compress

            return {"rank-0.json.zst": compress(text)}


FILES: Final = ("plain", "indented", "two-gzip-members", "zstandard")


def _events_and_args(document: Document) -> Iterable[tuple[Event, dict[str, Any]]]:
    return [(event_, event_.get("args", {})) for event_ in document["traceEvents"]]


def _all_args(document: Document) -> Iterable[dict[str, Any]]:
    return [args for _, args in _events_and_args(document)]


def _forget(args: dict[str, Any]) -> None:
    """Remove the metadata of communication."""
    for key in COMMUNICATION + GROUP:
        args.pop(key, None)


def _whole_microseconds(events: list[Event], base: int) -> None:
    for event_ in events:
        begin = int(event_["ts"])
        if "dur" in event_:
            event_["dur"] = int(event_["ts"] + event_["dur"]) - begin
        event_["ts"] = begin + base
