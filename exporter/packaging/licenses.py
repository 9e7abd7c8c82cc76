"""Copies the licence texts of what a self-contained build holds: ``licenses.py PROGRAM_FOLDER LICENSES_FOLDER``.

Of Python packages, the files that their distributions name; of shared libraries from the system, what Debian keeps about their
package; of the interpreter, its own. What has no text is listed in ``WITHOUT_TEXT`` there, so that it is not overlooked.
"""  # noqa: INP001  a script, not a package

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = ("exporter", "otlp", "kubernetes")
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", re.IGNORECASE)


def main(program: Path, folder: Path) -> None:
    """Fill ``folder``."""
    without = [
        f"{package.name} {package.version}: see its home page"
        for package in [*_bundled(), distribution("pyinstaller")]  # the starter is PyInstaller's
        if not _copy(package, folder)
    ]
    text = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if not text.exists():
        text = Path(f"/usr/share/doc/python{sys.version_info.major}.{sys.version_info.minor}/copyright")
    if text.exists():
        shutil.copyfile(text, folder / "Python")
    else:
        without.append("Python: https://docs.python.org/3/license.html")
    without += _system_libraries(program, folder)
    (folder / "WITHOUT_TEXT").write_text("".join(f"{line}\n" for line in without))


def _bundled() -> list[Distribution]:
    """The distributions that the extras bring, as far as they are installed."""
    packages: dict[str, Distribution] = {}
    wanted = [("rankscope", frozenset(EXTRAS))]
    while wanted:
        name, extras = wanted.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if packages.setdefault(name.lower(), package) is not package and not extras:
            continue
        for line in package.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                wanted.append((requirement.name, frozenset(requirement.extras)))
    del packages["rankscope"]  # LICENSE is there already
    return [packages[name] for name in sorted(packages)]


def _copy(package: Distribution, folder: Path) -> bool:
    done = False
    for file in package.files or ():
        if ".dist-info" in str(file) and _LICENSE.match(file.name):
            shutil.copyfile(str(file.locate()), folder / f"{package.name}-{file.name}")
            done = True
    return done


def _system_libraries(program: Path, folder: Path) -> list[str]:
    """Copy what Debian says about the packages of bundled libraries; returns lines about those of unknown origin."""
    missing = []
    for library in sorted((program / "_internal").glob("lib*.so*")):
        if library.name.startswith("libpython"):
            continue
        name = _debian_package(library.name)
        text = Path("/usr/share/doc") / name / "copyright"
        if name and text.exists():
            shutil.copyfile(text, folder / f"{name}-copyright")
        else:
            missing.append(f"{library.name}: from the system where this was built")
    return missing


def _debian_package(library: str) -> str:
    """The package a library is from; empty where that is not known."""
    if shutil.which("dpkg-query") is None:
        return ""
    answer = subprocess.run(["dpkg-query", "--search", f"*/{library}"], capture_output=True, text=True, check=False)
    return answer.stdout.partition(":")[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
