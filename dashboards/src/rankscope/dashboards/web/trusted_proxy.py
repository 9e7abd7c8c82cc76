"""A reverse proxy that authenticates users and names them in a header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from rankscope.dashboards.words.inert import sanitize

if TYPE_CHECKING:  # the report has the views without a server
    import flask

Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
MAX_USER: Final = 100

_EVERY_REQUEST: Final = frozenset({"accept", "accept-encoding", "accept-language", "connection", "cookie", "host", "user-agent"})
"""Headers that browsers send with every request, so they cannot identify a user."""
_HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """A trusted proxy: ``header`` is trusted only from ``networks``. The proxy must strip it from incoming requests."""

    header: str
    networks: tuple[Network, ...] = LOOPBACK

    @classmethod
    def parse(cls, header: str, addresses: Sequence[str]) -> TrustedProxy:
        """Parse the options; without addresses the proxy is on this machine. Raises ``ValueError`` with the reason."""
        if _HEADER.fullmatch(header) is None:
            raise ValueError(f"{header!r} is not the name of a header such as X-Forwarded-User: letters, digits and '-'")
        if header.lower() in _EVERY_REQUEST:
            raise ValueError(f"{header} is sent by every browser, and says nothing of who is there; name the proxy's own header")
        return cls(header, tuple(map(_network, addresses)) or LOOPBACK)

    def is_sender(self, request: flask.Request) -> bool:
        """Return whether the request comes from the proxy."""
        try:
            address = ip_address(request.remote_addr or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)

    def user(self, request: flask.Request) -> str | None:
        """Return the user that the proxy reports, ``None`` if the request does not come from it or names no user."""
        if not self.is_sender(request):
            return None
        return sanitize(request.headers.get(self.header, "").strip(), MAX_USER) or None


def _network(text: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an address such as 10.0.0.5, or a network such as 10.0.0.0/24: {error}") from error
    if network.prefixlen == 0:
        raise ValueError(f"{text} is everybody: name the address of the proxy")
    return network
