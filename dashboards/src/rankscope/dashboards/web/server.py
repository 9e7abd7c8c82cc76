"""The gunicorn server of the app."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import dash
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

from rankscope.dashboards.web.deadlines import Deadlines, with_whole_bodies, worker_class
from rankscope.dashboards.web.security import HEALTHY
from rankscope.runs.decoders import make_decoders

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_THREADS: Final = 64
"""Connections that are read or written at a time: browsers open some in advance without a request, and readers may be slow."""
_REQUESTS: Final = 8
"""Requests that are answered at a time."""
_ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h
_ARENAS: Final = 2


class _GunicornServer(BaseApplication):  # type: ignore[misc]
    """Gunicorn application with one app and an open socket."""

    def __init__(self, app: dash.Dash, sock: socket.socket) -> None:
        self._app = app
        self._deadlines = Deadlines(_THREADS)
        self._settings: dict[str, Any] = {
            "bind": f"fd://{sock.fileno()}",
            "workers": 1,  # it holds the state of the jobs
            "worker_class": worker_class(self._deadlines),
            "threads": _THREADS,
            "graceful_timeout": 2,  # the worker ends at once, unless it has only begun
            "keepalive": 5,
            "loglevel": "warning",
            "forwarded_allow_ips": "",  # trusted_proxy.py decides which headers to trust
            "header_map": "drop",  # X_Forwarded_User is not X-Forwarded-User
            "control_socket_disable": True,  # no second way to access the server
            "post_worker_init": _end_at_once,
        }
        super().__init__()

    def load_config(self) -> None:
        """Apply only our settings; neither a file nor the environment changes them."""
        for name, value in self._settings.items():
            if name in self.cfg.settings:  # the control socket is unknown to older releases
                self.cfg.set(name, value)

    def load(self) -> Any:
        """Return the WSGI application."""
        return with_whole_bodies(answering(self._app.server, _REQUESTS), self._deadlines)


def answering(app: WSGIApplication, requests: int) -> WSGIApplication:
    """Return ``app`` with at most so many requests at a time; a health check takes its turn before all of them."""
    slots = threading.BoundedSemaphore(requests)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == HEALTHY:
            return app(environ, start_response)
        with slots:  # released before the answer is sent
            return app(environ, start_response)

    return answer


def _end_at_once(_worker: object) -> None:
    """Let a worker exit at once on a signal, also in the middle of an analysis.

    Requests write nothing, so nothing is lost. A graceful exit would last as long as the analysis; gunicorn would then kill the
    worker and log that it may be out of memory.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: os._exit(0))


def _share_freed_memory() -> None:
    """Let the threads share what they free; glibc gives each an arena of its own, which grows to its largest answer."""
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):  # glibc's
        c_library.mallopt(_ARENA_MAX, _ARENAS)


def serve(app: dash.Dash, sock: socket.socket, *, ready: Callable[[], None]) -> None:
    """Call ``ready``, then serve until SIGINT or SIGTERM, which raise ``SystemExit(0)``."""
    # Handle signals until gunicorn does: the user may press Ctrl-C as soon as the address is printed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    make_decoders()  # the worker answers in threads
    _share_freed_memory()
    ready()
    _GunicornServer(app, sock).run()
