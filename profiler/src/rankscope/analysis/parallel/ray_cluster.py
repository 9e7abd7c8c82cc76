"""Connection to an existing Ray cluster: its address, and one-line messages for connection errors."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rankscope.analysis.trace.locations import one_line
from rankscope.base.errors import InputError, MissingError, RankscopeError

_AUTO_ADDRESS: Final = "auto"
"""Ray's name for the cluster in the variable RAY_ADDRESS, or else the one that this machine is a node of."""
_FORMS: Final = "give HOST:PORT of its head, and run this on one of its nodes"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ANSWER_S: Final = 5.0
_CALM: Final = {
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_gcs_server_port_wait_time_s": "1",
    "RAY_gcs_server_request_timeout_seconds": "20",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
}
"""Environment variables for Ray's import and connection, where the environment does not set them. Without them Ray would try for
minutes to connect to a port of another program, and would print cluster events to stdout, into our output."""


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the ``ray`` module, connected to the cluster at ``address``, or to the one that this program already uses.

    Raises ``InputError`` where no cluster answers or its version differs, ``MissingError`` where Ray is not installed, and
    ``RankscopeError`` for an ``address`` while this program is already connected.
    """
    with _calmly():
        try:
            import ray
        except ModuleNotFoundError as error:
            raise MissingError(f"--engine ray needs the Python package {error.name!r}: pip install 'rankscope[ray]'") from error
    if ray.is_initialized():
        if address is not None:
            raise RankscopeError("this program is connected to a Ray cluster already: leave the address out")
        yield ray
        return
    place = cluster_address(address, ray.util.get_node_ip_address)
    logger = logging.getLogger("ray")
    level, on_sigterm = logger.level, signal.getsignal(signal.SIGTERM)
    # Relevant errors are raised, so Ray's log is not needed.
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with _calmly(), _nothing_on_stderr():
            _connect(ray, place)
        yield ray
    finally:
        with _calmly():
            ray.shutdown()
        logger.setLevel(level)
        # Ray replaces our SIGTERM handler and does not restore it.
        if on_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)


def cluster_address(address: str | None, own_ip: Callable[[], str]) -> str:
    """Return the address to connect to: ``HOST:PORT`` of a listening port, or ``auto``. Raises ``InputError``.

    ``own_ip``: returns the IP address that Ray uses for ``localhost``.
    """
    place = address if address not in {None, _AUTO_ADDRESS} else os.environ.get("RAY_ADDRESS") or _AUTO_ADDRESS
    if place == _AUTO_ADDRESS:
        return place
    if place == "local":
        raise InputError(place, f"would start a cluster, and only one that is there is used: {_FORMS}; or --engine local")
    parts = urlsplit(f"//{place}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.path:
        raise InputError(place, f"no address of a Ray cluster: {_FORMS}")
    if host in _LOOPBACK:
        host = own_ip()
    try:
        socket.create_connection((host, port), timeout=_ANSWER_S).close()
    except (OSError, UnicodeError) as error:
        raise InputError(place, f"no Ray cluster answers there ({one_line(error)}): {_FORMS}") from error
    return place


def _connect(ray: Any, place: str) -> None:
    try:
        # With an address Ray starts no cluster. The output of its workers stays in its logs.
        ray.init(place, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError, ray.exceptions.RayError) as error:
        raise InputError(place, _why_not(place, error)) from error


def _why_not(place: str, error: Exception) -> str:
    if place == _AUTO_ADDRESS:
        return f"no Ray cluster runs on this machine: start one (ray start --head), or {_FORMS}"
    if isinstance(error, ConnectionError):
        return f"no Ray cluster answers there, or this machine is none of its nodes: {_FORMS}"
    return one_line(error)


@contextmanager
def _calmly() -> Iterator[None]:
    """Run the body without Python warnings and with the environment variables ``_CALM``."""
    added = {name: value for name, value in _CALM.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _nothing_on_stderr() -> Iterator[None]:
    """Redirect file descriptor 2 to the null device while the body runs.

    Ray's C++ code writes to the descriptor at each connection attempt, and prints a notice for any setting that would prevent it.
    """
    try:
        stderr = os.dup(2)
    except OSError:
        yield  # stderr is closed, so there is no output to suppress
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
