"""HTTP clients that verify TLS, follow no redirects, and connect only to addresses that were checked."""

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

from rankscope.alerts.deliver.post import redact, with_proxy
from rankscope.base.errors import InputError, MissingError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GUARDED: Final = tuple(
    ipaddress.ip_network(network)
    for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32")
)
"""Link-local addresses, and other addresses at which clouds serve metadata and credentials without authentication."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class EgressError(Exception):
    """A host cannot be resolved, or must not be contacted; the message names the host and the reason."""


def check_address(host: str, address: str) -> None:
    """Check that a host from the operator's configuration may be reached at ``address``. Private addresses are allowed.

    Raises ``EgressError`` for a link-local or cloud-metadata address, unless ``host`` is that address itself.
    """
    if _literal(host) is None and any(inner in network for inner in _with_embedded(address) for network in _GUARDED):
        raise EgressError(
            f"{host} resolves to {address}, a link-local or cloud-metadata address; configure the address itself to allow it"
        )


def resolve(host: str, port: int, *, timeout_s: float) -> list[str]:
    """Return the addresses of a host in the order to try them. Raises ``EgressError``, also if DNS exceeds ``timeout_s``."""
    literal = _literal(host)
    if literal is not None:
        return [str(literal)]
    answers: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys(str(address[0]) for *_, address in found)))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))

    # In a separate thread: the system's resolver has no timeout that we could set.
    threading.Thread(target=look_up, name="rankscope-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise EgressError(f"{host}: the name server did not answer in time") from None
    if isinstance(answer, OSError):
        raise EgressError(f"{host}: {answer.strerror or answer}")
    return answer


def _literal(host: str) -> _Address | None:
    """Parse ``host`` as an IP address in standard notation; ``None`` for names, and for 2852039166 or 0xA9FEA9FE."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _with_embedded(address: str) -> list[_Address]:
    """Return the address and the IPv4 addresses embedded in it (mapped, 6to4, Teredo, NAT64)."""
    outer = ipaddress.ip_address(address)
    inner: list[_Address | None] = []
    if isinstance(outer, ipaddress.IPv6Address):
        inner = [outer.ipv4_mapped, outer.sixtofour, outer.teredo[1] if outer.teredo else None]
        if outer in _NAT64:
            inner.append(ipaddress.IPv4Address(int(outer) & 0xFFFFFFFF))
    return [outer, *(one for one in inner if one is not None)]


CONNECT_S: Final = 5.0
TIMEOUT: Final = httpx.Timeout(10.0, connect=CONNECT_S)
"""Seconds for each read and write, and ``CONNECT_S`` for connecting."""
_LIMITS: Final = httpx.Limits(max_keepalive_connections=0)
"""No keep-alive: ``Deadline`` learns of a connection only when it is made."""


class PinnedTransport(httpx.BaseTransport):
    """Resolve a host once, check all its addresses, and connect to one of them. TLS still verifies the host name."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to the first address that accepts a connection.

        All addresses share one connect timeout. Raises ``httpx.ConnectError`` or ``httpx.ConnectTimeout`` if none accepts.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        timeouts = request.extensions.get("timeout", {})
        timeout_s = float(timeouts.get("connect") or CONNECT_S)
        try:
            addresses = resolve(host, port, timeout_s=timeout_s)
            for address in addresses:
                check_address(host, address)
        except EgressError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        refused: httpx.TransportError | None = None
        for address in addresses:
            request.url = url.copy_with(host=address)
            request.extensions = {
                **request.extensions,
                "sni_hostname": host,
                "timeout": {**timeouts, "connect": timeout_s / len(addresses)},
            }
            try:
                return self._inner.handle_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                refused = error
        raise refused or httpx.ConnectError(f"{host}: no address", request=request)

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


class ProxiedTransport(httpx.BaseTransport):
    """Name the proxy in every error, because the destination itself may work."""

    def __init__(self, inner: httpx.BaseTransport, proxy: str) -> None:
        self._inner = inner
        self._proxy = proxy

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request. Raises the errors of ``httpx``, with the proxy added to their text."""
        try:
            return self._inner.handle_request(request)
        except httpx.TransportError as error:
            raise type(error)(with_proxy(error, self._proxy), request=request) from error

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


def http_client(
    url: str, *, timeout: httpx.Timeout = TIMEOUT, ca_file: Path | None = None, proxy: str | None = None
) -> httpx.Client:
    """Create a client for ``url``.

    ``ca_file``: CA certificates to trust instead of the default ones (without it, ``SSL_CERT_FILE`` applies).
    ``proxy``: address of the proxy, ``""`` for none; ``None`` reads ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``. A proxy resolves host names itself. Raises ``OSError`` for an unusable ``ca_file``, ``InputError`` and
    ``MissingError`` for an unusable proxy.
    """
    for library in ("httpx", "httpcore"):
        # Below WARNING these libraries log whole URLs, which may contain secrets.
        logging.getLogger(library).setLevel(logging.WARNING)
    proxy = proxy_for(url) if proxy is None else proxy
    if ca_file is not None:
        context = ssl.create_default_context(cafile=str(ca_file))
    elif url.startswith("http:") and (not proxy or proxy.startswith("http:")):
        # Plain HTTP needs no CA certificates, and loading them is slow. Without them every TLS handshake fails.
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
        redact(proxy)  # raises ValueError for an address that cannot be parsed
        return httpx.HTTPTransport(verify=context, limits=_LIMITS, trust_env=False, proxy=httpx.Proxy(proxy) if proxy else None)
    except ImportError as error:
        raise MissingError("a SOCKS proxy needs a package that is not installed; run: pip install 'httpx[socks]'") from error
    except (ValueError, httpx.InvalidURL) as error:  # its text may contain a password
        raise InputError("the environment's proxy", "expected an address like http://host:port") from error


def proxy_for(url: str) -> str:
    """Return the proxy that the environment sets for ``url``; empty for none."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies_environment()
    found = proxies.get(parts.scheme) or proxies.get("all") or ""
    # typeshed lacks proxy_bypass_environment.
    with suppress(ValueError):
        host = f"{parts.hostname}:{parts.port or ''}".rstrip(":")
        if found and urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
            return ""
    return found if "://" in found or not found else f"http://{found}"
