"""``rankscope doctor``: checks of this machine, with fixes for what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final

import click

from rankscope.cli.terminal import format_option, use_color
from rankscope.cli.verbs.check import Check, CheckState
from rankscope.cli.verbs.kept_files import examine_files
from rankscope.cli.verbs.nvml import ask_nvml

_MIN_TORCH: Final = (2, 6)
_SHM: Final = Path("/dev/shm")  # noqa: S108  # only inspected
_MIN_SHM_BYTES: Final = 256 * 1024 * 1024


NEEDED: Final = ("exporter", "profiler", "analysis", "dashboards", "alerts")
"""Extras of the programs that rankscope consists of; at least one of them is needed."""
_REQUIREMENT: Final = re.compile(
    r"(?P<package>[\w.-]+)[^;]*;\s*(?:\(?(?P<condition>[^()]+?)\)?\s+and\s+)?extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]", re.ASCII
)
"""Pattern of an extra's requirement; some are for certain platforms only."""
_CONDITION: Final = re.compile(
    r"python_version < '3\.(?P<minor>\d+)'|(?P<name>sys_platform|platform_machine) (?:==|in) '(?P<values>.+)'"
)
PROGRAMS: Final[dict[str, tuple[str, str]]] = {
    "prometheus": ("stores the metrics and evaluates the alert rules", "apt-get install prometheus"),
    "prometheus-alertmanager": ("routes alerts to people", "apt-get install prometheus-alertmanager"),
    "py-spy": ("finds the line of code at which a rank stalls", "pip install 'rankscope[stacks]'"),
    "chromium": ("only the tests of the pages use it", "apt-get install chromium"),
    "gcc": ("only the tests of the exporter use it", "apt-get install gcc libc6-dev"),
}


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra on this platform, from rankscope's own metadata."""
    extras_of_packages: dict[str, list[str]] = {
        extra: [] for extra in metadata("rankscope").get_all("Provides-Extra") or () if extra != "all"
    }
    for requirement in requires("rankscope") or ():
        match = _REQUIREMENT.fullmatch(requirement)
        if match is not None and match["extra"] in extras_of_packages and _holds(match["condition"]):
            extras_of_packages[match["extra"]].append(match["package"])
    return extras_of_packages


def _holds(condition: str | None) -> bool:
    """Return whether a requirement's condition holds here; a package with a condition of an unknown form is not counted."""
    if condition is None:
        return True
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return False
    if match["minor"]:
        return sys.version_info < (3, int(match["minor"]))
    own_platform = sys.platform if match["name"] == "sys_platform" else platform.machine()
    return own_platform in match["values"].split()


def _extras() -> Iterator[Check]:
    packages = extras()
    lacking_by = {extra: [name for name in names if not _is_installed(name)] for extra, names in packages.items()}
    # A node has the exporter only, a training image the profiler.
    has_a_role = any(not lacking_by.get(extra, [extra]) for extra in NEEDED)
    for extra, missing_packages in lacking_by.items():
        state: CheckState = "ok" if not missing_packages else "missing" if extra in NEEDED and not has_a_role else "absent"
        detail, fix = (
            (f"no {', '.join(missing_packages)}", f"pip install 'rankscope[{extra}]'")
            if missing_packages
            else ("installed" if packages[extra] else "needs no package on this platform", None)
        )
        yield Check(f"rankscope[{extra}]", state, detail, fix)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _torch() -> Check:
    # The version is from the package's metadata: importing torch takes seconds and gigabytes.
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return Check(
            "torch",
            "missing" if _is_installed("numpy") else "absent",  # the recorder's own package
            "not installed: nothing can be recorded here",
            "pip install torch; without a GPU: pip install torch --index-url https://download.pytorch.org/whl/cpu",
        )
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdecimal())
    if numbers < _MIN_TORCH:
        return Check("torch", "missing", f"{installed} is too old", "rankscope records with torch 2.6 or newer")
    return Check("torch", "ok", installed)


