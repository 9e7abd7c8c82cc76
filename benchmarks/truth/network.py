"""Network of two hosts with a slow link between them, as ``truth.py`` needs it. Measures nothing by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def slow_network(rate: str) -> Iterator[list[list[str]]]:
    """Create two network namespaces with a link of the given rate. Yields the command prefix that runs a command in each."""
    prefix = f"rs{os.getpid()}"
    names = [f"{prefix}a", f"{prefix}b"]

    def ip(*args: str) -> None:
        subprocess.run(["ip", *args], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", f"{prefix}0", "netns", names[0], "type", "veth", "peer", "name", f"{prefix}1", "netns", names[1])
        for number, name in enumerate(names):
            link = f"{prefix}{number}"
            ip("-n", name, "addr", "add", f"10.9.8.{number + 1}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
            shape = f"tc -n {name} qdisc add dev {link} root tbf rate {rate} burst 64kb latency 100ms".split()
            subprocess.run(shape, check=True, capture_output=True, text=True)
        yield [["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={prefix}{number}"] for number, name in enumerate(names)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
