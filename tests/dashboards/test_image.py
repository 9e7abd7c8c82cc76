"""The image of the dashboard starts the command with what it needs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from rankscope.dashboards.commands import dashboard as command

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "dashboards" / "docker" / "Dockerfile"


def test_the_images_command_line_extras_and_sources_exist() -> None:
    text = DOCKERFILE.read_text()
    (arguments,) = (json.loads(line) for line in re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installed,) = re.findall(r'"\.\[([\w,]+)\]"', text)

    context = command.make_context("dashboard", [str(arg).replace("/runs", str(ROOT)) for arg in arguments])

    assert context.params["listen"] is not None
    assert set(installed.split(",")) <= set(extras)
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in sources.split())