def _gpus() -> Check:
    without = "hardware metrics will be simulated in the demo; runs record CPU time"
    if importlib.util.find_spec("pynvml") is None:
        return Check(
            "GPUs", "absent", f"cannot look: nvidia-ml-py is not installed; {without}", "pip install 'rankscope[exporter]'"
        )
    answer = ask_nvml()
    if answer.wedged:
        return Check("GPUs", "missing", str(answer.reason), "look at `dmesg` for Xid lines; the node may need a reboot")
    if answer.reason:
        return Check("GPUs", "absent", f"{answer.reason}; {without}", "on a GPU node, install the NVIDIA driver")
    if not answer.gpus:
        return Check("GPUs", "absent", f"driver {answer.driver} sees none; {without}")
    return Check("GPUs", "ok", f"{answer.gpus}, driver {answer.driver}")


def _local_memory() -> Check:
    if not os.access(_SHM, os.W_OK):
        return Check(
            str(_SHM),
            "absent",
            "not writable: the recorder's ring goes to the temporary folder, which may be a disk",
            "mount a tmpfs there",
        )
    free = shutil.disk_usage(_SHM).free
    if free < _MIN_SHM_BYTES:
        return Check(
            str(_SHM), "absent", f"only {free // 2**20} MiB free: large profiler windows may not fit", "docker run --shm-size=1g"
        )
    return Check(str(_SHM), "ok", f"{free // 2**20} MiB free")


def _writable() -> Check:
    try:
        with tempfile.TemporaryDirectory(dir=".", prefix=".rankscope-doctor-"):
            return Check("run folder", "ok", f"runs can be recorded under {Path.cwd()}")
    except OSError as error:
        return Check("run folder", "absent", f"{Path.cwd()} is not writable ({error.strerror})", "rankscope run --run-dir FOLDER")


def _schedstat() -> Check:
    if Path("/proc/self/schedstat").exists():
        return Check("scheduler statistics", "ok", "CPU contention can be told from slow code")
    return Check("scheduler statistics", "absent", "no /proc/self/schedstat: CPU contention cannot be told from slow code")


def _programs() -> Iterator[Check]:
    for name, (use, fix) in PROGRAMS.items():
        path = shutil.which(name) or shutil.which(name, path=f"/usr/sbin{os.pathsep}{Path(sys.executable).parent}")
        if path:
            yield Check(name, "ok", path)
        else:
            yield Check(name, "absent", use, f"Debian: {fix}" if fix.startswith("apt-get") else fix)


def examine(paths: Sequence[Path] = ()) -> list[Check]:
    """Run all checks, and those of runs and state folders, and return them in the order of display. Raises ``InputError``."""
    machine = [_python(), _torch(), *_extras(), _gpus(), _local_memory(), _writable(), _schedstat(), *_programs()]
    return [*machine, *examine_files(paths)]


_MARKS: Final[dict[CheckState, tuple[str, str]]] = {
    "ok": ("ok", "green"),
    "absent": ("absent", "yellow"),
    "missing": ("MISSING", "red"),
    "other": ("other", "yellow"),
    "unreadable": ("UNREAD", "red"),
}


def _line(check: Check, style: Callable[[str, str], str]) -> str:
    mark, colour = _MARKS[check.state]
    text = f"{style(f'{mark:8}', colour)} {check.name:24} {check.detail}"
    return text + (f"\n{'':34}-> {check.fix}" if check.fix and check.state != "ok" else "")


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path, readable=False))
@format_option
def doctor(paths: tuple[Path, ...], format_: str) -> int:
    """Say what works on this machine, what is missing and how to get it.

    PATH is a run, a folder of runs, or the state folder of a watcher, a receiver or an exporter; without one, the default
    state folders are checked. Files that another version of rankscope wrote are marked "other" where this version reads them,
    and UNREAD where it does not.

    Exit status 1 when something is missing without which the installed parts cannot work, or a file is unread. What is only
    "absent" (other parts, GPUs, Prometheus, …) limits what can be done here, and the line says how.
    """
    checks = examine(paths)
    needed = [check for check in checks if check.state in {"missing", "unreadable"}]
    if format_ == "json":
        click.echo(json.dumps({"ok": not needed, "checks": [asdict(check) for check in checks]}, indent=2))
        return 1 if needed else 0
    color = use_color()
    for check in checks:
        click.echo(_line(check, lambda text, colour: click.style(text, fg=colour) if color else text), color=color)
    click.echo("Everything needed is here." if not needed else f"{len(needed)} missing or unread.")
    return 1 if needed else 0
