"""The main job from beginning to end: exporter, training, verdict, page, alert, each checked for real."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import msgspec

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.stored import store_verdict
from rankscope.base.errors import RankscopeError
from rankscope.cli.demo.faults import WORLD_SIZE, Fault
from rankscope.cli.demo.services import HOST, Services, free_port, get, rankscope_command
from rankscope.cli.verbs.nvml import ask_nvml
from rankscope.runs.links import overview_url
from rankscope.runs.reader import RunReader, is_run

SIMULATED_GPUS: Final = 4
EXPORTER_PORT: Final = 9838
DASHBOARD_PORT: Final = 8050
RECEIVER_PORT: Final = 9099
WINDOW: Final = {"first": 20, "every": 30, "steps": 3}
STEPS: Final = 80
_TRAINING_DEADLINE_S: Final = 600.0
_PAGE_DEADLINE_S: Final = 60.0


class StoryRow(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    ok: bool
    detail: str


@dataclass
class Story:
    """What a demonstration has started and learnt so far."""

    run_dir: Path
    fault: Fault
    services: Services
    say: Callable[[str], None]
    simulated: bool = True
    urls: dict[str, str] = field(default_factory=dict)
    parts: list[StoryRow] = field(default_factory=list)
    page: str = ""
    """The fullest /metrics page seen while the ranks were training."""
    analysis: Analysis | None = None

    @contextmanager
    def part(self, name: str) -> Iterator[list[str]]:
        """Run one part; what is appended to the list is its detail, and an error fails the part, not the story."""
        detail: list[str] = []
        try:
            yield detail
        except (RankscopeError, OSError, msgspec.MsgspecError, CheckFailedError) as error:
            self.parts.append(StoryRow(name, ok=False, detail="; ".join([*detail, str(error)])))
            self.say(f"{name}: FAILED: {error}")
        else:
            self.parts.append(StoryRow(name, ok=True, detail="; ".join(detail)))
            self.say(f"{name}: ok: {'; '.join(detail)}")


class CheckFailedError(Exception):
    """A part ran and did not do what it must."""


def expect(condition: object, message: str) -> None:
    """Raise ``CheckFailedError`` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise CheckFailedError(message)


def run_story(story: Story) -> None:
    """Run all parts in order; the result is in ``story.parts`` and ``story.analysis``."""
    spool = story.services.logs / "spool"
    spool.mkdir()
    with story.part("exporter") as detail:
        _start_exporter(story, spool, detail)
    with story.part("receiver") as detail:
        _start_receiver(story, detail)
    with story.part("training") as detail:
        _train(story, spool, detail)
    checks: list[tuple[str, Callable[[Story, list[str]], None]]] = [
        ("recording", _check_recording),
        ("verdict", _check_verdict),
        ("metrics", _check_metrics),
        ("dashboard", _check_dashboard),
        ("alert", _check_alert),
    ]
    for name, check in checks:
        with story.part(name) as detail:
            check(story, detail)


def _start_exporter(story: Story, spool: Path, detail: list[str]) -> None:
    story.simulated = ask_nvml().gpus == 0
    port = free_port(EXPORTER_PORT)
    arguments: list[str | Path] = ["exporter", "--listen", f"{HOST}:{port}", "--spool", spool]
    if story.simulated:
        story.say(f"no GPU here: the exporter SIMULATES {SIMULATED_GPUS} GPUs; the training is real")
        arguments += ["--simulate", str(SIMULATED_GPUS)]
    story.services.start("exporter", rankscope_command(*arguments))
    url = f"http://{HOST}:{port}/metrics"
    story.services.wait_for("exporter", f"http://{HOST}:{port}/-/ready")
    story.urls["metrics"] = url
    detail.append(url + (" (simulated GPUs)" if story.simulated else ""))


def _start_receiver(story: Story, detail: list[str]) -> None:
    port = free_port(RECEIVER_PORT)
    story.services.start("receiver", rankscope_command("alerts", "serve", "--listen", f"{HOST}:{port}"))
    story.services.wait_for("receiver", f"http://{HOST}:{port}/-/healthy")
    story.urls["webhook"] = f"http://{HOST}:{port}/webhook"
    story.urls["deliveries"] = f"http://{HOST}:{port}/deliveries"
    detail.append(story.urls["webhook"])


