"""The systemd unit, the image and the Prometheus configuration agree with the code."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml
from tests.waiting import wait_until

from rankscope.exporter.catalogue import BY_NAME
from rankscope.exporter.commands import exporter as command

ROOT = Path(__file__).resolve().parents[3]
SYSTEMD = ROOT / "exporter" / "systemd"
UNIT = SYSTEMD / "rankscope-exporter.service"
DOCKERFILE = ROOT / "exporter" / "docker" / "Dockerfile"
PROMETHEUS = ROOT / "exporter" / "prometheus"

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user and keep some of its rights")


def known_variables() -> set[str]:
    """Return every environment variable that the command reads."""
    result: set[str] = set()
    for param in command.params:
        result |= {param.envvar} if isinstance(param.envvar, str) else set(param.envvar or ())
    return result


def accepts(arguments: list[str]) -> click.Context:
    """Parse a command line as the real command does; raises ``click.UsageError`` if it is invalid."""
    return command.make_context("exporter", list(arguments))


# The unit


class _Unit(configparser.RawConfigParser):
    """A unit file: keys are case-sensitive, a key without a value clears a list."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(path.read_text())


def test_unit_passes_systemd_verify_and_security_checks(require_systemd_analyze: str, tmp_path: Path) -> None:
    for drop_in in (None, "restricted.conf", "podresources.conf"):
        folder = tmp_path / str(drop_in)
        folder.mkdir()
        unit = folder / UNIT.name
        # The offline check ignores drop-ins, so the drop-in is appended: later settings win, as in systemd.
        unit.write_text(UNIT.read_text() + ((SYSTEMD / drop_in).read_text() if drop_in else ""))

        verified = subprocess.run(
            [require_systemd_analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
        )
        rated = subprocess.run(
            [require_systemd_analyze, "security", "--offline=true", "--threshold=35", "--no-pager", unit],
            capture_output=True,
            text=True,
            check=False,
        )

        assert (verified.returncode, [line for line in verified.stderr.splitlines() if UNIT.name in line]) == (0, []), drop_in
        assert rated.returncode == 0, f"{drop_in}: {rated.stdout}{rated.stderr}"


@pytest.fixture(scope="session")
def require_systemd_analyze() -> str:
    path = "/usr/bin/systemd-analyze"
    if not os.access(path, os.X_OK):
        pytest.skip("systemd is not installed")
    return path


def test_unit_uses_valid_exporter_commands_and_variables() -> None:
    service = _Unit(UNIT)["Service"]
    program, *arguments = shlex.split(service["ExecStart"].removeprefix("/usr/bin/env "))

    assert [program, arguments[0]] == ["rankscope", "exporter"]
    # The unit sets variables, not flags: a flag would take precedence over the administrator's file.
    assert arguments[1:] == []
    text = UNIT.read_text()
    assert 0 < text.index("Environment=RANKSCOPE_EXPORTER_SPOOL=/run/rankscope/spool") < text.index("EnvironmentFile=")
    assert set(re.findall(r"RANKSCOPE_EXPORTER_\w+", UNIT.read_text())) <= known_variables()


def test_unit_sandbox_permits_nvml_and_node_access() -> None:
    service = _Unit(UNIT)["Service"]

    for breaks in ("PrivateDevices", "ProtectProc", "ProcSubset", "ProtectKernelLogs", "PrivateUsers", "MemoryDenyWriteExecute"):
        assert breaks not in service
    assert service["DeviceAllow"] == "char-* rw"
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"]
    # A process stuck in the driver must not delay the stop, and its OOM kill must not end the others.
    assert (service["KillMode"], service["OOMPolicy"]) == ("mixed", "continue")
    assert int(service["TimeoutStopSec"]) <= 10


def test_spool_is_world_writable_and_the_slurm_folder_is_not() -> None:
    lines = [line.split() for line in (SYSTEMD / "rankscope.tmpfiles.conf").read_text().splitlines() if line.startswith("d ")]
    modes = {path: (mode, owner) for _, path, mode, owner, *_ in lines}

    assert modes["/run/rankscope/spool"] == ("1777", "root")
    assert modes["/run/rankscope/jobs"] == ("0755", "root")


@pytest.fixture
def another_users_process() -> Iterator[subprocess.Popen[bytes]]:
    """Process of uid 65533 with RANK=3 in its environment."""
    become = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]
    process = subprocess.Popen([*become, "sleep", "600"], env={"PATH": "/usr/bin:/bin", "RANK": "3"}, cwd="/")
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", process=process)
        yield process
    finally:
        process.kill()
        process.wait()


