"""Runs written as the recorder writes them, and a source of runs that has everything in memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import dash
import msgspec
import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from rankscope.alerts.replay_result import Replay
from rankscope.analysis.result import (
    Analysis,
    CollectiveMatching,
    Cost,
    Evidence,
    Finding,
    ImposedWait,
    RankResult,
    Source,
    Verdict,
)
from rankscope.analysis.steps import METRICS, StepTable
from rankscope.dashboards.data.alert_record import AlertsFound
from rankscope.dashboards.data.blame import BlameBook
from rankscope.dashboards.data.brief import Brief, brief_of
from rankscope.dashboards.data.comparing import Compared
from rankscope.dashboards.data.events import Events
from rankscope.dashboards.data.hardware import Hardware, nothing
from rankscope.dashboards.data.scenarios import Scenarios
from rankscope.dashboards.data.source import NotReadyError, Part, RunSummary, Stale, StepMatrices, UnknownRunError
from rankscope.dashboards.data.topology import Place, Topology
from rankscope.dashboards.data.trend import Trend, trend_of
from rankscope.dashboards.data.window_data import WindowData
from rankscope.dashboards.data.windows import Window, Windows
from rankscope.runs.errors import RankscopeError
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    EndReason,
    PhaseTimes,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.writer import JsonLinesWriter, create_attempt, create_run, write_record

T = TypeVar("T")

START_NS = 1_790_000_000_000_000_000
SLOW_RANK = 2
PROFILED = range(20, 23)
NORMAL_DATA_US, SLOW_DATA_US, COMPUTE_US = 4_000.0, 44_000.0, 30_000.0


def step_record(rank: int, step: int, *, slow_rank: int | None, noise: float) -> StepRecord:
    """One step of 80 ms or so; the others wait in backward for the one whose data comes late."""
    late = SLOW_DATA_US - NORMAL_DATA_US
    data = (SLOW_DATA_US if rank == slow_rank else NORMAL_DATA_US) + noise * 400
    forward = COMPUTE_US / 3 + noise * 500
    waiting = late if slow_rank is not None and rank != slow_rank else 0.0
    backward = 2 * COMPUTE_US / 3 + waiting + 800
    phases = PhaseTimes(data=data, forward=forward, backward=backward, optimizer=1_500.0, between_steps=200.0)
    wall = data + forward + backward + 1_700.0
    return StepRecord(
        step=step,
        start_unix_ns=START_NS + step * 80_000_000,
        wall_us=wall,
        phases_us=phases,
        blocked_us=PhaseTimes(backward=waiting + 800),
        cpu_us=wall - waiting - data,
        run_queue_us=100.0,
        samples=32,
        input_elements=32 * 128,
        profiled=step in PROFILED,
    )


def window(rank: int, record: StepRecord, *, slow_rank: int | None) -> tuple[StepBreakdown, CollectiveRecord]:
    """The profiled step that belongs to a step record: compute, one all-reduce partly hidden, idle while data is loaded."""
    blocked = record.blocked_total_us or 0.0
    data = record.phases_us.data or 0.0
    hidden = 2_000.0
    communication = blocked + hidden + 1_000.0
    exposed = communication - hidden
    compute = record.wall_us - exposed - data - 60.0
    arrival = START_NS + record.step * 80_000_000 + int((data + COMPUTE_US) * 1e3)
    end = (
        START_NS + record.step * 80_000_000 + int(((SLOW_DATA_US if slow_rank is not None else data) + COMPUTE_US + 1_800) * 1e3)
    )
    return (
        StepBreakdown(
            step=record.step,
            start_unix_ns=record.start_unix_ns,
            device_kind="cpu",
            window_us=record.wall_us,
            compute_us=compute,
            communication_us=communication,
            overlap_us=hidden,
            exposed_communication_us=exposed,
            memcpy_us=60.0,
            exposed_memcpy_us=60.0,
            idle_us=data,
            events=400,
        ),
        CollectiveRecord(
            step=record.step,
            group="default_pg",
            group_ranks=[0, 1, 2, 3],
            group_size=4,
            index=0,
            sequence=record.step,
            op="all_reduce",
            dtype="float32",
            bytes=4 << 20,
            enqueue_unix_ns=arrival,
            start_unix_ns=arrival,
            end_unix_ns=end,
        ),
    )


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """``write_run(folder, …)`` writes a run of 4 ranks; rank 2's data loader is slow unless ``slow_rank`` says otherwise.

    ``ends``: how ranks ended that did not end as the others did.
    """

    def write(
        run: Path,
        *,
        run_id: str = "run-1",
        name: str = "bert-base",
        steps: int = 60,
        ranks: int = 4,
        slow_rank: int | None = SLOW_RANK,
        windows: bool = True,
        finished: bool = True,
        ends: Mapping[int, EndReason] | None = None,
        simulated: bool = False,
        start_unix_ns: int = START_NS,
    ) -> Path:
        random = np.random.default_rng(7)
        create_run(
            run,
            RunInfo(
                run_id=run_id, name=name, start_unix_ns=start_unix_ns, price_per_gpu_hour=2.5, currency="USD", simulated=simulated
            ),
        )
        create_attempt(run, AttemptInfo(attempt=0, start_unix_ns=start_unix_ns, world_size=ranks or 4, backend="gloo"))
        for rank in range(ranks):
            folder = rank_dir(run, 0, rank)
            info = RankInfo(
                rank=rank,
                world_size=ranks,
                host=f"node-{rank // 2}",
                pid=1000 + rank,
                local_rank=rank % 2,
                gpu_uuid=f"GPU-{rank:08x}-5d1f-4a52-9c3e-0123456789ab",
                start_unix_ns=start_unix_ns,
                end_unix_ns=start_unix_ns + steps * 80_000_000 if finished else None,
                end_reason=(ends or {}).get(rank, "exit" if finished else None),
            )
            write_record(folder / "rank.json", info)
            append_steps(folder, rank, range(steps), slow_rank=slow_rank, windows=windows, random=random)
        return run

    return write


def append_steps(
    folder: Path, rank: int, steps: range, *, slow_rank: int | None, windows: bool, random: np.random.Generator
) -> None:
    """Append step records, and windows for the profiled ones, to a rank's folder."""
    writers = {stream: JsonLinesWriter(folder, stream) for stream in ("steps", "windows", "collectives")}
    for step in steps:
        record = step_record(rank, step, slow_rank=slow_rank, noise=float(random.uniform(-1, 1)))
        writers["steps"].append(record)
        if windows and step in PROFILED:
            breakdown, collective = window(rank, record, slow_rank=slow_rank)
            writers["windows"].append(breakdown)
            writers["collectives"].append(collective)
    for writer in writers.values():
        writer.close()


