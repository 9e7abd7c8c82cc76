"""Compression of answers, and how long browsers keep scripts and styles."""

from __future__ import annotations

import threading
from typing import Final

import dash
import flask
from cachetools import LRUCache
from dash.fingerprint import check_fingerprint
from flask_compress import Compress

ASSETS: Final = "/assets/"
PACKAGES: Final = "/_dash-component-suites/"
"""Path prefixes of scripts and styles, which are the same for every installation."""

_A_YEAR_S: Final = 31_536_000
_MOST_KEPT: Final = 64
_GZIP_LEVEL: Final = 1
"""Over plain HTTP browsers take nothing better than gzip. Level 6 takes three times as long; answers are 4 to 14 % smaller."""

_BROTLI_WINDOW: Final = 18
"""Bits of the window: each thread that compresses needs several times its size."""


class _CompressedCache:
    """Compressed scripts and styles, so that each is compressed once."""

    def __init__(self) -> None:
        self._cache: LRUCache[str, bytes] = LRUCache(_MOST_KEPT)
        self._guard = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._guard:
            return self._cache.get(key)

    def set(self, key: str, value: bytes) -> None:
        if not key.endswith(";"):  # other answers have no key
            with self._guard:
                self._cache[key] = value


def _key(request: flask.Request) -> str:
    return request.path if request.path.startswith((ASSETS, PACKAGES)) else ""


def _is_versioned(request: flask.Request) -> bool:
    """Return whether an address names one version of a script or style: Dash adds its date."""
    path = request.path
    if path.startswith(ASSETS):
        return "m" in request.args
    return path.startswith(PACKAGES) and bool(check_fingerprint(path.removeprefix(PACKAGES))[1])  # type: ignore[no-untyped-call]


def register(app: dash.Dash) -> None:
    """Compress answers, and let browsers keep versioned scripts and styles without asking again."""
    app.server.config.update(
        COMPRESS_ALGORITHM=["zstd", "br", "gzip"],
        COMPRESS_BR_WINDOW=_BROTLI_WINDOW,
        COMPRESS_STREAMS=False,
        COMPRESS_LEVEL=_GZIP_LEVEL,
        COMPRESS_MIN_SIZE=1_000,
        COMPRESS_CACHE_BACKEND=_CompressedCache,
        COMPRESS_CACHE_KEY=_key,
    )

    def keep(response: flask.Response) -> flask.Response:
        if response.status_code == 200 and _is_versioned(flask.request):
            response.headers["Cache-Control"] = f"public, max-age={_A_YEAR_S}, immutable"
        return response

    def read(response: flask.Response) -> flask.Response:
        if response.status_code == 200 and flask.request.path.startswith(ASSETS):
            response.direct_passthrough = False
            response.make_sequence()  # a file that is sent as a stream would not be compressed
        return response

    app.server.after_request(keep)
    Compress(app.server)
    app.server.after_request(read)  # the last one is called first
