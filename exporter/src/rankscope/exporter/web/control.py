"""Cooperative release over the control socket: ``POST /-/release?gpu=…&ttl=…`` and ``/-/resume?gpu=…``, and their client."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import logging
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.http import HttpRequest, Response
from rankscope.base.options import parse_duration
from rankscope.exporter.source import Fleet

logger = logging.getLogger(__name__)

PATHS: Final = frozenset({"/-/release", "/-/resume"})
DEFAULT_TTL: Final = "10m"
MAX_TTL_S: Final = 24 * 3600.0

_CLIENT_TIMEOUT_S: Final = 20.0


class ReleaseHandler:
    """Handler of release and resume. ``changed`` is called after each attempt."""

    def __init__(self, fleet: Fleet | None, changed: Callable[[], None]) -> None:
        self._fleet = fleet
        self._changed = changed

    async def answer(self, request: HttpRequest, query: Mapping[str, list[str]]) -> Response:
        """Release or resume a GPU.

        The status is 200, 400 for a bad request, 404 for an unknown GPU, 405 unless the method is POST, or 409 if the GPU's
        process is stuck.
        """
        if request.method != "POST":
            return _error(405, "only POST", ("allow", "POST"))
        if self._fleet is None:
            return _error(404, "this exporter reads no GPU")
        gpus = query.get("gpu", [])
        if len(gpus) != 1 or not gpus[0]:
            return _error(400, "one gpu= is needed: its uuid, PCI bus id or index")
        release_for_s: float | None = None
        if request.path == "/-/release":
            try:
                release_for_s = parse_duration((query.get("ttl") or [DEFAULT_TTL])[-1])
            except ValueError as error:
                return _error(400, f"ttl: {error}")
            if release_for_s > MAX_TTL_S:
                return _error(400, "ttl: more than 24h; release it again later")
        return await self._do(self._fleet, gpus[0], release_for_s)

    async def _do(self, fleet: Fleet, gpu: str, release_for_s: float | None) -> Response:
        """Release, or resume if ``release_for_s`` is None; in a thread, because it waits for the GPU's process to exit."""
        try:
            if release_for_s is not None:
                await asyncio.to_thread(fleet.release, gpu, ttl_s=release_for_s)
            else:
                await asyncio.to_thread(fleet.resume, gpu)
        except KeyError:
            gpus = ", ".join(f"{gpu_state.identity.index} ({gpu_state.identity.uuid})" for gpu_state in fleet.state().gpus)
            return _error(404, f"there is no such GPU; known: {gpus or 'none'}")
        except TimeoutError as error:
            logger.warning("a GPU could not be released: %s", error, extra={"gpu": gpu})
            return _error(409, str(error) or "its process is stuck in the driver and does not end")
        finally:
            self._changed()
        logger.info("a GPU was released" if release_for_s else "a GPU was resumed", extra={"gpu": gpu})
        answer: dict[str, object] = {"gpu": gpu, "released": release_for_s is not None}
        return _json(200, answer | {"ttl_s": release_for_s} if release_for_s is not None else answer)


def _json(status: int, content: Mapping[str, object], *headers: tuple[str, str]) -> Response:
    return Response(status, json.dumps(content).encode() + b"\n", "application/json", headers)


def _error(status: int, text: str, *headers: tuple[str, str]) -> Response:
    return _json(status, {"error": text}, *headers)


def send_request(path: Path, action: str, **parameters: str) -> dict[str, Any]:
    """Request ``release`` or ``resume`` of a GPU from the exporter behind a control socket.

    Raises:
        InputError: there is no such socket or GPU, or the parameters are wrong.
        RankscopeError: the GPU's process is stuck.
    """
    connection = _UnixConnection(path)
    try:
        connection.request("POST", f"/-/{action}?{urlencode(parameters)}")
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise InputError(path, f"{reason}; is the exporter running, and is this its --control.socket?") from error
    finally:
        connection.close()
    if status == 200:
        return dict(answer)
    gpu, reason = f"GPU {parameters.get('gpu', '')}", str(answer.get("error", status))
    raise RankscopeError(f"{gpu}: {reason}") if status == 409 else InputError(gpu, reason)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_CLIENT_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def listen_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket with mode 0600; a socket left by a dead process is replaced.

    Raises:
        OSError: the path is not writable, another process listens there, or it is no socket.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            remove_socket(path)
        else:
            raise OSError(errno.EADDRINUSE, "another exporter listens there", str(path))
        sock.close()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Created under another name, so that no other user can connect before the mode is set.
        fresh = path.with_name(f".{path.name}.new")
        remove_socket(fresh)
        sock.bind(str(fresh))
        fresh.chmod(0o600)
        sock.listen(16)
        fresh.rename(path)
    except BaseException:
        sock.close()
        raise
    return sock


def remove_socket(path: Path) -> None:
    """Remove a socket if it exists; raises ``OSError``, also if the path is no socket, which is then kept."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, f"{path.name} is there and no socket", str(path))
    path.unlink(missing_ok=True)
