"""Serving the app with gunicorn."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import dash
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

from rankscope.runs.decoders import make_decoders

_THREADS: Final = 4
_ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class _Server(BaseApplication):  # type: ignore[misc]
    """Gunicorn around one app and a socket that is already open."""

    def __init__(self, app: dash.Dash, sock: socket.socket, workers: int) -> None:
        self._app = app
        self._settings: dict[str, Any] = {
            "bind": f"fd://{sock.fileno()}",
            "workers": workers,
            "worker_class": "gthread",
            "threads": _THREADS,
            "preload_app": True,  # one import for all workers
            "graceful_timeout": 10,  # workers end at once, unless the machine is too busy to let them
            "keepalive": 5,
            "loglevel": "warning",
            "forwarded_allow_ips": "",  # who may say what in which header is ours to decide: trusted_proxy.py
            "header_map": "drop",  # X_Forwarded_User is not X-Forwarded-User
            "control_socket_disable": True,  # nobody asked for a second way in
            "pre_fork": _hold_signals,
            "post_worker_init": _end_at_once,
        }
        super().__init__()

    def load_config(self) -> None:
        """Our settings only; neither a file nor the environment changes them."""
        for name, value in self._settings.items():
            if name in self.cfg.settings:  # the control socket is unknown to older releases
                self.cfg.set(name, value)

    def load(self) -> Any:
        """The WSGI application."""
        return self._app.server


def _hold_signals(_arbiter: object, _worker: object) -> None:
    """Until the worker has handlers of its own: before, it would put a signal into its copy of the arbiter's queue, and go on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)


def _let_signals_come() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)


def _end_at_once(_worker: object) -> None:
    """Let a worker that is told to end do so, also in the middle of an analysis.

    Answering writes nothing, so nothing is lost; waiting would last as long as the analysis, and gunicorn would then kill the
    worker and wonder aloud whether memory ran out.
    """
    for number in _ENDS:
        signal.signal(number, lambda *_: os._exit(0))
    _let_signals_come()


def serve(app: dash.Dash, sock: socket.socket, *, workers: int, ready: Callable[[], None]) -> None:
    """Call ``ready``, then serve until SIGINT or SIGTERM, which raise ``SystemExit(0)``."""
    # Until gunicorn takes them over: whoever has read the address may already end it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    os.register_at_fork(after_in_parent=_let_signals_come)
    make_decoders()  # workers answer in threads
    ready()
    _Server(app, sock, workers).run()
