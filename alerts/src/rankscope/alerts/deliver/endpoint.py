"""An address to send to with its credentials and certificates, and a client for one attempt."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx

from rankscope.alerts.deliver.http_client import CONNECT_S, http_client
from rankscope.alerts.deliver.post import ATTEMPT_S, DeliveryError
from rankscope.alerts.deliver.secret import Secret, SecretUnavailableError
from rankscope.base.errors import RankscopeError
from rankscope.base.options import http_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address with credentials. Its ``repr`` contains no secret."""

    url: Secret
    bearer: Secret | None = None
    basic: Secret | None = None
    """``USER:PASSWORD``."""
    ca_file: Path | None = None
    certificate: tuple[Path, Path] | None = None
    """Files of the client's own certificate and its key."""
    proxy: str | None = field(default=None, repr=False)
    """Address of the proxy; empty for none; ``None`` reads the environment."""
    timeout_s: float = ATTEMPT_S


@dataclass(frozen=True, slots=True)
class EndpointClient:
    """A client for one attempt, the address, and the headers with the credentials."""

    client: httpx.Client
    url: str
    headers: dict[str, str]


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[EndpointClient]:
    """Read address, secrets and certificates, and yield a client.

    They are read for each attempt, so they can be rotated without a restart. Raises ``DeliveryError`` if one is unusable now.
    """
    try:
        url = http_url(endpoint.url.read())
        headers = _authorization(endpoint)
    except SecretUnavailableError as error:
        raise DeliveryError(str(error)) from error
    except click.BadParameter as error:  # the file may be corrected before the next attempt
        raise DeliveryError(f"{endpoint.url.where}: {error.message}") from error
    timeout = httpx.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s))
    try:
        client = http_client(
            url, timeout=timeout, ca_file=endpoint.ca_file, certificate=endpoint.certificate, proxy=endpoint.proxy
        )
    except RankscopeError as error:  # the proxy is unusable
        raise DeliveryError(f"cannot connect: {error}") from error
    except (OSError, ValueError) as error:  # a file of certificates is unusable
        raise DeliveryError(f"cannot connect: {getattr(error, 'strerror', None) or type(error).__name__}") from error
    with client:
        yield EndpointClient(client, url, headers)


def _authorization(endpoint: Endpoint) -> dict[str, str]:
    if endpoint.bearer is not None:
        return {"Authorization": f"Bearer {endpoint.bearer.read()}"}
    if endpoint.basic is not None:
        return {"Authorization": f"Basic {base64.b64encode(endpoint.basic.read().encode()).decode()}"}
    return {}
