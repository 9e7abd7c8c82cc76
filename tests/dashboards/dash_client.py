"""Client that calls the callbacks of an app as a browser does; only this module knows Dash's HTTP format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dash
import msgspec

Item = dict[str, Any]

VIEW_OF = {
    "step": "ranks", "rank": "ranks", "breakdown": "overlap", "overlap": "overlap", "collective": "overlap", "about": "overlap",
    "imposed": "blame", "wait": "blame", "cause": "blame", "blame": "blame", "timeline": "timeline", "whatif": "whatif",
    "gpu": "hardware", "host": "hardware", "rack": "hardware", "alert": "alerts", "replay": "alerts",
}  # fmt: skip
"""First word of the name of a figure, part or table to its view; others are on the overview."""


class Caller:
    """Client of an app, without a browser."""

    def __init__(self, app: dash.Dash) -> None:
        self.http = app.server.test_client()
        self._specs: list[Item] = self.http.get("/_dash-dependencies").json

    def __call__(self, output: str, values: dict[str, Any], *, triggered: str) -> Item:
        """Return the response of the callback with ``output`` (``"id.property"``), or ``{}`` if it updates nothing."""
        spec = next(spec for spec in self._specs if output in _names(spec["output"]))
        outputs: list[Any] = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in _names(spec["output"])]

        def filled(items: list[Item]) -> list[Any]:
            return [{**item, "value": values.get(f"{item['id']}.{item['property']}")} for item in items]

        return self._response(spec, outputs, filled(spec["inputs"]), filled(spec["state"]), triggered)

    def drawn(self, name: str, search: str = "", *, scheme: str | None = None, run_id: str = "run-1") -> Item:
        """Return a figure of a run."""
        figure: Item = self._piece(("figure", name, "figure"), search, scheme, run_id)
        return figure

    def height(self, name: str) -> Any:
        """Return the height of the place of a figure."""
        return self._piece(("figure", name, "style"), "", None, "run-1")["height"]

    def written(self, name: str, search: str = "", *, run_id: str = "run-1") -> Any:
        """Return the content of a part of a run's page."""
        return self._piece(("part", name, "children"), search, None, run_id)

    def rows(self, name: str, search: str = "", *, run_id: str = "run-1") -> list[Item]:
        """Return the rows of a table of a run's page."""
        rows: list[Item] = self._piece(("grid", name, "rowData"), search, None, run_id)
        return rows

    def selected(
        self,
        happened: tuple[str, str, Any],
        search: str = "",
        *,
        controls: Mapping[str, Any] | None = None,
        path: str | None = None,
    ) -> Item:
        """Return the changes after ``happened``: (type of the piece, its name, its value); ``("address", "", None)`` for none."""
        kind, name, told = happened
        shown = dict(controls or {})
        prop_of = {"figure": "clickData", "zoomed": "data", "grid": "cellClicked"}
        prop = prop_of.get(kind, "value" if kind == "control" else "search")
        if kind == "control":
            shown[name] = told

        page = _shown("run-1", name if kind in prop_of else "step") if path is None else {"path": path}

        def several(of: str, what: str, values: Mapping[str, Any]) -> list[Item]:
            return [{"id": {"type": of, "name": key}, "property": what, "value": value} for key, value in values.items()]

        def told_by(of: str, what: str) -> list[Item]:
            return several(of, what, {name: told} if kind == of else {})

        values = several("control", "value", shown)
        return self._response(
            next(spec for spec in self._specs if spec["output"].startswith("..address.search")),
            [
                {"id": "address", "property": "search"},
                [{"id": item["id"], "property": "value"} for item in values],
                {"id": "views", "property": "children"},
            ],
            [
                values,
                told_by("figure", "clickData"),
                told_by("zoomed", "data"),
                told_by("grid", "cellClicked"),
                {"id": "address", "property": "search", "value": search},
            ],
            [
                [{"id": item["id"], "property": "id", "value": item["id"]} for item in values],
                {"id": "shown", "property": "data", "value": page},
            ],
            "address.search" if kind == "address" else f"{_identifier(kind, name)}.{prop}",
        )

    def _piece(self, piece: tuple[str, str, str], search: str, scheme: str | None, run_id: str) -> Any:
        kind, name, what = piece
        known = {
            "shown": _shown(run_id, name),
            "address": search,
            "scheme": scheme,
            _identifier(kind, name): {"name": name, "type": kind},
        }
        spec = next(spec for spec in self._specs if f'{{"name":["MATCH"],"type":"{kind}"}}.{what}' in spec["output"])

        def matched(text: str) -> str:
            return text.replace('["MATCH"]', json.dumps(name))

        def filled(items: list[Item]) -> list[Any]:
            keys = [matched(item["id"]) for item in items]
            return [
                {"id": json.loads(key) if key.startswith("{") else key, "property": item["property"], "value": known.get(key)}
                for key, item in zip(keys, items, strict=True)
            ]

        outputs: list[Any] = [
            {"id": json.loads(output.rsplit(".", 1)[0]), "property": output.rsplit(".", 1)[1]}
            for output in _names(matched(spec["output"]))
        ]
        response = self._response(spec, outputs, filled(spec["inputs"]), filled(spec["state"]), "shown.data")
        return response[_identifier(kind, name)][what]

    def _response(self, spec: Item, outputs: list[Any], inputs: list[Any], state: list[Any], triggered: str) -> Item:
        answer = self.http.post(
            "/_dash-update-component",
            json={
                "output": spec["output"],
                "outputs": outputs if spec["output"].startswith("..") else outputs[0],
                "inputs": inputs,
                "state": state,
                "changedPropIds": [triggered],
            },
        )
        if answer.status_code == 204:
            return {}
        assert answer.status_code == 200, answer.text
        response: Item = msgspec.json.decode(answer.data)["response"]
        return response


def _shown(run_id: str, name: str) -> Item:
    return {"path": f"/run/{run_id}/{VIEW_OF.get(name.partition('-')[0], '')}".rstrip("/"), "version": "a"}


def _names(output: str) -> list[str]:
    return output.strip(".").split("...")


def _identifier(kind: str, name: str) -> str:
    return json.dumps({"name": name, "type": kind}, separators=(",", ":"))
