"""Text of trace files: plain or compressed, torn, damaged, hostile."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.trace_events import kernel, launch, operator, text_of

from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.engine import analyze
from rankscope.analysis.trace import trace_text
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.trace_text import TraceText
from rankscope.base.errors import InputError, MissingError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\x7fELF\x02\x01\x01\x00" * 20, "not JSON"),
        (b"PK\x03\x04 zip", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"traceEvents": [{"ph": "X", "na', "truncated"),
        (b'{"traceEvents": [}', "truncated"),
        (b'{"hello": "world"}', "no list of traceEvents"),
        (b'{"traceEvents": {"a": 1}}', "no list of traceEvents"),
        (b'{"traceEvents": null}', "no list of traceEvents"),
        (b"[]", "nothing to analyse"),
        (b'{"traceEvents": []}', "nothing to analyse"),
        (b'{"traceEvents": [1, "two", null, []]}', "nothing to analyse"),
        (gzip.compress(b'{"traceEvents": []}' * 1000, mtime=0)[:40], "truncated"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"\x1f\x8b\x08\x00not really gzip", "gzip"),
    ],
)
def test_unreadable_file_is_a_one_line_error_with_name_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="a folder"):
        read_trace(tmp_path)


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
def test_trace_is_the_same_in_every_compression(tmp_path: Path, kind: str) -> None:
    # given a trace under a name without the suffix of its compression
    path = tmp_path / "rank-3.json"
    path.write_bytes(PACKED[kind](text_of(2000)))
    # then its content decides how it is read
    trace = read_trace(path)
    assert (trace.events, trace.torn, trace.damaged, trace.host) == (2000, None, 0, "n1")
    assert reduce_file(trace).breakdowns[0].compute_us == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gzip", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("plain", "zstd"))])
def test_every_complete_event_of_a_torn_trace_is_used_at_lower_coverage(tmp_path: Path, kind: str) -> None:
    # given traces of two ranks of which the second is cut off
    for rank in range(2):
        whole = PACKED[kind](text_of(20_000, distributedInfo={"rank": rank, "world_size": 2}))
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


def test_damage_inside_compressed_data_is_always_detected(tmp_path: Path) -> None:
    # given packed traces with one changed byte, anywhere
    path = tmp_path / "rank-0.json"
    whole = gzip.compress(text_of(5_000))
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
def test_wrong_checksum_is_refused(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "rank-0.json"
    data = bytearray(pack(text_of(20_000)))
    data[-6 if pack is gzip.compress else -2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be trusted"):
        read_trace(path)


def test_device_trace_torn_before_its_device_events_is_no_cpu_trace(tmp_path: Path) -> None:
    # given a file whose operators and launches are there and whose kernels are not
    events = [operator("aten::mm", 10, 5), launch(1, 10), kernel("gemm", 30, 5, correlation=1)]
    torn = json.dumps({"traceEvents": events}).encode()[:-40]
    path = tmp_path / "rank-0.json"
    path.write_bytes(torn)
    with pytest.raises(InputError, match="truncated"):
        analyze([path])


def test_decompression_bomb_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_text, "MAX_BYTES", 10_000_000)
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(b" " * 20_000_000))
    with pytest.raises(InputError, match="too large"):
        sum(map(len, TraceText(path)))


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_decompression_bomb_is_refused_by_its_expansion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Any) -> None:
    monkeypatch.setattr(trace_text, "BOMB_BYTES", 4_000_000)
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(pack(b'{"traceEvents": [' + b'{"ph": "M"},' * 1_000_000))
    with pytest.raises(InputError, match="decompression bomb") as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


@pytest.mark.slow
def test_memory_use_does_not_grow_with_the_text(tmp_path: Path) -> None:
    # given a text of 60 MB, little of which is used
    path = tmp_path / "rank-0.json.gz"
    filler = json.dumps({"ph": "i", "name": "x" * 1000}).encode() + b","
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(60):
            file.write(filler * 1000)
        file.write(json.dumps(kernel("gemm", 10, 5)).encode() + b"]}")
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


def test_missing_decompressor_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    path = tmp_path / "rank-0.json.zst"
    path.write_bytes(zstd.compress(text_of(3)))
    with pytest.raises(MissingError, match=r"pip install 'rankscope\[analysis\]'"):
        read_trace(path)
