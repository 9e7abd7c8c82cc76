"""Where we may connect to: what the operator named, and never the cloud's metadata by a name.

An address that arrives in data is passed on as text and asked by nobody, so there is no rule for it. Names are resolved once and
the address that was checked is the one that is connected to, so that a name which says something else the second time gains
nothing. Needs no extra.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from typing import Final

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