def _rank(rank: int) -> RankResult:
    slow = rank == SLOW_RANK
    return RankResult(
        rank=rank,
        host=f"node-{rank // 2}",
        gpu_uuid=f"GPU-{rank:08x}-5d1f-4a52-9c3e-0123456789ab",
        device_kind="cuda",
        attempt=0,
        steps=60,
        window_basis="steps",
        window_us=240_000.0 + rank,
        compute_us=100_000.0,
        communication_us=130_000.0 if not slow else 12_000.0,
        overlap_us=6_000.0,
        exposed_communication_us=124_000.0 if not slow else 6_000.0,
        memcpy_us=300.0,
        exposed_memcpy_us=200.0,
        idle_us=15_800.0 + rank if not slow else 133_800.0 + rank,
        overlap_ratio=6 / 130 if not slow else 0.5,
        transfer_us=4_000.0,
        wait_us=120_000.0 if not slow else 0.0,
        blocked_us=40_800.0 if not slow else 800.0,
        own_us=36_500.0 if not slow else 76_500.0,
        wall_us=77_300.0,
        end_reason="exit",
    )


@pytest.fixture
def analysis() -> Analysis:
    """A verdict against rank 2, with every field there is."""
    summary = "Rank 2 on host node-1 makes the other 3 ranks wait 40 ms per step (52 % of the step): its data loader is slow."
    return Analysis(
        source=Source(
            kind="run",
            path="runs/bert",
            ranks=4,
            world_size=4,
            steps=60,
            coverage=1.0,
            simulated=False,
            run_id="run-1",
            name="bert-base",
        ),
        ranks=[_rank(rank) for rank in range(4)],
        collectives=CollectiveMatching(matched=3, unmatched=0, excluded={}, method="sequence", clock_residual_us=4.0),
        imposed_wait=[
            ImposedWait(rank=2, imposed_us=360_000.0, imposed_exposed_us=340_000.0, share=0.98),
            ImposedWait(rank=0, imposed_us=7_000.0, imposed_exposed_us=7_000.0, share=0.02),
            ImposedWait(rank=1, imposed_us=0.0, imposed_exposed_us=0.0, share=0.0),
        ],
        verdict=Verdict(
            kind="straggler",
            rank=2,
            ranks=[2],
            pattern="fixed",
            cause="input",
            phase="data",
            steps=(5, 60),
            evidence_source="steps",
            confidence=0.96,
            slowdown=2.07,
            gpu_hours_lost=12.4,
            cost=Cost(amount=31.0, currency="USD"),
            summary=summary,
            next=[
                "rankscope analyze runs/bert --format json",
                "Look at the data loader of rank 2: workers, storage, augmentation.",
            ],
        ),
        findings=[
            Finding(
                kind="straggler",
                rank=2,
                host="node-1",
                cause="input",
                phase="data",
                summary=summary,
                evidence=[
                    Evidence(
                        name="own_time_excess", value=40_000.0, unit="us", detail="per step, against the median of the others"
                    ),
                    Evidence(name="p_value", value=0.0004998, unit="probability", detail="permutation test"),
                ],
            )
        ],
    )


