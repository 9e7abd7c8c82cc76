"""HTTP clients that verify TLS and follow no redirects."""

from __future__ import annotations

import logging
import ssl
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from rankscope.alerts.deliver.post import redact, with_proxy
from rankscope.base.errors import InputError, MissingError

CONNECT_S: Final = 5.0
TIMEOUT: Final = httpx.Timeout(10.0, connect=CONNECT_S)
"""Seconds for each read and write, and ``CONNECT_S`` for connecting."""
_LIMITS: Final = httpx.Limits(max_keepalive_connections=0)
"""No keep-alive: ``Deadline`` learns of a connection only when it is made."""


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
    url: str,
    *,
    timeout: httpx.Timeout = TIMEOUT,
    ca_file: Path | None = None,
    certificate: tuple[Path, Path] | None = None,
    proxy: str | None = None,
) -> httpx.Client:
    """Create a client for ``url``.

    ``ca_file``: CA certificates to trust instead of the default ones (without it, ``SSL_CERT_FILE`` applies).
    ``certificate``: files of the client's own certificate and its key.
    ``proxy``: address of the proxy, ``""`` for none; ``None`` reads ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``. A proxy resolves host names itself. Raises ``OSError`` for an unusable ``ca_file`` or
    ``certificate``, ``InputError`` and ``MissingError`` for an unusable proxy.
    """
    for library in ("httpx", "httpcore"):
        # Below WARNING these libraries log whole URLs, which may contain secrets.
        logging.getLogger(library).setLevel(logging.WARNING)
    proxy = proxy_for(url) if proxy is None else proxy
    if ca_file is not None:
        context = ssl.create_default_context(cafile=str(ca_file))
    elif certificate is None and url.startswith("http:") and (not proxy or proxy.startswith("http:")):
        # Plain HTTP needs no CA certificates, and loading them is slow. Without them every TLS handshake fails.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = httpx.create_ssl_context()
    if certificate is not None:
        context.load_cert_chain(*certificate, password=lambda: "")  # an encrypted key would make OpenSSL ask on the terminal
    transport = _transport(context, proxy)
    return httpx.Client(
        transport=ProxiedTransport(transport, proxy) if proxy else transport,
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
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    # typeshed lacks proxy_bypass_environment.
    with suppress(ValueError):
        host = f"{parts.hostname}:{parts.port or ''}".rstrip(":")
        if proxy and urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
            return ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"
