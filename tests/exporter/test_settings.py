"""Flags, environment, file and SIGHUP: their precedence, and the reports of mistakes."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.command_line import Cli
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver

from rankscope.base.errors import InputError
from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.commands import _settings, exporter, option_names
from rankscope.exporter.settings import ExporterSettings

DEFAULTS = frozenset(name for name, collector in COLLECTORS.items() if collector.default_on)


def settings(*arguments: str | Path) -> ExporterSettings:
    with exporter.make_context("exporter", [str(argument) for argument in arguments]) as ctx:
        return _settings({name: value for name, value in ctx.params.items() if name not in ("once", "forget")})


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "exporter.toml"
        path.write_text(text)
        return path

    return write


def test_flag_overrides_environment_and_environment_overrides_file(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = (
        "--config",
        config('interval = "7s"\nspool-stale = 60\n[web]\nlisten-address = [":1", "[::1]:2"]\n[log]\nlevel = "debug"'),
    )
    assert (settings().interval_s, settings(*file).interval_s) == (1.0, 7.0)
    monkeypatch.setenv("RANKSCOPE_EXPORTER_INTERVAL", "500ms")

    assert settings(*file).interval_s == 0.5
    assert settings(*file, "--interval", "2s").interval_s == 2.0
    read = settings(*file)
    assert (read.listen, read.spool_stale_s, read.log_level) == ((("::", 1), ("::1", 2)), 60.0, "debug")
    assert settings(*file, "--listen", ":3", "--web.listen-address", ":4").listen == (("::", 3), ("::", 4))


def test_config_path_and_lists_can_come_from_the_environment(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_EXPORTER_CONFIG", str(config("expected-gpus = 8")))
    monkeypatch.setenv("RANKSCOPE_EXPORTER_WEB_LISTEN_ADDRESS", ":1 :2")
    monkeypatch.setenv("RANKSCOPE_EXPORTER_COLLECTOR_POWER", "false")

    read = settings()

    assert (read.expected_gpus, [port for _, port in read.listen]) == (8, [1, 2])
    assert read.collectors == DEFAULTS - {"power"}


def test_collector_flags_select_collectors(config: Callable[[str], Path]) -> None:
    assert settings().collectors == DEFAULTS
    assert settings("--no-collector.ecc", "--collector.encoder").collectors == DEFAULTS - {"ecc"} | {"encoder"}
    assert settings("--collector.disable-defaults", "--collector.power").collectors == {"gpu", "power"}
    assert settings("--no-collector.gpu").collectors == {"spool"}
    assert settings("--config", config("collector.ecc = false\ncollector.encoder = true")).collectors == (
        DEFAULTS - {"ecc"} | {"encoder"}
    )
    assert settings("--no-collector.ecc", "--collector.encoder").collectors_off == {"ecc"}
    for wrong in (("--no-collector.gpu", "--collector.power"), ("--collector.disable-defaults",)):
        with pytest.raises(click.UsageError):
            settings(*wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intervall = 1", "did you mean 'interval'?"),
        ("web.listen_address = ':1'", "did you mean 'web.listen-address'?"),
        ("once = true", "unknown key 'once'"),
        ("interval = 'soon'", "interval: 'soon' is not a duration"),
        ("interval = true", "interval: True is not"),
        ("expected-gpus = 'eight'", "expected-gpus: 'eight' is not a whole number"),
        ("interval = '50ms'", "interval: 50ms is too small: 100ms at least"),
        ("interval = '2h'", "interval: 2h is too large: 1m at most"),
        ("call-timeout = 0", "call-timeout: 0 is too small: 100ms at least"),
        ("spool-stale = 0", "spool-stale: 0 is too small"),
        ("collector.nope = true", "there is no collector 'nope', but: gpu, "),
        ("collector.gpmm = true", "did you mean 'collector.gpm'?"),
        ("simulate = '8xNOPE'", "simulate: 'NOPE' cannot be simulated"),
        ("interval = ['1s', '2s']", "is not one value"),
        ("collector.gpu = 'yes'", "collector.gpu: 'yes' is not true or false"),
        ("listen = ':1'\nweb.listen-address = ':2'", "keep one"),
        ("log.level = 'loud'", "log.level: 'loud' is not one of"),
        ("expected-gpus = -1", "expected-gpus: -1 is not in the range"),
        ("interval = 1\nhost = node", "(at line 2, column 8)"),
    ],
)
def test_configuration_error_names_file_and_cause(config: Callable[[str], Path], text: str, message: str) -> None:
    path = config(text)

    with pytest.raises(InputError) as caught:
        settings("--config", path)

    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "0 is too small: 100ms at least"),
        (["--interval", "soon"], "'soon' is not a duration"),
        (["--listen", "nowhere"], "nowhere"),
        (["--listen", "localhost:99999"], "99999"),
        (["--no-collector.gpu", "--no-collector.spool"], "all collectors are off"),
        (["--no-collector.gpu", "--simulate", "1"], "needs the gpu collector"),
        (["--web.telemetry-path", "/dcgm/metrics"], "/dcgm/metrics is taken"),
        (["--web.telemetry-path", "/-/metrics"], "/-/metrics is taken"),
        (["--web.telemetry-path", "/"], "/ is taken"),
        (["--web.telemetry-path", "metrics"], "'metrics' is not a path"),
        (["--simulate", "0"], "'0' is neither a number from 1 to 64"),
        (["--simulate", "8xNOPE"], "'NOPE' cannot be simulated"),
        (["--spool-stale", "10m", "--spool-forget", "5m"], "--spool-forget is shorter than --spool-stale"),
        (["--collector.gpmm"], "--collector.gpm"),
        (["release", " "], "GPU is empty"),
        (["resume", ""], "GPU is empty"),
    ],
)
def test_usage_error_has_status_2_and_shows_the_valid_choice(cli: Cli, arguments: list[str], message: str) -> None:
    completed = cli("exporter", *arguments)

    assert completed.returncode == 2
    assert message in completed.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("EXPECTED_GPUS", "eight", "'eight' is not a whole number"), ("OTLP", "maybe", "'maybe' is not true or false")],
)
def test_invalid_variable_is_named_in_the_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"RANKSCOPE_EXPORTER_{variable}", value)

    completed = cli("exporter", "--once")

    assert completed.returncode == 2
    assert message in completed.stderr
    assert f"RANKSCOPE_EXPORTER_{variable}" in completed.stderr


def test_unknown_variable_is_reported_once(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKSCOPE_EXPORTER_EXPECTED_GPU", "8")

    completed = cli("exporter", "--simulate", "1", "--once", "--spool", tmp_path / "spool")

    assert completed.returncode == 0
    assert len(completed.stderr.splitlines()) == 1
    assert "RANKSCOPE_EXPORTER_EXPECTED_GPU is no option" in completed.stderr
    assert "did you mean RANKSCOPE_EXPORTER_EXPECTED_GPUS?" in completed.stderr


def test_log_level_and_format_are_case_insensitive() -> None:
    read = settings("--log.level", "WARNING", "--log.format", "JSON")

    assert (read.log_level, read.log_format) == ("warning", "json")


def test_setting_names_match_option_names() -> None:
    written = {name for param in exporter.params for name in (*param.opts, *param.secondary_opts)}

    names = option_names()

    assert {names[field.name] for field in dataclasses.fields(ExporterSettings)} <= written | {"--collector.…"}


def test_unreadable_configuration_exits_with_status_3(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"host = '\xe9'")
    for path, item in ((tmp_path / "nothing", "No such file"), (tmp_path, "Is a directory"), (tmp_path / "latin", "UTF-8")):
        completed = cli("exporter", "--once", "--config", path)

        assert (completed.returncode, len(completed.stderr.splitlines())) == (3, 1)
        assert f"{path}: " in completed.stderr
        assert item in completed.stderr


def test_help_names_every_collector_and_section(cli: Cli) -> None:
    text = cli("exporter", "--help").stdout

    assert [name for name in COLLECTORS if f"--no-collector.{name}" not in text] == []
    for heading in ("Web:", "Collectors:", "GPUs:", "Release of GPUs:", "Commands:"):
        assert f"\n{heading}\n" in text
    # its examples can be copied
    assert "\n    rankscope exporter --simulate 4 --once  " in text
    assert "\\b" not in text


@pytest.mark.slow
def test_forgotten_gpu_is_not_reported_missing(
    start_exporter: StartExporter, fake_nvml: FakeDriver, cli: Cli, tmp_path: Path
) -> None:
    first = start_exporter(env=fake_nvml.env)
    first.wait_until(lambda: first.values("gpu_up") == [1.0, 1.0])
    assert first.stop(signal.SIGTERM) == 0
    gone = str(fake_nvml.gpus.pop()["uuid"])
    fake_nvml.write()

    again = start_exporter(env=fake_nvml.env)
    again.wait_until(lambda: again.values("gpu_up", uuid=gone) == [0.0])
    assert again.stop(signal.SIGTERM) == 0
    state = ("--state-dir", tmp_path / "state")
    assert cli("exporter", "--forget", gone, *state).returncode == 0

    assert cli("exporter", "--forget", gone, *state).returncode == 3
    last = start_exporter(env=fake_nvml.env)
    last.wait_until(lambda: last.values("gpu_up") == [1.0])


def test_sighup_reloads_settings_and_warns_about_fixed_settings(
    start_exporter: StartExporter, config: Callable[[str], Path]
) -> None:
    running = start_exporter("--simulate", "1", "--config", config('log.format = "logfmt"'))

    config('log.format = "json"\nexpected-gpus = 8')
    running.process.send_signal(signal.SIGHUP)
    running.wait_until(lambda: "settings were read again" in running.stderr)

    lines = [json.loads(line) for line in running.stderr.splitlines() if line.startswith("{")]
    assert [line["level"] for line in lines] == ["warn", "info"]
    assert "--expected-gpus" in lines[0]["msg"]
    assert (lines[1]["level"], lines[1]["component"], lines[1]["changed"]) == ("info", "reload", "--log.format")

    config("nonsense")
    running.process.send_signal(signal.SIGHUP)
    running.wait_until(lambda: "stay as they were" in running.stderr)
    assert running.get("/metrics").status == 200
