"""The Unix socket of releases."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path


def listen_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket with mode 0600; a socket left by a dead process is replaced.

    Raises:
        OSError: the path is not writable, another process listens there, or it is no socket.
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
        # Created under another name, so that no other user can connect before the mode is set.
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
    """Remove a socket if it exists; raises ``OSError``, also if the path is no socket, which is then kept."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, f"{path.name} is there and no socket", str(path))
    path.unlink(missing_ok=True)
