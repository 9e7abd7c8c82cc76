"""First contact with the command line: help, exit statuses, one-line errors."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import click
import pytest
from tests.cli.json_reports import json_report
from tests.command_line import Cli, one_line_error

from rankscope.cli.main import VERBS
from rankscope.cli.main import cli as root_command
from rankscope.cli.verbs import doctor
from rankscope.cli.verbs.doctor import extras
from rankscope.cli.verbs.schema import SCHEMAS
from rankscope.runs.records import RunInfo
from rankscope.runs.small_files import create_run

ROOT = Path(__file__).resolve().parents[2]


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command below ``command`` with its words."""
    collected = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            collected += commands(below, (*path, name))
    return collected


@pytest.mark.parametrize(
    ("path", "command"), commands(root_command), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_and_option_has_help(path: tuple[str, ...], command: click.Command) -> None:
    context = click.Context(command, info_name=" ".join(("rankscope", *path)))
    assert command.get_help(context)
    assert command.help
    undocumented = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert undocumented == []


def test_every_command_is_documented() -> None:
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    missing = [" ".join(path) for path, command in commands(root_command) if path and f"rankscope {' '.join(path)}" not in text]
    assert missing == []


@pytest.mark.slow
def test_the_commands_page_is_current() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "cli_docs.py"], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs" / "cli.md").read_text() == printed, "run `make docs`"


@pytest.mark.slow
def test_measurements_page_is_current() -> None:
    printed = subprocess.run([sys.executable, ROOT / "scripts" / "measured.py"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "measured.md").read_text() == printed.stdout, "run `make docs`"


@pytest.mark.slow
def test_json_schema_pages_are_current_and_complete(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "schema_docs.py", tmp_path], check=True)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {name: (ROOT / "docs" / name).read_text() for name in written}, "run `make docs`"
    assert sorted(re.findall(r"^## (.*)", "".join(written.values()), re.MULTILINE)) == sorted(SCHEMAS)


@pytest.mark.slow
def test_man_page_and_shell_completions_are_current(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "man_page.py", tmp_path], check=True)
    kept = ROOT / "cli" / "share"
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) == 4
    assert written == {path.relative_to(kept): path.read_text() for path in kept.rglob("*") if path.is_file()}, "run `make docs`"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("verb", VERBS)
def test_every_command_prints_help_in_a_separate_process(cli_process: Cli, verb: str) -> None:
    completed = cli_process(verb, "--help")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.startswith(f"Usage: rankscope {verb} ")


def test_separate_process_analyses_traces(cli_process: Cli, example_traces: Path) -> None:
    completed = cli_process("analyze", example_traces / "jobs" / "ddp")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "rank 3" in completed.stdout.lower()
    assert "\x1b" not in completed.stdout


@pytest.mark.slow
def test_help_imports_no_heavy_module() -> None:
    code = (
        "import sys\nfrom rankscope.cli.main import cli\n"
        "try: cli.main(['--help'], standalone_mode=False)\nfinally:\n"
        " print([m for m in sys.modules if m.partition('.')[0] in {'torch', 'numpy', 'dash', 'httpx', 'uvicorn', 'pynvml'}])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip().endswith("[]")


@pytest.mark.slow
def test_packages_outside_the_recorder_do_not_import_torch() -> None:
    # given every module of the packages imported in a fresh interpreter
    code = (
        "import importlib, pkgutil, sys\n"
        "for package in sys.argv[1:]:\n"
        "    path = importlib.import_module(f'rankscope.{package}').__path__\n"
        "    names = {m.name for m in pkgutil.walk_packages(path, f'rankscope.{package}.')} - {'rankscope.cli.demo.train'}\n"
        "    for name in names: importlib.import_module(name)\n"
        "    print(package, len(names) > 0, 'torch' in sys.modules)"
    )
    packages = ["runs", "analysis", "alerts", "dashboards", "exporter", "cli"]
    completed = subprocess.run([sys.executable, "-c", code, *packages], capture_output=True, text=True, check=True)
    # then each has some, and none of them imported torch
    assert completed.stdout.splitlines() == [f"{package} True False" for package in packages]


def test_namespace_package_has_no_init_file() -> None:
    assert list(ROOT.glob("*/src/rankscope/__init__.py")) == []


def test_version_option_prints_a_version_number(cli: Cli) -> None:
    assert re.fullmatch(r"rankscope, version \d+\.\d+\.\d+(\.dev\d+\S*)?\n", cli("--version").stdout)


def test_unknown_command_is_a_usage_error_with_a_suggestion(cli: Cli) -> None:
    completed = cli("analyse")
    assert completed.returncode == 2
    assert "No such command 'analyse'. Did you mean analyze?" in completed.stderr


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


GOOD = json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7}}]}).encode()

