"""HTTP clients that verify TLS, follow nobody elsewhere, and connect to the address that was checked."""

from __future__ import annotations

import ipaddress
import logging
import queue
import socket
import ssl
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from rankscope.alerts.deliver.post import redact, through
from rankscope.base.errors import InputError, MissingError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GUARDED: Final = tuple(
    ipaddress.ip_network(network)
    for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32")
)
"""Link-local addresses, where clouds serve credentials to whoever asks, and those clouds that do so elsewhere."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class EgressError(Exception):
    """Nobody may be asked there; the message names the host and says why."""


def named_by_operator(host: str, address: str) -> None:
    """Whether a host of the operator's own configuration may be reached at ``address``, private ones included.

    Raises ``EgressError`` for an address that is link-local or known for metadata, unless the operator wrote that very address.
    """
    if _literal(host) is None and any(inner in network for inner in _meant(address) for network in _GUARDED):
        raise EgressError(
            f"{host} leads to {address}, which is link-local or a cloud's metadata; name the address itself to allow it"
        )


def resolve(host: str, port: int, *, timeout_s: float) -> list[str]:
    """The addresses of a host, in the order to try them. Raises ``EgressError``, also when the name server takes too long."""
    literal = _literal(host)
    if literal is not None:
        return [str(literal)]
    answers: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys(str(address[0]) for *_, address in found)))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))

    # In a thread of its own: the system's resolver has no time-out that we could set.
    threading.Thread(target=ask, name="rankscope-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise EgressError(f"{host}: no answer from the name server in time") from None
    if isinstance(answer, OSError):
        raise EgressError(f"{host}: {answer.strerror or answer}")
    return answer


def _literal(host: str) -> _Address | None:
    """The address that a host is; ``None`` for a name. Only as addresses are written: not 2852039166, not 0xA9FEA9FE."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _meant(address: str) -> list[_Address]:
    """The address, and those of IPv4 that are wrapped in it."""
    outer = ipaddress.ip_address(address)
    inner: list[_Address | None] = []
    if isinstance(outer, ipaddress.IPv6Address):
        inner = [outer.ipv4_mapped, outer.sixtofour, outer.teredo[1] if outer.teredo else None]
        if outer in _NAT64:
            inner.append(ipaddress.IPv4Address(int(outer) & 0xFFFFFFFF))
    return [outer, *(one for one in inner if one is not None)]


CONNECT_S: Final = 5.0
TIMEOUT: Final = httpx.Timeout(10.0, connect=CONNECT_S)
"""For each connect, read and write."""
_LIMITS: Final = httpx.Limits(max_keepalive_connections=0)
"""No connection is kept: the deadline of an attempt learns of its connection when that is made."""


class PinnedTransport(httpx.BaseTransport):
    """Resolves a host once, has every address checked, and connects to one that passed. TLS is for the name all the same."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it to the first address that takes connections. Raises ``httpx.ConnectError`` where there is none.

        All of them together have the time that one has to connect.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        asked = request.extensions.get("timeout", {})
        timeout_s = float(asked.get("connect") or CONNECT_S)
        try:
            addresses = resolve(host, port, timeout_s=timeout_s)
            for address in addresses:
                named_by_operator(host, address)
        except EgressError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        refused: httpx.TransportError | None = None
        for address in addresses:
            request.url = url.copy_with(host=address)
            request.extensions = {
                **request.extensions,
                "sni_hostname": host,
                "timeout": {**asked, "connect": timeout_s / len(addresses)},
            }
            try:
                return self._inner.handle_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                refused = error
        raise refused or httpx.ConnectError(f"{host}: no address", request=request)

    def close(self) -> None:
        """Close what is inside."""
        self._inner.close()


class ProxiedTransport(httpx.BaseTransport):
    """Names the proxy in every error on the way through it: where we wanted to go may be well."""

    def __init__(self, inner: httpx.BaseTransport, proxy: str) -> None:
        self._inner = inner
        self._proxy = proxy

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it. Raises what ``httpx`` does."""
        try:
            return self._inner.handle_request(request)
        except httpx.TransportError as error:
            raise type(error)(through(error, self._proxy), request=request) from error

    def close(self) -> None:
        """Close what is inside."""
        self._inner.close()


def http_client(
    url: str, *, timeout: httpx.Timeout = TIMEOUT, ca_file: Path | None = None, proxy: str | None = None
) -> httpx.Client:
    """A client for ``url``. ``ca_file``: whom to trust instead of the usual authorities (``SSL_CERT_FILE`` is honoured without).

    ``proxy``: its address, ``""`` for none; without it ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are
    honoured. Through a proxy it is the proxy that resolves names. Raises ``OSError`` for an unusable ``ca_file``, ``InputError``
    and ``MissingError`` for an unusable proxy.
    """
    for library in ("httpx", "httpcore"):
        # Their lines quote addresses, whatever the level that somebody set for all.
        logging.getLogger(library).setLevel(logging.WARNING)
    proxy = proxy_for(url) if proxy is None else proxy
    if ca_file is not None:
        context = ssl.create_default_context(cafile=str(ca_file))
    elif url.startswith("http:") and (not proxy or proxy.startswith("http:")):
        # Loading the authorities takes long. Without any, nothing is trusted.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = httpx.create_ssl_context()
    transport = _transport(context, proxy)
    return httpx.Client(
        transport=ProxiedTransport(transport, proxy) if proxy else PinnedTransport(transport),
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
        headers={"User-Agent": "rankscope"},
    )


def _transport(context: ssl.SSLContext, proxy: str) -> httpx.HTTPTransport:
    try:
        redact(proxy)  # what cannot be named in a message is no address
        return httpx.HTTPTransport(verify=context, limits=_LIMITS, trust_env=False, proxy=httpx.Proxy(proxy) if proxy else None)
    except ImportError as error:
        raise MissingError("a SOCKS proxy needs a package that is not installed; run: pip install 'httpx[socks]'") from error
    except (ValueError, httpx.InvalidURL) as error:  # whose words may quote a password
        raise InputError("the environment's proxy", "expected an address like http://host:port") from error


def proxy_for(url: str) -> str:
    """The proxy that the environment wants for an address; empty for none."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies_environment()
    found = proxies.get(parts.scheme) or proxies.get("all") or ""
    # The names are not in the stubs of the standard library's types; both functions are documented there.
    with suppress(ValueError):
        host = f"{parts.hostname}:{parts.port or ''}".rstrip(":")
        if found and urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
            return ""
    return found if "://" in found or not found else f"http://{found}"
