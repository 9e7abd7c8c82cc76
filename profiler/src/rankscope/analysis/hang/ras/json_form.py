"""JSON of NCCL RAS, from NCCL 2.28.7 on (fields: NCCL's docs, "RAS", "JSON Output")."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rankscope.analysis.hang.ras.snapshot import (
    LARGEST,
    AnswerError,
    Communicator,
    Loss,
    Member,
    RasDevice,
    Snapshot,
    State,
    devices_of,
)

_Rank = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]

MAX_OBJECTS: Final = 1_500_000
"""Maximum number of objects; a rank has three in each communicator."""
_FINE: Final = (0, 7)
"""Results that are no errors: success, and an operation in progress."""
ERRORS: Final = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
"""NCCL's results (``ncclResult_t`` in ``nccl.h``)."""


class _RankStatus(msgspec.Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _MissingStatus(msgspec.Struct, frozen=True):
    unresponsive: bool = True
    considered_dead: bool = False


class _RasProcess(msgspec.Struct, frozen=True, kw_only=True):
    rank: _Rank
    host: _Text = "unknown"
    pid: int = -1
    nvml_dev: int = -1

    def device(self) -> RasDevice | None:
        return None if self.pid < 0 else RasDevice(self.host, self.pid, self.nvml_dev if self.nvml_dev >= 0 else None)


class _RankRow(_RasProcess, frozen=True, kw_only=True):
    status: _RankStatus = _RankStatus()
    collective_counts: dict[_Text, _Count] = {}

    def member(self) -> Member:
        return Member(self.device(), _state(self.status), self.collective_counts, _error(self.status))


class _MissingRow(_RasProcess, frozen=True, kw_only=True):
    status: _MissingStatus = _MissingStatus()

    def member(self) -> Member:
        loss: Loss = "dead" if self.status.considered_dead else "unreachable" if self.status.unresponsive else "left"
        return Member(self.device(), loss=loss)


class _CommunicatorJson(msgspec.Struct, frozen=True):
    hash: _Text
    size: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    ranks: list[_RankRow]
    secondary_hash: _Text = ""
    missing_ranks: list[_MissingRow] = []


class _Collection(msgspec.Struct, frozen=True):
    timeouts_count: int = 0


class _Document(msgspec.Struct, frozen=True):
    communicators: list[_CommunicatorJson]
    nccl_version: _Text | None = None
    ras: _Collection = _Collection()


_decoder: Final = msgspec.json.Decoder(_Document)


def read_json(text: str) -> Snapshot:
    """Read an answer. Raises ``AnswerError``, also where it was cut off."""
    if text.count("{") > MAX_OBJECTS:
        raise AnswerError(f"more than {MAX_OBJECTS:,} objects")
    try:
        document = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise AnswerError(f"damaged or cut off: {error}") from error
    communicators = [_communicator(row) for row in document.communicators]
    return Snapshot(
        nccl_version=document.nccl_version,
        communicators=communicators,
        total=len(communicators),
        gpus=len(devices_of(communicators)) or None,
        timeouts=max(0, document.ras.timeouts_count),
    )


def _communicator(document: _CommunicatorJson) -> Communicator:
    rows: list[_RankRow | _MissingRow] = [*document.ranks, *document.missing_ranks]
    return Communicator(
        name=document.hash,
        key=f"{document.hash}:{document.secondary_hash}",
        size=document.size,
        members={row.rank: row.member() for row in rows},
    )


def _state(status: _RankStatus) -> State:
    if status.abort_flag:
        return "aborting"
    if status.finalize_called or status.destroy_flag:
        return "finalizing"
    return "running" if status.init_state == 0 else "initializing"


def _error(status: _RankStatus) -> str | None:
    number = next((code for code in (status.init_state, status.async_error) if code not in _FINE), None)
    return None if number is None else ERRORS.get(number, f"NCCL result {number}")
