"""Prometheus: a client of the part of its HTTP API that is used here, and its alerts, active and past.

Responses are untrusted: size and time are limited, redirects are not followed, and messages contain no credentials.
"""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64encode
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeVar

import httpx
import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.alerts.deliver.post import Deadline, error_text, redact
from rankscope.alerts.deliver.secret import Secret, SecretUnavailableError
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.base.errors import InputError
from rankscope.base.text import one_line
from rankscope.dashboards.alerts.record import AlertRecord, AlertState, alert_record

TOKEN_VARIABLE: Final = "RANKSCOPE_PROMETHEUS_TOKEN"  # noqa: S105  the variable's name, not what is in it
MAX_BYTES: Final = 64 * 2**20
"""Largest response: about 1.5 million samples."""
ANSWER_S: Final = 30.0
"""Deadline of one request, including the whole response."""

_CONNECT_S: Final = 5.0
_MOST_SECONDS: Final = 9.2e9
"""Latest time whose nanoseconds fit into 64 bits."""
_NUMBER: Final = re.compile(r"^\[Errno -?\d+\] ")
_SHOWN: Final = 300
"""Most characters of the server's error text in a message."""

_T = TypeVar("_T")


class PrometheusError(InputError):
    """A query failed; the message gives the reason and the next step."""


class PrometheusDownError(PrometheusError):
    """Prometheus cannot be reached, or does not respond in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusServer:
    """Address (http or https) and credentials of a Prometheus server.

    ``token_file`` has one line: a bearer token, or ``USER:PASSWORD`` (a token has no colon). It is read again for every request,
    because tokens are rotated. Without a file, the variable ``RANKSCOPE_PROMETHEUS_TOKEN`` is used if set. ``ca_file`` is the
    certificate of the authority that signed the server's certificate.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class RangeSeries:
    """One time series and the times of its samples, in order."""

    labels: dict[str, str]
    unix_ns: NDArray[np.int64]


class ActiveAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An alert that is pending or firing."""

    labels: dict[str, str]
    annotations: dict[str, str] = {}
    state: str
    active_at: str
    value: str = ""


class _Alerts(msgspec.Struct, frozen=True):
    alerts: list[ActiveAlert]


class _MatrixRow(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _QueryResult(msgspec.Struct, frozen=True, rename="camel"):
    result_type: Literal["matrix"]
    result: list[_MatrixRow]


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["success", "error"]
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class Prometheus:
    """Thread-safe client of one server. Queries raise ``PrometheusError``, or ``InputError`` for an unusable token."""

    def __init__(self, server: PrometheusServer, *, answer_s: float = ANSWER_S, max_bytes: int = MAX_BYTES) -> None:
        self.name = redact(server.url)
        """Address without credentials, for messages."""
        self._server = server
        self._answer_s = answer_s
        self._max_bytes = max_bytes
        self._client = httpx.Client(
            verify=_trusted(server.ca_file),
            timeout=httpx.Timeout(answer_s, connect=min(_CONNECT_S, answer_s)),
            # No keep-alive: a request's deadline learns of its connection only while that is opened.
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            headers={"User-Agent": "rankscope", "Accept": "application/json"},
        )

    def query_range(self, expression: str, *, span_unix_ns: tuple[int, int], step_s: float) -> list[RangeSeries]:
        """Evaluate an expression every ``step_s``, from the first to the last moment of ``span_unix_ns``."""
        first, last = span_unix_ns
        parameters = {"query": expression, "start": _seconds(first), "end": _seconds(last), "step": f"{step_s:.3f}"}
        # Expressions may exceed the length limit of a URL.
        data = self._request("POST", "query_range", parameters, _QueryResult)
        try:
            return [_series(row) for row in data.result]
        except ValueError as error:
            raise PrometheusError(self.name, f"its answer cannot be used: {error}") from error

    def alerts(self) -> list[ActiveAlert]:
        """Alerts that are pending or firing now."""
        return self._request("GET", "alerts", {}, _Alerts).alerts

    def _request(self, method: str, path: str, parameters: dict[str, str], kind: type[_T]) -> _T:
        status, body = self._exchange(method, f"{self._server.url.rstrip('/')}/api/v1/{path}", parameters)
        envelope: _Envelope | None = None
        try:
            envelope = msgspec.json.decode(body, type=_Envelope)
            if envelope.status == "success" and httpx.codes.is_success(status):
                return msgspec.json.decode(envelope.data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if httpx.codes.is_success(status):
                raise PrometheusError(
                    self.name,
                    f"its answer is not one of Prometheus' API ({one_line(str(error))[:_SHOWN]}); is a Prometheus there?",
                ) from error
        reason = "" if envelope is None else one_line(envelope.error)[:_SHOWN]
        raise PrometheusError(self.name, _refusal(status, reason))

    def _exchange(self, method: str, url: str, parameters: dict[str, str]) -> tuple[int, bytes]:
        """Send a request; return status and body of the response."""
        headers = self._credentials()
        with Deadline(self._answer_s) as deadline:
            try:
                with self._client.stream(
                    method, url, data=parameters or None, headers=headers, extensions={"trace": deadline.trace}
                ) as response:
                    body = bytearray()
                    for piece in response.iter_bytes():
                        body += piece
                        if len(body) > self._max_bytes:
                            limit = f"{self._max_bytes / 2**20:.0f} MiB"
                            raise PrometheusError(self.name, f"its answer is larger than {limit}; choose a shorter time range")
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
                if deadline.passed or isinstance(error, httpx.TimeoutException):
                    raise PrometheusDownError(
                        self.name, f"no answer within {self._answer_s:g} s; is Prometheus overloaded, or the address wrong?"
                    ) from error
                raise self._unreachable(error) from error
            if deadline.passed:  # a truncated response may look complete
                raise PrometheusDownError(self.name, f"no whole answer within {self._answer_s:g} s; is Prometheus overloaded?")
        return response.status_code, bytes(body)

    def _unreachable(self, error: Exception) -> PrometheusError:
        text = _NUMBER.sub("", error_text(error, self._server.url))
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return PrometheusError(
                self.name, "its TLS certificate is signed by an unknown authority; --prometheus-ca names the authority's file"
            )
        if isinstance(error, httpx.ConnectError):
            return PrometheusDownError(self.name, f"cannot be reached: {text}; is Prometheus running there?")
        return PrometheusError(self.name, f"its answer cannot be read: {one_line(text)[:_SHOWN]}")

    def _credentials(self) -> dict[str, str]:
        file = self._server.token_file
        if file is None and not os.environ.get(TOKEN_VARIABLE, "").strip():
            return {}
        secret = Secret(env=TOKEN_VARIABLE) if file is None else Secret(file=file)
        try:
            text = secret.read()
        except SecretUnavailableError as error:
            raise InputError(secret.where, f"the token of Prometheus cannot be read: {error.reason}") from error
        if not text.isascii():
            raise InputError(secret.where, "expected a token or USER:PASSWORD in ASCII")
        if ":" in text:
            return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}
        return {"Authorization": f"Bearer {text}"}


def _refusal(status: int, reason: str) -> str:
    if httpx.codes.is_redirect(status):
        return f"answered {status}; redirects are not followed: give the address that it leads to"
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return f"refused the credentials ({status}); --prometheus-token-file names a file with them"
    if reason:
        return f"cannot answer: {reason}"
    if status == httpx.codes.NOT_FOUND:
        return "has no Prometheus API (404); give the address up to, and without, /api/v1"
    return f"answered {status}; see the log of the server"


def _trusted(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=os.fspath(ca_file))
    except OSError as error:  # ``ssl.SSLError`` is one, too
        raise InputError(ca_file, f"no certificates of an authority: {error.strerror or error}") from error


def _series(row: _MatrixRow) -> RangeSeries:
    times = np.array([second for second, _ in row.values], dtype=np.float64)
    if (np.abs(times) > _MOST_SECONDS).any():
        raise ValueError("a time no clock shows")
    # Prometheus' timestamps are whole milliseconds.
    unix_ns = np.rint(times * 1000).astype(np.int64) * 1_000_000
    return RangeSeries(row.metric, unix_ns)


def _seconds(unix_ns: int) -> str:
    return f"{unix_ns // 10**9}.{unix_ns % 10**9 // 10**6:03d}"


MOST_POINTS: Final = 2000
"""Most samples of one series. Prometheus rejects queries for more than 11,000."""
LEAST_STEP_S: Final = 15.0
_ROUNDING_NS: Final = 2_000_000
"""Prometheus rounds times to milliseconds."""


def prometheus_alerts(prometheus: Prometheus, span_unix_ns: tuple[int, int]) -> list[AlertRecord]:
    """Return alerts of rankscope's rules, and others about a run: those between two times, and the active ones.

    A past alert has only labels. An alert that fired until the end of the span and is not active now is ``lost``.
    Raises ``PrometheusError``.
    """
    names = "|".join(runbooks())
    first, last = span_unix_ns
    step_s = max(LEAST_STEP_S, float(np.ceil((last - first) / 1e9 / (MOST_POINTS - 1))))
    fired = 'ALERTS{alertstate="firing",'
    expression = f'{fired}alertname=~"{names}"}} or {fired}run_id!=""}}'
    past = [
        alert
        for series in prometheus.query_range(expression, span_unix_ns=span_unix_ns, step_s=step_s)
        for alert in _past(series, step_s, last)
    ]
    active = [
        _active(alert, prometheus)
        for alert in prometheus.alerts()
        if alert.labels.get("alertname") in runbooks() or alert.labels.get("run_id")
    ]
    # A firing alert is in both lists: its annotations come from ``active``, its start from ``past``.
    since = {_key(alert): alert.started_unix_ns for alert in past if alert.ended_unix_ns is None}
    firing = {_key(alert) for alert in active if alert.state == "firing"}
    return [
        *(
            replace(alert, started_unix_ns=max(alert.started_unix_ns, since.get(_key(alert), 0)))
            if _key(alert) in firing
            else alert
            for alert in active
        ),
        *(alert for alert in past if alert.ended_unix_ns is not None or _key(alert) not in firing),
    ]


def _key(alert: AlertRecord) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(alert.labels.items()))


def _past(series: RangeSeries, step_s: float, now_unix_ns: int) -> list[AlertRecord]:
    labels = {name: value for name, value in series.labels.items() if name not in ("__name__", "alertstate")}
    return [
        alert_record(
            labels,
            {},
            state="lost" if ended is None else "resolved",
            started_unix_ns=began,
            ended_unix_ns=ended,
            source="prometheus",
        )
        for began, ended in _intervals(series, step_s, now_unix_ns)
    ]


def _intervals(series: RangeSeries, step_s: float, now_unix_ns: int) -> list[tuple[int, int | None]]:
    """Return begin and end of each run of consecutive samples, in unix ns; the end is ``None`` if the run reaches to now."""
    step_ns = int(step_s * 1e9)
    gaps = np.flatnonzero(np.diff(series.unix_ns) >= 2 * step_ns - _ROUNDING_NS) + 1
    ends = [(int(part[0]), int(part[-1]) + step_ns) for part in np.split(series.unix_ns, gaps) if len(part)]
    return [(began, ended if ended <= now_unix_ns else None) for began, ended in ends]


def _active(alert: ActiveAlert, prometheus: Prometheus) -> AlertRecord:
    state: AlertState = "firing" if alert.state == "firing" else "pending"
    try:
        began = datetime.fromisoformat(alert.active_at)
    except ValueError as error:
        raise PrometheusError(prometheus.name, f"says of an alert that it is active since {alert.active_at!r}") from error
    return alert_record(
        alert.labels, alert.annotations, state=state, started_unix_ns=int(began.timestamp() * 1e9), source="prometheus"
    )
