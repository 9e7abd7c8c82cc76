"""Client that calls the callbacks of an app as a browser does; only this module knows Dash's HTTP format.

It is for tests of the adapter to Dash. Tests of what a page shows ask its blocks (``tests.dashboards.blocks``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dash
import msgspec

Item = dict[str, Any]
RANKS = "/run/run-1/ranks"


def find(component: Any, identifier: Any) -> Item:
    """Return the props of the component with that id in a serialised tree."""
    result = _find(component, identifier)
    assert result is not None, f"no {identifier} on the page"
    return result


def _find(component: Any, identifier: Any) -> Item | None:
    if isinstance(component, list):
        return next((result for child in component if (result := _find(child, identifier)) is not None), None)
    if isinstance(component, dict):
        props: Item = component.get("props", {})
        return props if props.get("id") == identifier else _find(props.get("children"), identifier)
    return None


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

    def opened(self, path: str, search: str = "") -> Any:
        """Return the page of an address."""
        return self.page(path, search)["content"]

    def shown(self, path: str, search: str = "") -> Item:
        """Return what the browser keeps of the page of an address: its path, version and polling interval."""
        shown: Item = self.page(path, search)["shown"]
        return shown

    def page(self, path: str, search: str = "", scheme: str = "light") -> Item:
        """Return content, title and state of the page of an address."""
        answer = self.http.get("/api/page", query_string={"path": path, "search": search, "scheme": scheme})
        assert answer.status_code == 200, answer.text
        page: Item = answer.json
        return page

    def polled(self, path: str, **asked: Any) -> Item:
        """Return the server's answer to the poll of an open page."""
        values = {"asked.data": {"number": 1, "path": path, **asked}}
        answer: Item = self("answer.data", values, triggered="asked.data")["answer"]["data"]
        return answer

    def redrawn(self, piece: tuple[str, str, str], path: str, search: str = "", *, scheme: str | None = None) -> Any:
        """Return a property of a piece of a page: (type of the piece, its name, the property)."""
        kind, name, prop = piece
        by_key = {
            "shown": {"path": path, "version": "a"},
            "address": search,
            "scheme": scheme,
            **{_identifier(entry, name): {"name": name, "type": entry} for entry in ("figure", "part", "grid")},
        }
        spec = next(spec for spec in self._specs if f'{{"name":["MATCH"],"type":"{kind}"}}.{prop}' in spec["output"])

        def matched(text: str) -> str:
            return text.replace('["MATCH"]', json.dumps(name))

        def filled(items: list[Item]) -> list[Any]:
            keys = [matched(item["id"]) for item in items]
            return [
                {
                    "id": json.loads(key) if key.startswith("{") else key,
                    "property": item["property"],
                    "value": None if item["property"] == "columnDefs" else by_key.get(key),
                }
                for key, item in zip(keys, items, strict=True)
            ]

        outputs: list[Any] = [
            {"id": json.loads(output.rsplit(".", 1)[0]), "property": output.rsplit(".", 1)[1]}
            for output in _names(matched(spec["output"]))
        ]
        inputs = filled(spec["inputs"])
        trigger = json.dumps(inputs[0]["id"], separators=(",", ":"), sort_keys=True)
        response = self._response(spec, outputs, inputs, filled(spec["state"]), f"{trigger}.data-draw")
        return response[_identifier(kind, name)][prop]

    def selected(
        self, happened: tuple[str, str, Any], search: str = "", *, controls: Mapping[str, Any] | None = None, path: str = RANKS
    ) -> Item:
        """Return the changes after ``happened``: (type of the piece, its name, its value); ``("address", "", None)`` for none."""
        kind, name, result = happened
        shown = dict(controls or {})
        prop = {"figure": "clickData", "zoomed": "data", "grid": "cellClicked"}.get(kind, "value")
        if kind == "control":
            shown[name] = result

        def several(of: str, field: str, values: Mapping[str, Any]) -> list[Item]:
            return [{"id": {"type": of, "name": key}, "property": field, "value": value} for key, value in values.items()]

        def with_overrides(of: str, field: str) -> list[Item]:
            return several(of, field, {name: result} if kind == of else {})

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
                with_overrides("figure", "clickData"),
                with_overrides("zoomed", "data"),
                with_overrides("grid", "cellClicked"),
                {"id": "address", "property": "search", "value": search},
            ],
            [
                [{"id": item["id"], "property": "id", "value": item["id"]} for item in values],
                {"id": "shown", "property": "data", "value": {"path": path, "version": "a"}},
            ],
            "address.search" if kind == "address" else f"{_identifier(kind, name)}.{prop}",
        )

    def clicked(self, button: Item) -> Any:
        """Click a button with this pattern-matching id; return its new text."""
        spec = next(spec for spec in self._specs if f'"type":"{button["type"]}"' in spec["output"])
        identifier = json.dumps(button, separators=(",", ":"), sort_keys=True)
        inputs, state = ([{"id": button, "property": name, "value": value}] for name, value in (("n_clicks", 1), ("id", button)))
        response = self._response(spec, [{"id": button, "property": "children"}], inputs, state, f"{identifier}.n_clicks")
        return response[identifier]["children"]

    def value_of(self, changes: Item, control: str) -> Any:
        """Return the value of a control after ``selected``."""
        return changes[_identifier("control", control)]["value"]

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


def _names(output: str) -> list[str]:
    return output.strip(".").split("...")


def _identifier(kind: str, name: str) -> str:
    return json.dumps({"name": name, "type": kind}, separators=(",", ":"))