class Matrices:
    """A step table as the pages get it, all of it in memory."""

    def __init__(self, table: StepTable) -> None:
        self._table = table
        self.ranks, self.steps = table.ranks, table.steps
        self.profiled = table.steps[table.profiled.any(axis=0)]
        self.metrics = [metric for metric in METRICS if np.isfinite(table.matrix(metric)).any()]

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> Part:
        """Every step of it, however many."""
        del most_columns
        shape = (len(self.ranks), len(self.steps))
        matrix = self._table.matrix(metric) if metric in METRICS else np.full(shape, np.nan)
        return Part(matrix[:, first:last].astype(np.float32), first, 1)


class MemoryRuns:
    """``RunSource`` over what the test put in; ``problems`` are raised instead of an answer."""

    def __init__(self) -> None:
        self.summaries: dict[str, RunSummary] = {}
        self.analyses: dict[str, Analysis] = {}
        self.tables: dict[str, Matrices] = {}
        self.blames: dict[str, BlameBook] = {}
        self.whatifs: dict[str, Scenarios] = {}
        self.topologies: dict[str, Topology] = {}
        self.samples: dict[str, Hardware] = {}
        self.happened: dict[str, Events] = {}
        self.versions: dict[str, str] = {}
        """Of a run whose analysis is not of the files as they are now."""
        self.stales: dict[str, Stale] = {}
        self.problems: dict[str, Exception] = {}
        self.replays: dict[str, Replay] = {}
        self.alerts_found: dict[str, AlertsFound] = {}
        self.analysed = 0
        self.known: set[str] = set()
        """Runs that have been analysed before."""
        self.comparison: Compared | None = None

    def put(self, analysis: Analysis, table: StepTable | Matrices, **summary: Any) -> None:
        """Add or replace the run ``run_id`` (default ``run-1``)."""
        run = replace(
            RunSummary(
                run_id="run-1", name="bert-base", path="runs/bert", revision="a", status="finished", world_size=4, ranks=4,
                hosts=2, attempts=1, start_unix_ns=START_NS,
            ),
            **summary,
        )  # fmt: skip
        self.summaries[run.run_id] = run
        self.analyses[run.run_id] = analysis
        self.tables[run.run_id] = table if isinstance(table, Matrices) else Matrices(table)
        nothing_told = BlameBook(matrix_source=None, matrix_steps=0, groups=[], groups_left_out=0, ranks=[], timeline=None)
        self.blames.setdefault(run.run_id, nothing_told)

    def runs(self) -> list[RunSummary]:
        return list(self.summaries.values())

    def summary(self, run_id: str) -> RunSummary:
        if run_id not in self.summaries:
            raise UnknownRunError(run_id)
        return self.summaries[run_id]

    def version(self, run_id: str) -> str:
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.versions.get(run_id, self.summary(run_id).revision)

    def stale(self, run_id: str) -> Stale | None:
        return self.stales.get(run_id)

    def analysis(self, run_id: str) -> Analysis:
        self.analysed += 1
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.analyses[run_id]

    def brief(self, run_id: str) -> Brief:
        return brief_of(self.analysis(run_id))

    def alerts(self, run_id: str) -> AlertsFound:
        return self.alerts_found.get(run_id, AlertsFound([], []))

    def all_alerts(self) -> AlertsFound:
        if "alerts" in self.problems:
            raise self.problems["alerts"]
        found = list(self.alerts_found.values())
        return AlertsFound([alert for one in found for alert in one.alerts], [said for one in found for said in one.problems])

    def known_brief(self, run: RunSummary) -> Brief | None:
        return brief_of(self.analyses[run.run_id]) if run.run_id in self.known else None

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> Compared:
        for run_id in run_ids:
            self.summary(run_id)
        del at
        if "compare" in self.problems:
            raise self.problems["compare"]
        assert self.comparison is not None
        return self.comparison

    def blame(self, run_id: str) -> BlameBook:
        return self._or_problem(self.blames, run_id)

    def replay(self, run_id: str) -> Replay:
        return self._or_problem(self.replays, run_id)

    def scenarios(self, run_id: str) -> Scenarios:
        return self._or_problem(self.whatifs, run_id)

    def _or_problem(self, of: Mapping[str, T], run_id: str) -> T:
        if run_id in self.problems:
            raise self.problems[run_id]
        if run_id not in of:
            raise RankscopeError("the test has not put this in")
        return of[run_id]

    def windows(self, run: RunSummary) -> Windows:
        del run
        return Windows(recorded=0)

    def window(self, run: RunSummary, window: Window) -> WindowData:
        raise UnknownRunError(f"{run.run_id}: {window}")

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        raise UnknownRunError(f"{run.run_id}: {window} of {rank}")

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        raise UnknownRunError(f"{run.run_id}: {window}")

    def steps(self, run_id: str) -> StepMatrices:
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.tables[run_id]

    def trend(self, run_id: str) -> Trend:
        if run_id in self.problems:
            raise self.problems[run_id]
        return trend_of(self.tables[run_id], self.tables[run_id].profiled)

    def topology(self, run_id: str) -> Topology:
        return self.topologies.get(run_id, Topology([Place(int(rank)) for rank in self.tables[run_id].ranks]))

    def hardware(self, run_id: str) -> Hardware:
        return self.samples.get(run_id, nothing("there are no hardware samples"))

    def events(self, run_id: str) -> Events:
        return self.happened.get(run_id, Events(why_none="there are no hardware samples"))


