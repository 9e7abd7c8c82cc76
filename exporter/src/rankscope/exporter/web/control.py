"""Cooperative release: ``POST /-/release?gpu=…&ttl=…`` and ``/-/resume?gpu=…``, and their client."""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from rankscope.base.http import Request, Response, bearer_token
from rankscope.base.logs import ProblemLog
from rankscope.base.options import parse_duration
from rankscope.exporter.errors import ExporterCheckError, ExporterInputError
from rankscope.exporter.source import Fleet

logger = logging.getLogger(__name__)

PATHS: Final = frozenset({"/-/release", "/-/resume"})
DEFAULT_TTL: Final = "10m"
MAX_TTL_S: Final = 24 * 3600.0

_MIN_TOKEN_BYTES: Final = 16
_CLIENT_TIMEOUT_S: Final = 20.0


def read_token(path: Path) -> bytes:
    """Read the token from ``--control.token-file``; raises ``ExporterInputError``."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ExporterInputError(f"{path}: {error.strerror or error}; name another file with --control.token-file") from error
    if len(token) < _MIN_TOKEN_BYTES or len(token.split()) != 1:
        raise ExporterInputError(
            f"{path}: a token is one word of at least {_MIN_TOKEN_BYTES} characters; make one with: openssl rand -hex 32"
        )
    return token


class Control:
    """Handler of release and resume. ``changed`` is called after each attempt."""

    def __init__(self, fleet: Fleet | None, changed: Callable[[], None]) -> None:
        self._fleet = fleet
        self._changed = changed
        self.token_file: Path | None = None
        self._problems = ProblemLog(logger, "no token, so no release over the web: %s")

    async def refusal(self, request: Request) -> Response | None:
        """Return the error response for a request over the web that is not authorised; None if it is."""
        if self.token_file is None or not request.tls:
            return _error(403, "over the web this needs --control.token-file and TLS; on the node, use the control socket")
        given = bearer_token(request.headers.get("authorization", "").encode("latin-1", "replace"))
        try:
            token = await asyncio.to_thread(read_token, self.token_file)
        except ExporterInputError as error:
            self._problems.report(error.message)
            return _error(403, "the token file cannot be used; see the log of the exporter")
        self._problems.report(None)
        if given is None or not hmac.compare_digest(given, token):
            return _error(401, "a valid bearer token is needed", ("www-authenticate", 'Bearer realm="rankscope"'))
        return None

    async def answer(self, request: Request, query: Mapping[str, list[str]]) -> Response:
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
        return await self._do(self._fleet, gpus[0], release_for_s, request.peer or "socket")

    async def _do(self, fleet: Fleet, gpu: str, release_for_s: float | None, peer: str) -> Response:
        """Release, or resume if ``release_for_s`` is None; in a thread, because it waits for the GPU's process to exit."""
        try:
            if release_for_s is not None:
                await asyncio.to_thread(fleet.release, gpu, ttl_s=release_for_s)
            else:
                await asyncio.to_thread(fleet.resume, gpu)
        except KeyError:
            known = ", ".join(f"{one.identity.index} ({one.identity.uuid})" for one in fleet.state().gpus)
            return _error(404, f"there is no such GPU; known: {known or 'none'}")
        except TimeoutError as error:
            logger.warning("a GPU could not be released: %s", error, extra={"gpu": gpu, "peer": peer})
            return _error(409, str(error) or "its process is stuck in the driver and does not end")
        finally:
            self._changed()
        logger.info("a GPU was released" if release_for_s else "a GPU was resumed", extra={"gpu": gpu, "peer": peer})
        done: dict[str, object] = {"gpu": gpu, "released": release_for_s is not None}
        return _json(200, done | {"ttl_s": release_for_s} if release_for_s is not None else done)


def _json(status: int, content: Mapping[str, object], *headers: tuple[str, str]) -> Response:
    return Response(status, json.dumps(content).encode() + b"\n", "application/json", headers)


def _error(status: int, text: str, *headers: tuple[str, str]) -> Response:
    return _json(status, {"error": text}, *headers)


def ask(path: Path, action: str, **parameters: str) -> dict[str, Any]:
    """Request ``release`` or ``resume`` of a GPU from the exporter behind a control socket.

    Raises:
        ExporterInputError: there is no such socket or GPU, or the parameters are wrong.
        ExporterCheckError: the GPU's process is stuck.
    """
    connection = _UnixConnection(path)
    try:
        connection.request("POST", f"/-/{action}?{urlencode(parameters)}")
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise ExporterInputError(f"{path}: {reason}; is the exporter running, and is this its --control.socket?") from error
    finally:
        connection.close()
    if status == 200:
        return dict(answer)
    text = f"GPU {parameters.get('gpu', '')}: {answer.get('error', status)}"
    raise (ExporterCheckError if status == 409 else ExporterInputError)(text)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_CLIENT_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
