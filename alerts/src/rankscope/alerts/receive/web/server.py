"""HTTP server of the receiver, with TLS if there is a certificate."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankscope.alerts.receive.web.app import ReceiverApp
from rankscope.base.errors import InputError
from rankscope.base.followed_files import FollowedFiles
from rankscope.base.http_server import ListenEndpoint, serve_until_signal
from rankscope.base.problems import ProblemLog

STOP_S: Final = 2
"""Seconds that open requests get after a signal."""


def serve_app(
    app: ReceiverApp,
    sock: socket.socket,
    *,
    certificate: tuple[Path, Path] | None = None,
    report: Callable[[str], object] = lambda _: None,
    begins: Callable[[], object] = lambda: None,
    reload: Callable[[], object] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, with TLS if files of a certificate and its key are given.

    A renewed certificate is used from the next handshake. ``begins`` is called when the receiver accepts connections, ``reload``
    at SIGHUP; ``report`` takes problems with the certificate. Raises ``InputError`` for files that are no certificate and key.
    """
    endpoint = ListenEndpoint(sock, app, evicted=app.evicted)
    if certificate is not None:
        file, key = certificate
        problems = ProblemLog(report)
        followed = FollowedFiles(
            lambda: (_context(file, key), certificate),
            changed=lambda _: problems.report(None),
            failed=lambda error: problems.report(f"{error}; the last certificate stays in use"),
        )
        endpoint = replace(endpoint, tls=followed.get)
    serve_until_signal([endpoint], grace_s=STOP_S, started=begins, reload=reload)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # an encrypted key would make OpenSSL ask on the terminal
    except OSError as error:  # includes ssl.SSLError
        raise InputError(f"{certificate}, {key}", f"no certificate with its key: {error.strerror or error}") from error
    return context