BAD_TRACES: dict[str, Callable[[Path], Path]] = {
    "missing": lambda d: d / "nowhere.json",
    "empty": lambda d: write(d / "empty.json", b""),
    "not JSON": lambda d: write(d / "text.json", b"hello\n"),
    "not a trace": lambda d: write(d / "other.json", b'{"a": 1}'),
    "truncated JSON": lambda d: write(d / "cut.json", GOOD[:40]),
    "truncated gz": lambda d: write(d / "cut.json.gz", gzip.compress(GOOD * 100)[:50]),
    "not gz": lambda d: write(d / "fake.json.gz", GOOD),
    "binary": lambda d: write(d / "binary.json", bytes(range(256)) * 16),
    "an empty folder": lambda d: d,
}


@pytest.mark.parametrize("kind", BAD_TRACES)
@pytest.mark.parametrize("output", ["text", "json"])
def test_unreadable_trace_is_a_one_line_error_with_status_3(cli: Cli, tmp_path: Path, kind: str, output: str) -> None:
    # given
    path = BAD_TRACES[kind](tmp_path)
    # when
    completed = cli("analyze", path, "--format", output)
    # then: one line that names the file
    if kind == "not gz":
        # A plain file under a .gz name is harmless and is read.
        assert completed.returncode == 0
        return
    assert str(path) in one_line_error(completed)


def test_trace_without_gpu_events_is_insufficient_data_or_an_error(cli: Cli, tmp_path: Path) -> None:
    path = write(
        tmp_path / "rank-0.json", b'{"traceEvents": [{"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 2}]}'
    )
    completed = cli("analyze", path, "--format", "json")
    assert completed.returncode in (0, 3)
    if completed.returncode == 0:
        verdict = json.loads(completed.stdout)["verdict"]
        assert verdict["kind"] == "insufficient_data"
        assert verdict["summary"]
    else:
        assert str(path) in completed.stderr


def test_analyze_json_matches_the_published_schema(cli: Cli, example_traces: Path) -> None:
    document = json_report(cli, "analyze", example_traces / "jobs" / "ddp")
    assert document["verdict"]["kind"] == "straggler"
    assert document["verdict"]["rank"] == 3


def test_traces_can_be_read_from_a_url(cli: Cli, example_traces: Path, tmp_path: Path) -> None:
    # given the URL of a folder of traces, which conversion to a path would break
    url = (example_traces / "jobs" / "ddp").as_uri()
    # then it is read through fsspec
    document = json.loads(cli("analyze", url, "--format", "json").stdout)
    assert (document["source"]["path"], document["verdict"]["rank"]) == (url, 3)
    # and an invalid URL gives a one-line error, with the URL as it was written
    assert "nonsense://bucket/rank-0.json" in one_line_error(cli("analyze", "nonsense://bucket/rank-0.json"))


def test_fail_on_sets_the_exit_status_by_verdict(cli: Cli, example_traces: Path) -> None:
    traces = example_traces / "jobs" / "ddp"
    assert cli("analyze", traces, "--fail-on", "straggler").returncode == 1
    assert cli("analyze", traces, "--fail-on", "hang").returncode == 0
    assert cli("analyze", traces, "--fail-on", "nonsense").returncode == 2


@pytest.mark.slow
def test_closed_pipe_prints_no_error(example_traces: Path) -> None:
    traces = example_traces / "jobs" / "ddp"
    shell = f"{sys.executable} -m rankscope analyze {traces} --format json | true; exit ${{PIPESTATUS[0]}}"
    completed = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (141, "")


@pytest.mark.parametrize("price", ["nan", "inf", "-1", "1e300", "free"])
def test_invalid_price_is_a_usage_error(cli: Cli, tmp_path: Path, price: str) -> None:
    assert cli("analyze", tmp_path, "--price-per-gpu-hour", price).returncode == 2
    assert cli("run", "--price-per-gpu-hour", price, "--", "true").returncode == 2


def test_doctor_reports_python_torch_gpus_and_every_extra(cli: Cli) -> None:
    completed = cli("doctor", "--format", "json")
    report = json.loads(completed.stdout)
    provided = {item for item in metadata("rankscope").get_all("Provides-Extra") or () if item != "all"}
    names = {"Python", "torch", "GPUs", *(f"rankscope[{extra}]" for extra in provided)}
    assert names <= {check["name"] for check in report["checks"]}
    assert {"httpx", "pyarrow", "gunicorn"} <= set(extras()["dashboards"])
    assert completed.returncode == (0 if report["ok"] else 1)


