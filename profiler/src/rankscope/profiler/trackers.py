"""Addresses of the experiment trackers' pages of a run, from their environment variables: identifiers only, never keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

_WANDB: Final = "https://wandb.ai"


def tracker_urls(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the address of the run at each tracker whose variables name it: ``W&B``, ``MLflow``."""
    urls: dict[str, str] = {}
    project, run = environ.get("WANDB_PROJECT"), environ.get("WANDB_RUN_ID")
    server = _address(environ.get("WANDB_BASE_URL", _WANDB).replace("https://api.wandb.ai", _WANDB))
    if (entity := environ.get("WANDB_ENTITY")) and project and run and server:
        urls["W&B"] = f"{server}/{_part(entity)}/{_part(project)}/runs/{_part(run)}"
    run, experiment = environ.get("MLFLOW_RUN_ID"), environ.get("MLFLOW_EXPERIMENT_ID")
    server = _address(environ.get("MLFLOW_TRACKING_URI", ""))
    if run and experiment and server:
        urls["MLflow"] = f"{server}/#/experiments/{_part(experiment)}/runs/{_part(run)}"
    return urls


def _part(text: str) -> str:
    return quote(text, safe="")


def _address(url: str) -> str | None:
    """Return scheme, host and path of a web address, without user name, password and query; ``None`` for another address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path.rstrip('/')}"
