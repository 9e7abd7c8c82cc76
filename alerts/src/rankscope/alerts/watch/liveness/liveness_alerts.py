"""Alerts about ranks that ended or stopped, about a run that stands still, and about a run that ended early."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from rankscope.alerts.alert import rfc3339
from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss, Subject
from rankscope.alerts.watch.liveness.attempt_liveness import LivenessVerdict
from rankscope.alerts.watch.liveness.outage import LastStep, Outage
from rankscope.alerts.watcher_alerts import CRASHED, HANG, RANK_LOST
from rankscope.analysis.hang.activity import Activities, hang_by_activity, with_activity
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.hang.hang_wording import operation_text
from rankscope.analysis.verdict.endings import endings
from rankscope.base.text import format_duration, ranks_text, span
from rankscope.runs.records import RankInfo

CHAIN: Final = 4
"""Most links of the wait chain in an alert."""
HOSTS: Final = 3
"""Most hosts that a summary lists; of more it has the number."""
PIDS: Final = 3
"""Most ranks for which an alert suggests a stack dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessAlerts:
    """A run with ranks that stopped or ended."""

    run: Path
    subject: Subject
    infos: Mapping[int, RankInfo]
    usual_us: float | None = None
    """Usual step time in microseconds."""
    gpus: ConditionLoss | None = None
    """Hourly cost of all its GPUs; ``None`` for a run without GPUs or a price."""

    def lost(self, silent: Collection[int], reasons: Mapping[int, str] = MappingProxyType({})) -> list[Candidate]:
        """Build one alert for each rank that stopped or ended while others are active. ``reasons``: how each ended."""
        return [self._lost_rank(rank, reasons.get(rank)) for rank in sorted({*silent, *reasons})]

    def outage(self, outage: Outage, silence_s: Mapping[int, float], *, first: bool) -> list[Candidate]:
        """Build one alert for each rank that is silent after others ended.

        ``silence_s``: time since its last step. ``first``: it fell silent before the others ended, which is the consequence.
        """
        return [self._silent_rank(rank, last, outage, silence_s[rank], first=first) for rank, last in outage.silent.items()]

    def _silent_rank(self, rank: int, last: LastStep | None, outage: Outage, silence_s: float, *, first: bool) -> Candidate:
        info = self.infos[rank]
        since = "has recorded no step" if last is None else f"has recorded nothing after step {last.step}"
        ended = {reason: [other for other, how in outage.ended.items() if how == reason] for reason in _ENDS}
        others = " and ".join(f"{ranks_text(ranks)} {_ENDED[reason]}" for reason, ranks in ended.items() if ranks)
        hosts = [*dict.fromkeys(self.infos[other].host for other in outage.ended)]
        others += f" on {', '.join(hosts)}" if len(hosts) <= HOSTS else f" on {len(hosts)} hosts"
        waited = span(outage.waited_s)
        after = f"In consequence {others}, {waited} after their last steps." if first else f"About then {others}."
        return self.subject.candidate(
            RANK_LOST,
            {
                "summary": (
                    f"Rank {rank} on {info.host} of run {self.subject.title} {since}, for {span(silence_s)}, "
                    f"and has not ended. {after}"
                ),
                "cause": "silent",
                "consequence": ",".join(map(str, outage.ended)) if first else "",
                "last_step": "" if last is None else str(last.step),
                "last_heard": "" if last is None else rfc3339(last.end_unix_ns),
                "gpu_uuid": info.gpu_uuid or "",
                "evidence": (
                    f"{ranks_text([*outage.silent])} recorded neither a later step nor an end; "
                    f"{ranks_text([*outage.ended])} ended {waited} or more after their last steps"
                ),
                "next": "\n".join(
                    [
                        f"Check whether {info.host} has power and network: ping {shlex.quote(info.host)}",
                        _stack_of_what_may_be_dead(info),
                        f"Restart the job without {info.host} if it is down",
                        f"rankscope analyze {self._quoted}",
                    ]
                ),
            },
            rank=rank,
            host=info.host,
        )

    def _lost_rank(self, rank: int, end_reason: str | None) -> Candidate:
        info = self.infos.get(rank)
        where = "" if info is None else f" on {info.host}"
        if end_reason is None:
            state = "has stopped recording steps, and other ranks go on"
            stack = () if info is None else (_stack_of_what_may_be_dead(info),)
        else:
            state = f"{_ENDS[end_reason]}, and other ranks have not ended"
            stack = (f"Look at the error output of rank {rank}{where}",)
        return self.subject.candidate(
            RANK_LOST,
            {
                "summary": f"Rank {rank}{where} of run {self.subject.title} {state}.",
                "cause": "silent" if end_reason is None else "ended",
                "gpu_uuid": "" if info is None else info.gpu_uuid or "",
                "next": "\n".join(
                    [*stack, f"Look for the reason in the kernel log{where}: {_KERNEL}", f"rankscope analyze {self._quoted}"]
                ),
            },
            rank=rank,
            host=None if info is None else info.host,
        )

    def hang(
        self, liveness: LivenessVerdict, report: HangReport | None, *, missing: str = "", activities: Activities | None = None
    ) -> Candidate:
        """Build the alert about a stalled run.

        ``missing``: the reason why no dumps name the culprit. ``activities``: what its ranks are doing.
        """
        if activities is not None:
            report = hang_by_activity(activities) if report is None else with_activity(report, activities)
        usual = "" if self.usual_us is None else f" (usually {format_duration(self.usual_us)} each)"
        lost = None
        if self.gpus is not None:
            lost = msgspec.structs.replace(self.gpus, gpu_hours=self.gpus.per_hour * liveness.stalled_s / 3600)
        summary = f"No rank of run {self.subject.title} has finished a step for {span(liveness.stalled_s)}{usual}"
        reason = report.summary if report is not None else f"its {len(liveness.live)} ranks hang, or are gone."
        texts = {
            "summary": f"{summary}: {reason}",
            **({} if report is None else self._culprit(report)),
            "evidence": "; ".join(filter(None, [*([] if report is None else _evidence(report)), missing])),
            "next": "\n".join(self._next(liveness, report)),
        }
        return self.subject.candidate(HANG, texts, loss=lost)

    def _culprit(self, report: HangReport) -> dict[str, str]:
        hosts = dict.fromkeys(culprit.host for culprit in report.evidence if culprit.host is not None)
        return {
            "culprit": ",".join(map(str, report.culprits)),
            "culprit_host": ",".join(hosts),
            "cause": report.cause or "",
            "collective": "" if report.collective is None else operation_text(report.collective),
            "group": "" if report.group is None else report.group.description or report.group.name,
            "chain": "; ".join(
                f"rank {link.rank} waits for rank {link.waits_for} in {operation_text(link.operation)}"
                for link in report.chain[:CHAIN]
            ),
            "confidence": ""
            if not report.evidence
            else "certain"
            if all(culprit.certain for culprit in report.evidence)
            else "probable",
        }

    def _next(self, liveness: LivenessVerdict, report: HangReport | None) -> list[str]:
        if report is None:
            return [*self._stacks(liveness.live), f"rankscope capture {self._quoted} --flight-recorder"]
        advice = [step for step in report.next if not step.startswith(("rankscope analyze", "rankscope hang"))]
        return concrete([f"rankscope hang {self._quoted}", *self._stacks(report.culprits), *advice])

    def _stacks(self, ranks: list[int]) -> list[str]:
        return stacks(self.infos[rank] for rank in ranks if rank in self.infos)

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self.run))

    def crashed(self) -> Candidate | None:
        """Build the alert about a run that ended because ranks died; ``None`` if all ended at once, as in a cancelled job."""
        ended = endings(self.infos)
        if not ended.crashed and ended.first is None:
            return None
        first = ended.first
        info = None if first is None else self.infos.get(first)
        died = sorted({*ended.crashed, *ended.killed})
        where = "" if info is None else f" of rank {first} on {info.host}"
        sentences = "; ".join(ended.sentences())
        return self.subject.candidate(
            CRASHED,
            {
                "summary": f"Run {self.subject.title} ended early: {sentences}.",
                "culprit": "" if first is None else str(first),
                "culprit_host": "" if info is None else info.host,
                "gpu_uuid": "" if info is None else info.gpu_uuid or "",
                "cause": "crash" if ended.crashed else "killed",
                "evidence": f"{ranks_text(died)} of {len(self.infos)} did not come to the end of training",
                "next": "\n".join(
                    [
                        f"Look at the job's own error output{where}",
                        *([] if ended.crashed else [f"On that host: {_KERNEL}"]),
                        f"rankscope analyze {self._quoted}",
                    ]
                ),
            },
        )


