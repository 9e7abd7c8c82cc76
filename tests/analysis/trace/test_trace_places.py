"""Packed, torn and remote traces: every form that is read, and the errors for all others."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.engine import analyze
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.trace import columns as traces
from rankscope.analysis.trace import files
from rankscope.analysis.trace.columns import read_trace
from rankscope.base.errors import InputError, MissingError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def kernel(at: int, name: str = "gemm", **extra: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": at * 10,
        "dur": 5,
        "pid": 0,
        "tid": 7,
        "args": {"stream": 7},
        **extra,
    }


def text(count: int = 2000, **fields: Any) -> bytes:
    return json.dumps(
        {**fields, "traceEvents": [kernel(at, f"gemm_{at % 50}") for at in range(count)], "host_name": "n1"}
    ).encode()


def members(data: bytes) -> bytes:
    return gzip.compress(data[:1000]) + gzip.compress(b"") + gzip.compress(data[1000:]) + b"\0" * 700


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip of several members, padded": members,
    "gzip with something appended": lambda data: gzip.compress(data) + b"what somebody appended",
    "zstd": zstd.compress,
    "zstd of several frames": lambda data: zstd.compress(data[:1000]) + zstd.compress(data[1000:]),
}


@pytest.mark.parametrize("kind", PACKED)
def test_a_trace_is_the_same_however_it_is_packed(tmp_path: Path, kind: str) -> None:
    # given a trace under a name without the suffix of its compression
    path = tmp_path / "rank-3.json"
    path.write_bytes(PACKED[kind](text()))
    # then its content decides how it is read
    trace = read_trace(path)
    assert (trace.events, trace.torn, trace.damaged, trace.host) == (2000, None, 0, "n1")
    assert reduce_file(trace).breakdowns[0].compute_us == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gzip", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("plain", "zstd"))])
def test_every_complete_event_of_a_torn_trace_is_used_at_lower_coverage(tmp_path: Path, kind: str) -> None:
    # given traces of two ranks of which the second is cut off
    for rank in range(2):
        whole = PACKED[kind](text(20_000, distributedInfo={"rank": rank, "world_size": 2}))
        (tmp_path / f"{rank}.json").write_bytes(whole if rank == 0 else whole[: len(whole) * 2 // 3])
    # when they are analysed
    analysis = analyze([tmp_path])
    # then it reports the damage, and uses the rest
    assert any("1.json: truncated" in warning for warning in analysis.source.warnings)
    assert analysis.source.coverage == 0.75
    trace = read_trace(tmp_path / "1.json")
    assert trace.torn is not None
    assert (trace.rank, trace.damaged) == (1, 0)
    assert 10_000 < trace.events < 15_000
    assert analysis.ranks[1].compute_us == trace.events * 5
    unpacked = zlib.decompressobj(31).decompress((tmp_path / "1.json").read_bytes()) if kind == "gzip" else None
    if unpacked is not None:
        assert trace.events == unpacked.count(b"}}")


def test_damage_inside_of_packed_data_never_goes_unnoticed(tmp_path: Path) -> None:
    # given packed traces with one changed byte, anywhere
    path = tmp_path / "rank-0.json"
    whole = gzip.compress(text(5_000))
    for at in range(100, len(whole), len(whole) // 8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        # then it is refused, or used up to there
        output: str | None
        try:
            output = read_trace(path).torn
        except InputError as error:
            output = str(error)
        assert output is not None
        assert "damaged gzip data" in output or "truncated" in output


@pytest.mark.parametrize(
    "pack", [gzip.compress, lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})]
)
def test_a_wrong_checksum_is_refused_for_the_numbers_may_be_wrong(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "rank-0.json"
    data = bytearray(pack(text(20_000)))
    data[-6 if pack is gzip.compress else -2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be trusted"):
        read_trace(path)


def test_a_device_trace_torn_before_its_device_events_is_no_cpu_trace(tmp_path: Path) -> None:
    # given a file whose operators and launches are there and whose kernels are not
    events = [kernel(1, "aten::mm", cat="cpu_op"), kernel(1, "cudaLaunchKernel", cat="cuda_runtime"), kernel(3)]
    torn = json.dumps({"traceEvents": events}).encode()[:-40]
    path = tmp_path / "rank-0.json"
    path.write_bytes(torn)
    with pytest.raises(InputError, match="truncated"):
        analyze([path])


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_a_bomb_is_refused_by_how_far_it_unfolds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Any) -> None:
    monkeypatch.setattr(files, "BOMB_BYTES", 4_000_000)
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(pack(b'{"traceEvents": [' + b'{"ph": "M"},' * 1_000_000))
    with pytest.raises(InputError, match="decompression bomb") as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "event"),
    [
        ("MAX_ROWS", kernel),
        ("MAX_NAME_CHARACTERS", lambda at: kernel(at, f"name {at}")),
        ("MAX_THREADS", lambda at: kernel(at, tid=at)),
        ("MAX_COLLECTIVES", lambda at: kernel(at, args={"Collective name": "allreduce"})),
    ],
)
def test_what_would_fill_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, event: Any) -> None:
    monkeypatch.setattr(traces, limit, 90)
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps([event(at) for at in range(100)]))
    with pytest.raises(InputError, match="too large to analyse: more than 90"):
        read_trace(path)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    # given a text of 60 MB, little of which is used
    path = tmp_path / "rank-0.json.gz"
    filler = json.dumps({"ph": "i", "name": "x" * 1000}).encode() + b","
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(60):
            file.write(filler * 1000)
        file.write(json.dumps(kernel(1)).encode() + b"]}")
    # when it is read in a process of its own
    code = (
        "import sys\nfrom pathlib import Path\nfrom rankscope.analysis.trace.columns import read_trace\n"
        # ru_maxrss would be that of the process that started this one, if it had more.
        "def most():\n"
        "    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "before = most()\nread_trace(Path(sys.argv[1]))\nprint(most() - before)"
    )
    completed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    # then that took a few MiB
    assert int(completed.stdout) < 24 * 1024


@pytest.fixture
def remote() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    for rank in range(2):
        filesystem.pipe(f"/job/traces/rank-{rank}.json.gz", gzip.compress(text(100)))
    filesystem.pipe("/job/notes.txt", b"hello")
    yield filesystem
    filesystem.rm("/job", recursive=True)


@pytest.mark.parametrize(
    "path", ["memory://job", "memory://job/traces/", "memory://job/traces/rank-*.json.gz", "memory://job/**/*.gz"]
)
def test_traces_on_another_filesystem_are_found_and_read(remote: Any, path: str) -> None:
    analysis = analyze([path], engine=LocalEngine(2))
    assert [row.compute_us for row in analysis.ranks] == [500, 500]
    assert analysis.source.path == path


def test_files_on_another_filesystem_can_be_named_singly_beside_local_ones(remote: Any, tmp_path: Path) -> None:
    (tmp_path / "rank-2.json").write_bytes(text(100))
    names = ["memory://job/traces/rank-0.json.gz", "memory://job/traces/rank-1.json.gz"]
    assert analyze(names).source.path == "memory://job/traces"
    assert [row.rank for row in analyze([*names, tmp_path]).ranks] == [0, 1, 2]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://job/traces/rank-7.json", "no such file"),
        ("memory://job/*.json", "no file matches"),
        ("nonsense://job/rank-0.json", "nonsense"),
        ("memory://job/notes.txt", "not JSON"),
        ("file:///proc/self/nothing.json", "no such file"),
    ],
)
def test_what_is_wrong_on_another_filesystem_is_one_line(remote: Any, url: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        analyze([url])
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


class ForbiddenError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ForbiddenError("403:\n  no credentials."),
            "403: no credentials",
        ),
        (
            PermissionError(13, "Permission denied"),
            "Permission denied",
        ),
        (TimeoutError(), "TimeoutError"),
    ],
)
@pytest.mark.parametrize("method", ["info", "open", "find"])
def test_errors_of_a_filesystem_itself_are_one_line(
    remote: Any, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, reason: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(type(remote), method, refuse)
    url = "memory://job" if method == "find" else "memory://job/traces/rank-0.json.gz"
    with pytest.raises(InputError) as caught:
        analyze([url])
    assert str(caught.value).startswith(f"{url}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingError, match=r"pip install 'rankscope\[remote\]'"):
        analyze(["s3://bucket/traces"])
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    path = tmp_path / "rank-0.json.zst"
    path.write_bytes(zstd.compress(text(3)))
    with pytest.raises(MissingError, match=r"pip install 'rankscope\[analysis\]'"):
        analyze([path])


@pytest.mark.slow
def test_local_traces_need_neither_fsspec_nor_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(text(10)))
    code = (
        "import sys\nfrom rankscope.analysis.engine import analyze\nanalyze([sys.argv[1]])\n"
        "print([name for name in ('fsspec', 'pyarrow', 'backports.zstd', 'torch', 'asyncio') if name in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


@pytest.mark.slow
def test_processes_read_the_same_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # given traces of four ranks, of which one cannot be read and one is torn, and a size limit that every file exceeds
    monkeypatch.setattr("rankscope.analysis.parallel.workers.WORTH_A_PROCESS_BYTES", 1)
    for rank in range(4):
        data = text(500, distributedInfo={"rank": rank, "world_size": 4})
        (tmp_path / f"rank-{rank}.json").write_bytes({2: b"hello", 3: data[:-300]}.get(rank, data))
    # when they are read by one process and by several, from a thread as in a server, with all options
    chosen: dict[str, Any] = {"communication_pattern": re.compile("gemm_1$"), "detail": True}
    alone = analyze([tmp_path], **chosen)
    collected: list[Any] = []
    thread = threading.Thread(target=lambda: collected.append(analyze([tmp_path], engine=LocalEngine(2), **chosen)))
    thread.start()
    thread.join()
    # then the answers are the same to the byte
    assert msgspec.json.encode(collected[0]) == msgspec.json.encode(alone)
    assert len(alone.source.warnings) == 2
    assert all(row.detail is not None and row.communication_us for row in alone.ranks)
    with pytest.raises(InputError, match=r"rank-2\.json: not JSON"):
        analyze([tmp_path / "rank-0.json", tmp_path / "rank-2.json"], engine=LocalEngine(2))
