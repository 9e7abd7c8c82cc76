"""Sockets to listen on. Kept apart from the server, so that a port in use is noticed before anything else is loaded."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path

from rankscope.exporter.errors import ExporterInputError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; an IPv6 wildcard serves IPv4 as well.

    Raises:
        ExporterInputError: the address is in use, not this machine's, or not permitted.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=512, dualstack_ipv6=dual)
    except (OSError, UnicodeError) as error:  # the latter for a host that could never be a name
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ExporterInputError(
            f"cannot listen on {host}:{port}: {reason.lower()}; stop what uses it or choose another address with"
            " --web.listen-address"
        ) from error


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can use; one that a dead process left behind is replaced.

    Raises:
        OSError: the place cannot be written, somebody listens there, or something that is no socket is there.
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
        # Made under another name, so that nobody can connect before the mode is right.
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
    """Remove a socket, if one is there; raises ``OSError``, also where something else is, which is left alone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, f"{path.name} is there and no socket", str(path))
    path.unlink(missing_ok=True)