def as_the_unit_does(*command_line: str, capabilities: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user with only these capabilities, and no way to gain others."""
    names = ["+" + name.removeprefix("CAP_").lower() for name in capabilities.split()]
    rights = ",".join(["-all", *names])
    limits = [f"--inh-caps={rights}", f"--ambient-caps={rights}", f"--bounding-set={rights}", "--no-new-privs"]
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *limits]
    return subprocess.run([*become, *command_line], capture_output=True, text=True, check=False, cwd="/")


@NEEDS_ROOT
def test_unit_capabilities_to_read_environments_are_minimal(another_users_process: subprocess.Popen[bytes]) -> None:
    rights = _Unit(UNIT)["Service"]["AmbientCapabilities"]
    environment = f"/proc/{another_users_process.pid}/environ"

    assert "RANK=3" in as_the_unit_does("cat", environment, capabilities=rights).stdout
    for without in ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"):
        remaining = " ".join(right for right in rights.split() if right != without)
        assert as_the_unit_does("cat", environment, capabilities=remaining).returncode != 0, without


@NEEDS_ROOT
@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="no kernel log here")
def test_unit_capabilities_permit_reading_the_kernel_log() -> None:
    rights = _Unit(UNIT)["Service"]["AmbientCapabilities"]
    read_one = ["dd", "if=/dev/kmsg", "of=/dev/null", "bs=8192", "count=1", "iflag=nonblock"]

    assert as_the_unit_does(*read_one, capabilities=rights).returncode == 0


# The image


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def _ignored(source: str) -> bool:
    """Return whether the last pattern of the ignore file that matches this path excludes it from the build."""
    verdict = False
    for line in Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and Path(source).match(pattern):
            verdict = not line.startswith("!")
    return verdict


def test_image_copies_existing_sources() -> None:
    copied = [rest.split() for word, rest in _instructions() if word == "COPY" and "--from" not in rest]
    sources = [source for words in copied for source in words[:-1]]

    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not _ignored(source), source
    # The sources must include every file that the package build reads.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.removesuffix("/rankscope") for package in packages} <= set(sources)
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= set(sources)
    extras = next(rest for word, rest in _instructions() if word == "ARG" and rest.startswith("EXTRAS=")).removeprefix("EXTRAS=")
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


def test_image_starts_the_exporter_with_valid_settings() -> None:
    output = dict(_instructions())
    assert json.loads(output["ENTRYPOINT"]) == ["rankscope", "exporter"]
    assert "CMD" not in output
    assert "RANKSCOPE_EXPORTER_SPOOL=/run/rankscope/spool" in output["ENV"]
    assert set(re.findall(r"RANKSCOPE_EXPORTER_\w+", DOCKERFILE.read_text())) <= known_variables()
    port = accepts([]).params["listen"]
    assert output["EXPOSE"] in str(port)
    assert f"http://127.0.0.1:{output['EXPOSE']}/-/healthy" in output["HEALTHCHECK"]
    assert output["USER"] == "65532:65532"


def test_image_and_restricted_unit_disable_the_kernel_log(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kernel log that is asked for and unreadable fires the alert ExporterPartial for ever.
    image = dict(re.findall(r"(RANKSCOPE_EXPORTER_\w+)=(\S+)", dict(_instructions())["ENV"]))
    restricted = dict(re.findall(r"^Environment=(\w+)=(\S+)$", (SYSTEMD / "restricted.conf").read_text(), re.MULTILINE))

    for variables in (image, restricted):
        with monkeypatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            assert accepts([]).params["xid_kernel_log"] is False
            assert accepts(["--xid.kernel-log"]).params["xid_kernel_log"] is True


# Prometheus


def test_prometheus_example_passes_promtool(require_program: Callable[[str], str]) -> None:
    checked = subprocess.run(
        [require_program("promtool"), "check", "config", PROMETHEUS / "scrape.yaml"], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stderr
    assert "gpu_jobs.rules.yaml" in (PROMETHEUS / "scrape.yaml").read_text()


def test_example_rules_use_only_metrics_of_the_catalogue() -> None:
    rules = yaml.safe_load((PROMETHEUS / "gpu_jobs.rules.yaml").read_text())["groups"][0]["rules"]

    used = {name for rule in rules for name in re.findall(r"\bgpu_\w+", rule["expr"])}
    assert "gpu_job_info" in used
    assert used <= set(BY_NAME)
    for rule in rules:
        joined = set(re.search(r"group_left \((.*?)\)", rule["expr"])[1].split(", ")) if "group_left" in rule["expr"] else set()  # type: ignore[index]
        assert joined <= set(BY_NAME["gpu_job_info"].labels)


JOIN_TEST = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'gpu_power_watts{{uuid="GPU-a",instance="n"}}', values: '300x5'}}
      - {{series: 'gpu_power_watts{{uuid="GPU-b",instance="n"}}', values: '400x5'}}
      - {{series: 'gpu_power_watts{{uuid="GPU-c",instance="n"}}', values: '70x5'}}
      - {{series: 'gpu_job_info{{uuid="GPU-a",job_id="7",user="ann",rank="0",instance="n"}}', values: '1x5'}}
      - {{series: 'gpu_job_info{{uuid="GPU-b",job_id="7",user="ann",rank="1",instance="n"}}', values: '1x5'}}
      - {{series: 'gpu_allocated{{uuid="GPU-a",instance="n"}}', values: '1x5'}}
      - {{series: 'gpu_allocated{{uuid="GPU-b",instance="n"}}', values: '1x5'}}
      - {{series: 'gpu_allocated{{uuid="GPU-c",instance="n"}}', values: '0x5'}}
      - {{series: 'gpu_in_use{{uuid="GPU-a",instance="n"}}', values: '1x5'}}
      - {{series: 'gpu_in_use{{uuid="GPU-b",instance="n"}}', values: '0x5'}}
      - {{series: 'gpu_in_use{{uuid="GPU-c",instance="n"}}', values: '0x5'}}
    promql_expr_test:
      - expr: job_id_user:gpu_power_watts:sum
        eval_time: 5m
        exp_samples: [{{labels: 'job_id_user:gpu_power_watts:sum{{job_id="7",user="ann"}}', value: 700}}]
      - expr: job_id_user:gpu_jobs:count
        eval_time: 5m
        exp_samples: [{{labels: 'job_id_user:gpu_jobs:count{{job_id="7",user="ann"}}', value: 2}}]
      - expr: job_id_user:gpu_allocated_unused:count
        eval_time: 5m
        exp_samples: [{{labels: 'job_id_user:gpu_allocated_unused:count{{job_id="7",user="ann"}}', value: 1}}]
"""


def test_example_rules_join_power_and_idleness_to_the_job(require_program: Callable[[str], str], tmp_path: Path) -> None:
    story = tmp_path / "story.yaml"
    story.write_text(JOIN_TEST.format(rules=PROMETHEUS / "gpu_jobs.rules.yaml"))

    completed = subprocess.run([require_program("promtool"), "test", "rules", story], capture_output=True, text=True, check=False)

    assert completed.returncode == 0, completed.stdout + completed.stderr
