"""HTTP server of the receiver, with TLS if there is a certificate."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankscope.alerts.receive.app import ReceiverApp
from rankscope.base.errors import InputError
from rankscope.base.http import FollowedFiles
from rankscope.base.http_server import Endpoint, serve_until_signal

STOP_S: Final = 2
"""Seconds that open requests get after a signal."""
_OUT_OF_DATE: Final = {9: "not valid yet", 10: "expired"}
"""OpenSSL's verification errors about the dates of a certificate."""
_FLIGHTS: Final = 3
"""Handshake rounds until the client has verified the certificate."""


def out_of_date(server: ssl.SSLContext, file: Path) -> str:
    """Return what is wrong with the dates of the certificate in ``file``, which ``server`` presents; empty if nothing.

    The standard library cannot read these dates, so a client that trusts only this certificate verifies it in memory.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(file)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for _ in range(_FLIGHTS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return _OUT_OF_DATE.get(error.verify_code, "")
            except ssl.SSLError:  # no common protocol: the dates stay unknown
                return ""
    return ""


def serve(
    app: ReceiverApp,
    sock: socket.socket,
    *,
    certificate: tuple[Path, Path] | None = None,
    report: Callable[[str], object] = lambda _: None,
    begins: Callable[[], object] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, with TLS if files of a certificate and its key are given.

    A renewed certificate is used from the next handshake. ``begins`` is called when the receiver accepts connections; ``report``
    takes problems with the certificate. Raises ``InputError`` for files that are no certificate and key.
    """
    if certificate is None:
        endpoint = receiver_endpoint(app, sock)
    else:
        file, key = certificate
        complaints: list[str] = []

        def changed(context: ssl.SSLContext) -> None:
            complaints.clear()
            if wrong := out_of_date(context, file):
                report(f"{file}: this certificate is {wrong}: senders that verify it, as Alertmanager does, send nothing")

        def failed(error: Exception) -> None:
            if complaints != [str(error)]:
                complaints[:] = [str(error)]
                report(f"{error}; the last certificate stays in use")

        followed = FollowedFiles(lambda: (_context(file, key), certificate), changed=changed, failed=failed)
        changed(followed.get())
        endpoint = receiver_endpoint(app, sock, tls=followed.get)
    serve_until_signal([endpoint], grace_s=STOP_S, started=begins)


def receiver_endpoint(
    app: ReceiverApp, sock: socket.socket, *, tls: Callable[[], ssl.SSLContext | None] = lambda: None
) -> Endpoint:
    """Endpoint of a receiver, which counts and reports the senders that the server evicts."""
    return Endpoint(sock, app, tls, evicted=app.evicted)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # an encrypted key would make OpenSSL ask on the terminal
    except OSError as error:  # includes ssl.SSLError
        raise InputError(f"{certificate}, {key}", f"no certificate with its key: {error.strerror or error}") from error
    return context