PATIENCE_MS = 60_000


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """``serve(path)`` starts the command, with a cache of its own, and returns its address."""
    cache = str(tmp_path_factory.mktemp("cache"))
    processes: list[subprocess.Popen[str]] = []

    def start(path: Path) -> str:
        command = [sys.executable, "-m", "rankscope", "dashboard", str(path), "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": cache}
        )
        processes.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert match is not None, line
        return match[0]

    yield start
    for process in processes:
        process.terminate()
        process.wait(timeout=30)
        assert process.stderr is not None
        process.stderr.close()


@contextmanager
def _opened(browser: Browser, url: str, **context: Any) -> Iterator[Page]:
    """A page that must not complain nor ask anybody else for anything."""
    host = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    complaints: list[str] = []
    with browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **context}) as session:
        page = session.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if _elsewhere(request.url, host) else None)
        page.on(
            "response",
            lambda response: complaints.append(f"{response.status} {response.url}") if response.status >= 400 else None,
        )
        page.goto(url)
        yield page
        page.wait_for_load_state("networkidle")
        assert complaints == []


def _is_complaint(message: ConsoleMessage) -> bool:
    """Dash's table asks its grid once more for the selection when its page is left in that moment: nobody is worse off."""
    return message.type in {"error", "warning"} and "as the grid has been destroyed" not in message.text


