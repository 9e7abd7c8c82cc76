"""Export of the boards, with the provisioning files that Grafana needs to find them."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rankscope.base.atomic_files import replace_file
from rankscope.base.errors import InputError
from rankscope.dashboards.grafana.shipped import Board, shipped

DEFAULT_DATASOURCE: Final = "prometheus"
"""Uid in the example of a data source; by default a board uses the first Prometheus of Grafana."""

_TEXTS: Final = {
    "provisioning/dashboards/rankscope.yaml": "provider.yaml",
    "provisioning/datasources/rankscope.yaml.example": "datasource.yaml",
    "README.md": "mounting.md",
}


def export(folder: Path, *, datasource_uid: str | None = None, dashboard_url: str | None = None) -> list[Path]:
    """Write boards, provisioning and a README into ``folder``, each file atomically.

    ``datasource_uid``: default data source of the boards. ``dashboard_url``: target of their links, without a trailing slash.
    Returns the written paths. Raises ``InputError``.
    """
    contents = {
        f"dashboards/{board.file_name}": board_text(_addressed(board, datasource_uid, dashboard_url)) for board in shipped()
    }
    contents |= {name: _template(source, datasource_uid or DEFAULT_DATASOURCE) for name, source in _TEXTS.items()}
    written = []
    for name, text in contents.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise InputError(error.filename or path, error.strerror or str(error)) from error
        written.append(path)
    return written


def _addressed(board: Board, datasource_uid: str | None, dashboard_url: str | None) -> dict[str, Any]:
    model = copy.deepcopy(board.model)
    for variable in model["templating"]["list"]:
        if variable["name"] == "datasource" and datasource_uid is not None:
            variable["current"] = {"selected": False, "text": datasource_uid, "value": datasource_uid}
        if variable["name"] == "dashboard_url" and dashboard_url is not None:
            variable["query"] = dashboard_url
    return model


def _template(name: str, datasource_uid: str) -> str:
    text = (files("rankscope.dashboards") / "grafana" / "provisioning" / name).read_text(encoding="utf-8")
    return text.replace("DATASOURCE_UID", datasource_uid)


def board_text(model: dict[str, Any]) -> str:
    """Return the text of a board's file."""
    return json.dumps(model, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
