"""What verbs print with ``--format json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from tests.command_line import Cli


def json_report(cli: Cli, verb: str, *args: str | Path, **options: Any) -> Any:
    """Return the document that a verb prints, checked against the schema that the command line publishes for it."""
    completed = cli(verb, *args, "--format", "json", **options)
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    schema = "analysis" if verb == "analyze" else verb
    jsonschema.validate(document, json.loads(cli("schema", schema).stdout))
    assert document["schema"] == f"rankscope.{schema}/1"
    return document