def _elsewhere(url: str, host: str) -> bool:
    return not url.startswith((f"{host}/", "data:", "blob:"))


@pytest.fixture
def opened(browser: Browser) -> Callable[..., AbstractContextManager[Page]]:
    """``with opened(url, **context) as page``: a page that must not complain nor ask anybody else for anything."""
    return partial(_opened, browser)


@pytest.fixture
def a_step() -> StepRecord:
    """A step in which nothing is slow."""
    return step_record(0, 0, slow_rank=None, noise=0)


@pytest.fixture
def table() -> StepTable:
    """Step table of the straggler run; rank 1 has no record of steps 30 to 39."""
    return StepTable.from_records(
        0,
        {
            rank: [
                step_record(rank, step, slow_rank=SLOW_RANK, noise=((step * 7 + rank) % 5) / 5)
                for step in range(60)
                if not (rank == 1 and 30 <= step < 40)
            ]
            for rank in range(4)
        },
    )


@pytest.fixture
def memory_runs(analysis: Analysis, table: StepTable) -> MemoryRuns:
    """A source with the straggler run in it."""
    source = MemoryRuns()
    source.put(analysis, table)
    return source


class Caller:
    """Calls callbacks of an app over HTTP, as a browser does."""

    def __init__(self, app: dash.Dash) -> None:
        self.http = app.server.test_client()
        self._specs: list[dict[str, Any]] = self.http.get("/_dash-dependencies").json

    def __call__(self, output: str, values: dict[str, Any], *, triggered: str) -> dict[str, Any]:
        """Response of the callback that has ``output`` (``"id.property"``), or ``{}`` when it updates nothing."""
        spec = next(spec for spec in self._specs if output in spec["output"].strip(".").split("..."))
        names = spec["output"].strip(".").split("...")
        outputs = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
        answer = self.http.post(
            "/_dash-update-component",
            json={
                "output": spec["output"],
                "outputs": outputs if spec["output"].startswith("..") else outputs[0],
                "inputs": [{**item, "value": values.get(f"{item['id']}.{item['property']}")} for item in spec["inputs"]],
                "state": [{**item, "value": values.get(f"{item['id']}.{item['property']}")} for item in spec["state"]],
                "changedPropIds": [triggered],
            },
        )
        if answer.status_code == 204:
            return {}
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = msgspec.json.decode(answer.data)["response"]
        return response

    def drawn(self, name: str, search: str = "", *, scheme: str | None = None, run_id: str = "run-1") -> dict[str, Any]:
        """What a figure of a run is drawn as."""
        figure: dict[str, Any] = self._piece("figure", name, "figure", search, scheme, run_id)
        return figure

    def written(self, name: str, search: str = "", *, run_id: str = "run-1") -> Any:
        """What a part of a run's page says."""
        return self._piece("part", name, "children", search, None, run_id)

    def rows(self, name: str, search: str = "", *, run_id: str = "run-1") -> list[dict[str, Any]]:
        """Rows of a table of a run's page."""
        rows: list[dict[str, Any]] = self._piece("grid", name, "rowData", search, None, run_id)
        return rows

    def _piece(self, kind: str, name: str, what: str, search: str, scheme: str | None, run_id: str) -> Any:  # noqa: PLR0917
        known = {
            "run": {"run_id": run_id, "version": "a", "view": ""},
            "address": search,
            "scheme": scheme,
            json.dumps({"name": name, "type": kind}, separators=(",", ":")): {"name": name, "type": kind},
        }
        mine = f'{{"name":["MATCH"],"type":"{kind}"}}.{what}'
        spec = next(spec for spec in self._specs if mine in spec["output"])
        text = spec["output"].replace('["MATCH"]', json.dumps(name))

        def filled(item: dict[str, Any]) -> dict[str, Any]:
            key = item["id"].replace('["MATCH"]', json.dumps(name))
            return {"id": json.loads(key) if key.startswith("{") else key, "property": item["property"], "value": known.get(key)}

        outputs = [
            {"id": json.loads(output.rsplit(".", 1)[0]), "property": output.rsplit(".", 1)[1]}
            for output in text.strip(".").split("...")
        ]
        answer = self.http.post(
            "/_dash-update-component",
            json={
                "output": spec["output"],
                "outputs": outputs if text.startswith("..") else outputs[0],
                "inputs": [filled(item) for item in spec["inputs"]],
                "state": [filled(item) for item in spec["state"]],
                "changedPropIds": ["run.data"],
            },
        )
        assert answer.status_code == 200, answer.text
        response = msgspec.json.decode(answer.data)["response"]
        return response[json.dumps({"name": name, "type": kind}, separators=(",", ":"))][what]

    def selected(
        self, happened: tuple[str, str, Any], search: str = "", *, controls: Mapping[str, Any] | None = None, view: str = "ranks"
    ) -> dict[str, Any]:
        """What changes after ``happened``: (type of the piece, its name, what it tells); ``("address", "", None)`` for none."""
        kind, name, told = happened
        shown = dict(controls or {})
        prop = {"control": "value", "figure": "clickData", "zoomed": "data", "grid": "cellClicked"}.get(kind, "search")
        if kind == "control":
            shown[name] = told

        def several(of: str, what: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
            return [{"id": {"type": of, "name": key}, "property": what, "value": value} for key, value in values.items()]

        values = several("control", "value", shown)
        identifier = json.dumps({"name": name, "type": kind}, separators=(",", ":"))
        spec = next(spec for spec in self._specs if spec["output"].startswith("..address.search"))
        answer = self.http.post(
            "/_dash-update-component",
            json={
                "output": spec["output"],
                "outputs": [
                    {"id": "address", "property": "search"},
                    [{"id": item["id"], "property": "value"} for item in values],
                    {"id": "views", "property": "children"},
                ],
                "inputs": [
                    values,
                    several("figure", "clickData", {name: told} if kind == "figure" else {}),
                    several("zoomed", "data", {name: told} if kind == "zoomed" else {}),
                    several("grid", "cellClicked", {name: told} if kind == "grid" else {}),
                    {"id": "address", "property": "search", "value": search},
                ],
                "state": [
                    [{"id": item["id"], "property": "id", "value": item["id"]} for item in values],
                    {"id": "run", "property": "data", "value": {"run_id": "run-1", "version": "a", "view": view}},
                ],
                "changedPropIds": ["address.search" if kind == "address" else f"{identifier}.{prop}"],
            },
        )
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = msgspec.json.decode(answer.data)["response"]
        return response


@pytest.fixture
def caller() -> type[Caller]:
    """``caller(app)`` makes a client of an app."""
    return Caller


@pytest.fixture
def until_ready() -> Callable[[Callable[[], Any]], Any]:
    """``until_ready(ask)`` asks again while what is asked for is being made."""

    def wait(ask: Callable[[], Any]) -> Any:
        end = time.monotonic() + 60.0
        while True:
            try:
                return ask()
            except NotReadyError:
                assert time.monotonic() < end
                time.sleep(0.05)

    return wait
