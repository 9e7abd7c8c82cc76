"""One attempt to deliver one message to a target over HTTP: rendered, signed, and judged by its answer."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Protocol

import click
import httpx

from rankscope.alerts.client import CONNECT_S, http_client
from rankscope.alerts.options import http_url
from rankscope.alerts.post import DeliveryError, NoAnswerError, post
from rankscope.alerts.retrying import Judgement, judge_status, not_answered
from rankscope.alerts.secret import SecretUnavailableError
from rankscope.alerts.signing import ID_HEADER, SecretError, parse_secret, sign
from rankscope.alerts.target import Target
from rankscope.alerts.templates import TEMPLATES
from rankscope.runs.errors import RankscopeError


class Courier(Protocol):
    """Brings messages to one target."""

    def attempt(self, message_id: str, payload: bytes) -> Judgement:
        """Try once. Never raises for what a receiver, the network or a secret's file can do wrong."""


class HttpCourier:
    """Brings messages to a target over HTTP. ``wall``: seconds since 1970."""

    def __init__(self, target: Target, *, wall: Callable[[], float] = time.time) -> None:
        self._target = target
        self._wall = wall
        self._known: tuple[object, ...] = ()
        self._client: httpx.Client | None = None

    def attempt(self, message_id: str, payload: bytes) -> Judgement:
        """POST it; secrets are read anew, so that they can be replaced while we run."""
        target = self._target
        try:
            url = self._url()
            key = "" if target.routing_key is None else target.routing_key.read()
            body = TEMPLATES[target.template](payload, key)
            headers = self._headers(message_id, body)
        except (SecretUnavailableError, SecretError) as error:
            return not_answered(str(error), sent=False)
        try:
            client = self._client_for(url)
        except RankscopeError as error:  # a proxy
            return not_answered(f"cannot connect: {error}", sent=False)
        except (OSError, ValueError) as error:  # the file of authorities
            return not_answered(f"cannot connect: {getattr(error, 'strerror', None) or type(error).__name__}", sent=False)
        try:
            answer = post(client, url, body, headers=headers, attempt_s=target.timeout_s)
        except NoAnswerError as error:
            return not_answered(str(error), sent=error.sent, late=error.late)
        except DeliveryError as error:
            return not_answered(str(error), sent=False)
        return judge_status(answer.status, retry_after=answer.retry_after, date=answer.date, wall_s=self._wall())

    def _url(self) -> str:
        url = self._target.url
        try:
            return http_url(url.read())
        except click.BadParameter as error:  # which the next reading of its file may mend
            raise SecretUnavailableError(f"{url.where}: {error.message}") from error

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        target = self._target
        headers = {"Content-Type": "application/json"}
        if target.secrets:
            keys = [parse_secret(secret.read()) for secret in target.secrets]
            headers |= sign(keys, message_id=message_id, timestamp_s=int(self._wall()), body=body)
        else:
            headers[ID_HEADER] = message_id
        if target.bearer is not None:
            headers["Authorization"] = f"Bearer {target.bearer.read()}"
        if target.basic is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(target.basic.read().encode()).decode()}"
        return headers

    def _client_for(self, url: str) -> httpx.Client:
        """The client for this address; a new one when the address or the file of authorities has changed."""
        ca_file = self._target.ca_file
        stat = None if ca_file is None else ca_file.stat()
        known = (url, None if stat is None else (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        if self._client is not None and known != self._known:
            self._client.close()
            self._client = None
        if self._client is None:
            seconds = self._target.timeout_s
            timeout = httpx.Timeout(seconds, connect=min(CONNECT_S, seconds))
            self._client = http_client(url, timeout=timeout, ca_file=ca_file, proxy=self._target.proxy)
            self._known = known
        return self._client
