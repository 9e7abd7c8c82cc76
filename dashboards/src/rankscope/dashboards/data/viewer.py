"""Identity of the browser whose request is being answered, so that it ends only what no other one waits for."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

VIEWER: Final[ContextVar[str]] = ContextVar("viewer", default="")
"""Random name of the viewer, from its cookie (``rankscope.dashboards.web.viewer_cookie``); ``""``: no request, or no cookie."""