def _evidence(report: HangReport) -> list[str]:
    details = [culprit.detail for culprit in report.evidence[:PIDS]]
    doing = report.activity
    if doing is not None and doing.summary not in report.summary:
        details.append(f"what the ranks are doing: {doing.summary}")
    return details


_ENDS: Final = {"crash": "crashed", "killed": "was killed"}
_ENDED: Final = {"crash": "crashed", "killed": "were killed"}
_STACK: Final = "py-spy dump --pid "
_KERNEL: Final = "dmesg -T | grep -i -E 'oom|killed process|xid'"


def stacks(infos: Iterable[RankInfo]) -> list[str]:
    """Return commands that print the Python stacks of the first ``PIDS`` ranks whose processes have not ended."""
    running = (info for info in infos if info.end_unix_ns is None and info.end_reason is None)
    return [f"{_STACK}{info.pid}   (rank {info.rank}, on {info.host})" for info in islice(running, PIDS)]


def _stack_of_what_may_be_dead(info: RankInfo) -> str:
    return f"If its process is still there on {info.host} (ps -p {info.pid}): {_STACK}{info.pid}"


def is_stack(step: str) -> bool:
    """Return whether a step is a command of ``stacks``."""
    return re.match(f"{_STACK}[0-9]", step) is not None


def concrete(steps: list[str]) -> list[str]:
    """Remove duplicate steps, and stack commands without a process id if there is one with an id."""
    has_stacks = any(map(is_stack, steps))
    return [step for step in dict.fromkeys(steps) if not (has_stacks and f"{_STACK}PID" in step)]
