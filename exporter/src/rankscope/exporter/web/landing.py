"""The landing page ``/`` for people: state of the exporter and of each GPU."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from rankscope.base.version import VERSION
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.source import FleetState, GpuState

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:1rem auto;padding:0 1rem;max-width:60rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid #8886;"
    "vertical-align:top;overflow-wrap:anywhere}.up{color:#0a7d33}.down{color:#c02626;font-weight:600}code{font-size:.85em}"
    "a{display:inline-block;padding:.3rem 0}small{opacity:.75}"
    # One column on a phone: in three columns, names and addresses would break in the middle.
    "@media(max-width:30rem){thead{display:none}tr{display:block;border-bottom:1px solid #8886;padding:.3rem 0}"
    "td{display:block;border:0;padding:.1rem 0}td:first-child::before{content:'GPU '}}"
)


def landing_page(page: MetricsPage, links: Iterable[str]) -> str:
    """Return the page as HTML without scripts; all variable text is escaped."""
    state, problems = page.fleet.state() if page.fleet is not None else None, page.problems()
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>rankscope exporter on {_e(page.host)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>rankscope exporter on {_e(page.host)}</h1>",
    ]
    if page.simulated:
        parts.append("<p><strong>SIMULATED: the GPUs of this exporter are not real.</strong></p>")
    if problems:
        items = "".join(f"<li>{_e(name)}: {_e(_words(reason))}</li>" for name, reason in problems)
        parts.append(f'<p class="down">Not ready:</p><ul>{items}</ul>')
    else:
        parts.append('<p class="up">Ready.</p>')
    parts.append("<p>" + " · ".join(f'<a href="{_e(link)}">{_e(link)}</a>' for link in links) + "</p>")
    if state is not None:
        parts.append(_expected(state.counts))
        parts.append(_gpus(state))
    parts.append(f"<p><small>{_e(_versions(state))}</small></p></body></html>\n")
    return "".join(parts)


def _expected(counts: Mapping[str, int]) -> str:
    """Return a warning if the number of GPUs is not the expected one, else an empty string."""
    expected, seen_gpus = counts.get("expected"), counts.get("driver", counts.get("pci"))
    if expected is None or seen_gpus is None or expected == seen_gpus:
        return ""
    return f'<p class="down">The node shows {seen_gpus} GPUs, but {expected} are expected (--expected-gpus).</p>'


def _gpus(state: FleetState) -> str:
    if not state.gpus:
        return "<p>No GPU has been identified yet.</p>" if state.unidentified else "<p>No GPU is known.</p>"
    rows = "".join(_gpu(gpu) for gpu in state.gpus)
    return f"<table><thead><tr><th>GPU</th><th>model</th><th>state</th></tr></thead><tbody>{rows}</tbody></table>"


def _gpu(gpu: GpuState) -> str:
    identity = gpu.identity
    if gpu.up:
        status = '<span class="up">up</span>'
    else:
        since = f" since {_time(gpu.since_unix_s)}" if gpu.since_unix_s is not None else ""
        detail = f"<br>{_e(_words(gpu.detail))}" if gpu.detail else ""
        status = f'<span class="down">down: {_e(_words(gpu.reason or "unknown"))}</span>{since}{detail}'
    names = f"{identity.index} <br><code>{_e(identity.uuid)}</code><br><code>{_e(identity.pci_bus_id)}</code>"
    return f"<tr><td>{names}</td><td>{_e(identity.model)}</td><td>{status}</td></tr>"


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _versions(state: FleetState | None) -> str:
    texts = [f"rankscope {VERSION}"]
    if state is not None and state.driver is not None:
        driver = state.driver
        pairs = (("driver", driver.driver_version), ("NVML", driver.nvml_version), ("CUDA", driver.cuda_version))
        texts += [f"{name} {value}" for name, value in pairs if value]
    return ", ".join(texts)


def _words(text: str) -> str:
    """Replace the underscores of reasons such as ``gpu_is_lost`` by spaces."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda match: match[0].replace("_", " "), text)


def _e(text: str) -> str:
    return html.escape(text, quote=True)
