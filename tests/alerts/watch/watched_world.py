"""A watcher over real run directories, with an analysis that the test sets and a clock that the test advances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.alerts.conftest import RunOnDisk

from rankscope.alerts.deliver.notifiers import Webhook
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.post import DeliveryError
from rankscope.alerts.deliver.targets import webhook_target
from rankscope.alerts.output import Event
from rankscope.alerts.payload import Notice
from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.watch.conditions.step_past import StepPast
from rankscope.alerts.watch.delivery import Delivery
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watch.watcher import Watcher
from rankscope.alerts.watch.watcher_settings import WatcherSettings
from rankscope.analysis.evidence.step_table.rank_columns import RankColumns
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.online import NewSteps
from rankscope.analysis.result.analysis import Analysis, CollectiveMatching, Cost, Evidence, Finding, RankResult, Source, Verdict


def analysis_of(*stragglers: int, run_id: str = "llama-1", simulated: bool = False, kind: str | None = None) -> Analysis:
    """Return an analysis of four ranks that finds ``stragglers``; without any, its verdict is of ``kind``."""
    findings = [
        Finding(
            kind="straggler",
            rank=rank,
            host="node1",
            cause="input",
            phase="data",
            pattern="fixed",
            steps=(5, 60),
            confidence=0.96,
            slowdown=1.5,
            gpu_hours_lost=0.25,
            summary=f"Rank {rank} makes the others wait.",
            evidence=[Evidence(name="own_excess", value=60.0, unit="ms", detail="per step")],
        )
        for rank in stragglers
    ]
    verdict: dict[str, Any] = {"kind": kind or "balanced", "summary": "Nobody stands out."}
    if findings:
        verdict = {
            "kind": "straggler",
            "rank": stragglers[0],
            "explained_by": "cpu_contention",
            "cost": Cost(amount=0.5, currency="USD"),
            "summary": findings[0].summary,
            "next": ["look at the data loader"],
        }
    fields: dict[str, Any] = dict.fromkeys(RankResult.__struct_fields__)
    return Analysis(
        source=Source(
            kind="run",
            path="x",
            ranks=4,
            world_size=4,
            steps=60,
            coverage=1.0,
            simulated=simulated,
            run_id=run_id,
            name="llama",
        ),
        ranks=[RankResult(**{**fields, "rank": rank, "attempt": 0, "steps": 60, "gpu_uuid": f"GPU-{rank}"}) for rank in range(4)],
        collectives=CollectiveMatching(matched=0, unmatched=0, excluded={}, method=None, clock_residual_us=None),
        imposed_wait=[],
        verdict=Verdict(**verdict),
        findings=findings,
    )


PATIENCE_S = 60.0
"""Patience of the watchers of ``make_quiet_world``."""


class RecordingWebhook(Webhook):
    """A webhook with an outbox in memory that records its notices, or refuses them."""

    def __init__(self) -> None:
        super().__init__(webhook_target("http://told.example/"), Outbox(AlertStore(None)), wake=lambda: None)
        self.name = "told"
        self.broken = False
        self.calls: list[list[Notice]] = []

    def send(self, notices: Sequence[Notice]) -> None:
        if self.broken:
            raise DeliveryError("answered 500")
        super().send(notices)
        self.calls.append(list(notices))

    @property
    def heard(self) -> list[tuple[str, str]]:
        return [(notice.alert.status, notice.alert.labels.get("rank", "")) for call in self.calls for notice in call]


class World(FollowedRuns):
    """A run, its watcher, its clock, and everything that it reports. ``path``: the folder to watch, if it is not the run's."""

    def __init__(
        self,
        run: RunOnDisk,
        path: Path | None = None,
        *,
        receiver: RecordingWebhook | None = None,
        ledger: AlertLedger | None = None,
        fire_after: int = 2,
        **options: Any,
    ) -> None:
        super().__init__()
        self.run = run
        self.path = path or run.path
        self._options = {"fire_after": fire_after, **options}
        self.now_s = 1_700_000_100.0
        self.clock_off_s = 0.0
        """Seconds by which the clock has been set, in addition."""
        self.answer: Analysis | Exception | None = None
        self.analysed: list[Path] = []
        self.followed: list[Path] = []
        self.kept: list[Path] = []
        self.reports: list[str] = []
        self.events: list[Event] = []
        self.saved: list[bytes] = []
        self.steps: StepPast | None = None
        self.new_steps: NewSteps | None = None
        """Judgement of new steps; ``None``: too few of them."""
        self.judged_since: list[tuple[int, int]] = []
        """First step and least number of steps of each request for a judgement of new steps."""
        self.hung: HangReport | None = None
        self.receiver = receiver or RecordingWebhook()
        self.watcher = Watcher(
            self.path,
            analyse=self.analyse,
            follow=self,
            delivery=Delivery(webhooks=[self.receiver], interval_s=5, report=self.reports.append),
            ledger=ledger or AlertLedger(),
            options=WatcherSettings(policy=FiringPolicy(fire_after, 2), **options),
            report=self.reports.append,
            emit=self.events.append,
            save=lambda ledger: self.saved.append(msgspec.json.encode(ledger)),
            clock=lambda: int((self.now_s + self.clock_off_s) * 1e9),
            elapsed=lambda: self.now_s,
        )

    def past(self, run: Path, /, *, read: bool = False) -> StepPast | None:
        del run, read
        return self.steps

    def judge_since(self, run: Path, step: int, /, *, at_least: int) -> NewSteps | None:
        del run
        self.judged_since.append((step, at_least))
        return self.new_steps

    def hang(self, run: Path, fresh: bool, /) -> HangReport | None:
        del run, fresh
        return self.hung

    def update(self, run: Path) -> Analysis:
        self.followed.append(run)
        return self.analyse([run])

    def keep(self, runs: Collection[Path]) -> None:
        self.kept = list(runs)

    def analyse(self, paths: Sequence[Path]) -> Analysis:
        self.analysed += paths
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    def restarted(self) -> World:
        """Return the watcher that follows this one, with its last saved ledger, at the same time."""
        ledger = msgspec.json.decode(self.saved[-1], type=AlertLedger)
        world = World(self.run, self.path, receiver=self.receiver, ledger=ledger, **self._options)
        world.now_s, world.answer, world.steps = self.now_s, self.answer, self.steps
        return world

    def evaluate(self, answer: Analysis | Exception | None = None) -> bool:
        """Advance the clock by 5 s and evaluate."""
        self.now_s += 5
        self.answer = answer or self.answer
        return self.watcher.evaluate()

    def advance(self, answer: Analysis | Exception | None = None, *, times: int = 1, ranks: Sequence[int] = range(4)) -> bool:
        """Evaluate every 5 s, ``times`` times, each time after another step of ``ranks``."""
        over = False
        for _ in range(times):
            if ranks:
                self.run.grow(1, ranks=ranks)
            over = self.evaluate(answer)
        return over

    def go_on(self, seconds: float, *, ranks: Sequence[int] = range(4)) -> None:
        """Evaluate every 5 s for ``seconds`` seconds, each time after another step of ``ranks``."""
        self.advance(times=round(seconds / 5), ranks=ranks)

    def let_pass(self, seconds: float) -> None:
        """Evaluate every 5 s for ``seconds`` seconds, without a step of the run."""
        self.advance(times=round(seconds / 5), ranks=())

    @property
    def heard(self) -> list[tuple[str, str]]:
        """Status and rank of each notice that the receiver got."""
        return self.receiver.heard

    def event_names(self) -> list[str]:
        return [event.event for event in self.events]

    def firing(self) -> list[str]:
        """Return the names of the alerts that fire now, each with its rank if it is about one."""
        entries = [entry for entry in self.watcher.ledger.entries if entry.track.state == "firing"]
        return sorted(f"{entry.name} {entry.alert.labels.get('rank', '')}".rstrip() for entry in entries)

    def annotations(self, name: str) -> dict[str, str]:
        """Return the annotations of the only firing alert of that name."""
        [firing] = [entry for entry in self.watcher.ledger.entries if (entry.name, entry.track.state) == (name, "firing")]
        return firing.alert.annotations


MakeWorld = Callable[..., World]


def past_of(seconds: Sequence[float], **columns: Any) -> StepPast:
    """Return a past of steps of the given durations; ``tags`` as in ``RankColumns``, other columns by their names."""
    walls = np.array(seconds) * 1e6
    tags = columns.pop("tags", {})
    past = StepPast()
    past.begin(0)
    past.has_ranks([0])
    past.add(
        0,
        RankColumns(
            step=np.arange(len(walls)),
            start=(10**18 + np.concatenate([[0], np.cumsum(walls)[:-1]]) * 1000).astype(np.int64),
            profiled=np.zeros(len(walls), dtype=bool),
            values={
                "wall_us": walls.astype(np.float32),
                **{name: np.asarray(values, np.float32) for name, values in columns.items()},
            },
            tags={tag: np.asarray(at, np.intp) for tag, at in tags.items()},
        ),
    )
    return past