def _train(story: Story, spool: Path, detail: list[str]) -> None:
    script = Path(__file__).with_name("train.py")
    command = rankscope_command(
        "run", "--no-verdict", "--spool-dir", spool,
        "--run-dir", story.run_dir, "--name", f"demo-{story.fault}".replace(":", "-"),
        "--window-first", str(WINDOW["first"]), "--window-every", str(WINDOW["every"]), "--window-steps", str(WINDOW["steps"]),
        *(["--simulated"] if story.simulated else []),
        "--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD_SIZE),
        script, "--fault", str(story.fault), "--steps", str(STEPS),
    )  # fmt: skip
    story.say(f"training: torchrun --standalone --nproc-per-node {WORLD_SIZE} {script.name} --fault {story.fault}")
    child = story.services.start("training", command, env={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
    started = time.monotonic()
    shown = 0
    watching = False
    while (status := child.poll()) is None:
        time.sleep(0.25)
        shown = _show_new_lines(story, shown)
        if not watching and is_run(story.run_dir):
            watching = True
            _follow_run(story)
        _scrape(story)
        if time.monotonic() - started > _TRAINING_DEADLINE_S:
            raise CheckFailedError(f"did not end within {_TRAINING_DEADLINE_S:.0f} s; see {story.services.log('training')}")
    _show_new_lines(story, shown)
    expect(status == 0, f"exit status {status}: {story.services.last_line('training')}; see {story.services.log('training')}")
    expect(watching, f"no run directory appeared at {story.run_dir}: {story.services.last_line('training')}")
    detail.append(f"{WORLD_SIZE} ranks, {STEPS} steps in {time.monotonic() - started:.0f} s")


def _show_new_lines(story: Story, shown: int) -> int:
    with story.services.log("training").open(errors="replace") as log:
        log.seek(shown)
        while (line := log.readline()).endswith("\n"):
            shown = log.tell()
            story.say(f"  | {line.rstrip()}")
    return shown


def _follow_run(story: Story) -> None:
    """Start what follows a live run: the page and the watcher."""
    port = free_port(DASHBOARD_PORT)
    base = f"http://{HOST}:{port}"
    story.services.start("dashboard", rankscope_command("dashboard", story.run_dir, "--listen", f"{HOST}:{port}"))
    story.urls["dashboard"] = overview_url(base, RunReader(story.run_dir).info.run_id)
    story.urls["dashboard base"] = base
    story.services.start(
        "watcher",
        rankscope_command(
            "alerts", "watch", story.run_dir, "--interval", "2s", "--state", story.services.logs / "watcher-state",
            *(["--webhook", story.urls["webhook"]] if "webhook" in story.urls else []), "--dashboard-url", base,
        ),
    )  # fmt: skip
    story.say(f"recording: {story.run_dir}; the page is at {story.urls['dashboard']}")


def _scrape(story: Story) -> None:
    if "metrics" not in story.urls:
        return
    try:
        page = get(story.urls["metrics"], timeout=2)
    except OSError:
        return  # the check at the end says so when it never worked
    if page.count("\nrank_steps_total{") >= story.page.count("\nrank_steps_total{"):
        story.page = page


def _check_recording(story: Story, detail: list[str]) -> None:
    reader = RunReader(story.run_dir)
    attempts = reader.attempts()
    expect(attempts, "no rank took a step")
    ranks = reader.ranks(attempts[-1])
    expect(ranks == list(range(WORLD_SIZE)), f"ranks {ranks} left records, not 0 to {WORLD_SIZE - 1}")
    steps = [sum(map(len, reader.step_rows(attempts[-1], rank))) for rank in ranks]
    expect(min(steps) >= STEPS - 2, f"step records per rank: {steps}; the script took {STEPS} steps")
    windows = [{row.step for row in reader.windows(attempts[-1], rank)} for rank in ranks]
    expect(windows[0], "no profiled step")
    expect(all(window == windows[0] for window in windows), f"the ranks profiled different steps: {windows}")
    collectives = [sum(1 for _ in reader.collectives(attempts[-1], rank)) for rank in ranks]
    expect(min(collectives) > 0, f"collectives per rank: {collectives}")
    detail.append(f"{sum(steps)} step records, {len(windows[0])} profiled steps on each rank, {sum(collectives)} collectives")


def _check_verdict(story: Story, detail: list[str]) -> None:
    began_ns = time.time_ns()
    story.analysis = analyze([story.run_dir])
    store_verdict(story.run_dir, story.analysis, as_of_unix_ns=began_ns)  # `rankscope runs` lists the run with it
    right, sentence = story.fault.judge(story.analysis.verdict)
    expect(right, sentence)
    detail.append(sentence)


def says_simulated(page: str) -> bool:
    """Return whether a page of the exporter says that its GPUs are simulated."""
    # The whole line: the help of this metric begins with "1 when".
    return re.search(r"^rankscope_exporter_simulated 1(?:\.0)?$", page, re.MULTILINE) is not None


def _check_metrics(story: Story, detail: list[str]) -> None:
    expect("metrics" in story.urls, "there is no exporter")
    ranks = set(re.findall(r'^rank_steps_total\{[^}]*\brank="(\d+)"', story.page, re.MULTILINE))
    expect(len(ranks) == WORLD_SIZE, f"while training, /metrics had the ranks {sorted(ranks)}")
    get(story.urls["metrics"].replace("/metrics", "/-/ready"))
    page = get(story.urls["metrics"])
    failing = re.findall(r'^rankscope_exporter_collector_success\{collector="(\w+)"\} 0', page, re.MULTILINE)
    expect(not failing, f"the exporter's collectors {failing} fail")
    temperatures = len(re.findall(r"^gpu_temperature_celsius\{", page, re.MULTILINE))
    expect(temperatures, "/metrics has no GPU temperature")
    labelled = says_simulated(page)
    expect(labelled == story.simulated, f"GPUs simulated: {story.simulated}, but the page says {labelled}")
    detail.append(f"{len(ranks)} ranks, {temperatures} GPUs{' (labelled simulated)' if labelled else ''}")


def _check_dashboard(story: Story, detail: list[str]) -> None:
    expect("dashboard" in story.urls, "there is no run to show")
    expect(story.analysis is not None, "there is no verdict to look for")
    assert story.analysis is not None
    base = story.urls["dashboard base"]
    story.services.wait_for("dashboard", f"{base}/-/healthy")
    html = get(story.urls["dashboard"])
    expect("<title>" in html and "_dash" in html, "the page is not the app")
    path, summary = story.urls["dashboard"].removeprefix(base), story.analysis.verdict.summary
    deadline = time.monotonic() + _PAGE_DEADLINE_S
    while (answer := _answer_with(summary, base, path)) is None and time.monotonic() < deadline:
        time.sleep(0.5)  # the page says how far the analysis is, and asks again
    expect(answer is not None, f"within {_PAGE_DEADLINE_S:.0f} s no answer of the page held the verdict's sentence")
    expect(not story.simulated or "imulated" in str(answer), "the page does not say that the hardware is simulated")
    detail.append(f"{story.urls['dashboard']} (it answers with the verdict)")


def _answer_with(summary: str, base: str, path: str) -> str | None:
    """Return the content of the page, as a browser asks for it; ``None`` while it does not hold the verdict's sentence."""
    content = str(msgspec.json.decode(get(f"{base}/api/page?path={quote(path)}")))
    # What is between backticks is an element of its own on the page.
    return content if all(part in content for part in summary.split("`")) else None


def _check_alert(story: Story, detail: list[str]) -> None:
    expect("deliveries" in story.urls, "there is no receiver")
    expect("dashboard" in story.urls, "there is no run to watch")
    _wait_for_watcher(story)
    deliveries = msgspec.json.decode(get(story.urls["deliveries"]))
    alerts = [alert for delivery in deliveries["deliveries"] for alert in delivery["payload"]["alerts"]]
    firing = [alert for alert in alerts if alert["status"] == "firing" and alert["labels"]["alertname"] == "TrainingStraggler"]
    if story.fault.rank is None:
        expect(not firing, f"nothing was planted, yet {len(firing)} straggler alerts arrived")
        detail.append("nothing was sent, as nothing was planted" if not alerts else f"no straggler alert among {len(alerts)}")
        return
    ranks = {alert["labels"]["rank"] for alert in firing}
    expect(ranks == {str(story.fault.rank)}, f"straggler alerts arrived for ranks {sorted(ranks)}")
    versions = {delivery["payload"]["version"] for delivery in deliveries["deliveries"]}
    expect(versions == {"4"}, f"payload versions {versions}")
    detail.append(
        f"TrainingStraggler for rank {story.fault.rank} arrived at {story.urls['webhook']}: {firing[0]['annotations']['summary']}"
    )


def _wait_for_watcher(story: Story) -> None:
    """The watcher ends by itself once the run has ended and everything is delivered."""
    status = story.services.wait("watcher", timeout=30)
    last_line = story.services.last_line("watcher")
    expect(status is not None, f"the watcher still runs 30 s after the training; it said: {last_line}")
    expect(status == 0, f"the watcher ended with status {status}; it said: {last_line}")


def announce(story: Story) -> None:
    """Tell a person where to look."""
    lines = [
        ("page", story.urls.get("dashboard")),
        ("metrics", story.urls.get("metrics")),
        ("alerts that arrived", story.urls.get("deliveries")),
        ("run", str(story.run_dir)),
    ]
    for name, where in lines:
        if where:
            click.echo(f"  {name:20} {where}", err=True)