@pytest.mark.parametrize(
    ("system", "machine", "stacks", "gzip"), [("linux", "x86_64", True, True), ("darwin", "ppc", False, False)]
)
def test_doctor_checks_only_packages_the_platform_needs(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, system: str, machine: str, *, stacks: bool, gzip: bool
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert ("py-spy" in extras()["stacks"], "zlib-ng" in extras()["analysis"]) == (stacks, gzip)
    assert ("backports-zstd" in extras()["analysis"]) == (sys.version_info < (3, 14))
    # given an interpreter without any package
    monkeypatch.setattr(doctor, "_is_installed", lambda package: False)
    completed = cli("doctor")
    # then no extra that needs packages counts as installed
    assert " installed\n" not in completed.stdout


def test_doctor_shows_how_to_install_missing_packages(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an interpreter without the packages of two extras
    lacking = {"dash", "httpx"}

    def installed(package: str) -> str:
        if package in lacking:
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(doctor, "version", installed)
    completed = cli("doctor")
    # then it says how to get them, but a node or a training image needs only its own
    assert "pip install 'rankscope[dashboards]'" in completed.stdout
    assert "pip install 'rankscope[alerts]'" in completed.stdout
    assert "MISSING  rankscope[" not in completed.stdout
    # and an interpreter without any program of rankscope lacks something
    lacking |= {package for packages in extras().values() for package in packages}
    completed = cli("doctor")
    assert completed.returncode == 1
    assert "MISSING  rankscope[exporter]" in completed.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "module", "extra"),
    [
        ("analyze", "numpy", "analysis"),
        ("steps", "pyarrow", "analysis"),
        ("alerts", "httpx", "alerts"),
        pytest.param("dashboard", "dash", "dashboards", marks=pytest.mark.full),
        pytest.param("report", "plotly", "dashboards", marks=pytest.mark.full),
    ],
)
def test_missing_extra_is_a_one_line_error_with_the_install_command(tmp_path: Path, verb: str, module: str, extra: str) -> None:
    # given an interpreter in which the extra's package cannot be imported
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {module!r}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
        "sys.meta_path.insert(0, Gone())\n"
    )
    arguments = {"alerts": ["watch", str(tmp_path)]}.get(verb, [str(tmp_path)])
    # when the verb is used
    completed = subprocess.run(
        [sys.executable, "-m", "rankscope", verb, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    # then
    assert f"pip install 'rankscope[{extra}]'" in one_line_error(completed, 4)


def test_numpy_thread_limit_is_not_set_for_commands_that_start_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    context = click.Context(root_command)
    # given no setting, and a setting of the user's own
    for wish in (None, "3"):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", wish or "")
        if wish is None:
            monkeypatch.delenv("OPENBLAS_NUM_THREADS")
        # when a verb that starts jobs is loaded, and one that reads their records
        collected = []
        for verb in ("run", "analyze"):
            root_command.get_command(context, verb)
            collected.append(os.environ.get("OPENBLAS_NUM_THREADS"))
        # then only the latter is limited to one thread, and the user's setting stays
        assert collected == ([None, "1"] if wish is None else [wish, wish])


def test_every_command_of_the_table_exists() -> None:
    assert [name for name in VERBS if root_command.get_command(click.Context(root_command), name) is None] == []


@pytest.mark.parametrize(
    ("path", "command"), commands(root_command), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_help_fits_a_terminal_of_80_columns(path: tuple[str, ...], command: click.Command) -> None:
    settings = {**root_command.context_settings, "terminal_width": 80}
    page = command.get_help(click.Context(command, info_name=" ".join(("rankscope", *path)), **settings))
    assert [line for line in page.splitlines() if len(line.rstrip()) > 80] == []
    cut_off = [line for line in page.splitlines() if line.endswith("...") and not line.startswith("Usage:")]
    assert not cut_off, "a line of the list of commands is cut off: give that command a short_help"


def test_schema_help_does_not_break_schema_names(cli: Cli) -> None:
    words = set(cli("schema", "--help", env={"COLUMNS": "80"}).stdout.replace(",", " ").replace(".", " ").split())
    assert {"NAME", "collectives", "capture"} <= words


def test_newest_run_is_analysed_by_default(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    completed = cli("analyze")
    assert completed.returncode == 3
    assert "rankscope run --" in completed.stderr
    create_run(tmp_path / "rankscope-runs" / "old", RunInfo(run_id="1", name="1", start_unix_ns=10**18))
    create_run(tmp_path / "rankscope-runs" / "new", RunInfo(run_id="2", name="2", start_unix_ns=10**18 + 1))
    completed = cli("analyze", "--format", "json")
    assert "rankscope-runs/new" in completed.stderr
    assert json.loads(completed.stdout)["source"]["path"] == "rankscope-runs/new"
