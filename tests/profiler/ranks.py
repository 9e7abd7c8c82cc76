"""Starts the ranks of a job as torchrun does, without the seconds that each of them takes to import torch.

A rank is a fork of a process that has imported torch and nothing of rankscope; the recorder is attached as by our
``sitecustomize``. ``PreloadedTorch`` keeps that process for many jobs; ``command`` makes one for a single job.
Programs: ``ranks.py COUNT SCRIPT ARGUMENT…``; ``ranks.py serve SOCKET``; its client ``ranks.py SOCKET COUNT SCRIPT ARGUMENT…``.
COUNT 0 is a script that no launcher started. A script may also be ``-c CODE``.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

PYTHON = [sys.executable, "-I", __file__]
"""Command prefix, isolated: PYTHONPATH is for the ranks."""
END_SECONDS = 60.0
_STORES: list[Any] = []


def command(count: int, *words: str | Path) -> list[str]:
    """Return the command that runs a job of ``count`` ranks."""
    return [*PYTHON, str(count), *map(str, words)]


class PreloadedTorch:
    """Process that has imported torch and is forked for every job. A context manager."""

    def __init__(self, folder: Path) -> None:
        import subprocess

        self._socket = folder / "torch"
        variables = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
        self._server = subprocess.Popen(
            [*PYTHON, "serve", self._socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )

    def __enter__(self) -> Self:
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def command(self, count: int, *words: str | Path) -> list[str]:
        """Return the command that runs a job of ``count`` ranks in forks of this process."""
        return [*PYTHON, str(self._socket), str(count), *map(str, words)]


class _Fork(BaseException):
    """Exception that unwinds the server's stack in a forked process that is to run a script."""


def _serve(path: str) -> NoReturn:
    """Fork an agent for every connection, until standard input ends."""
    import array
    import gc
    import json
    import select
    import socket

    import torch._dynamo  # noqa: F401  # with what the first step of an optimizer imports

    gc.freeze()  # a rank's garbage collector must not scan the shared objects
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print("ready", flush=True)
        while True:
            if 0 in select.select([listening.fileno(), 0], [], [])[0]:
                os._exit(0)  # freeing all of torch takes a second
            connection, _ = listening.accept()
            data, ancillary, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(8))
            while not data.endswith(b"\n"):
                data += connection.recv(1 << 20)
            streams = array.array("i", ancillary[0][2])
            server = os.getpid()
            if os.fork() == 0:
                listening.close()
                watched = [connection, os.pidfd_open(server)]
                os.setsid()
                null = os.open(os.devnull, os.O_RDONLY)
                for descriptor, stream in enumerate((null, *streams)):
                    os.dup2(stream, descriptor)
                    os.close(stream)
                output = json.loads(data)
                os.environ.clear()
                os.environ.update(output["environment"])
                os.chdir(output["folder"])
                status = _run(int(output["words"][0]), output["words"][1:], watched)
                with suppress(OSError):  # the client may have exited
                    connection.sendall(str(status).encode())
                os._exit(0)
            connection.close()
            for stream in streams:
                os.close(stream)
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                pass


def _ask(path: str, words: list[str]) -> int:
    """Let a server run a job with the environment and the output of this process; the job ends with it."""
    import array
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        by_key = {"environment": dict(os.environ), "folder": os.getcwd(), "words": words}  # noqa: PTH109  # no pathlib for a short-lived process
        streams = array.array("i", [1, 2])
        connection.sendmsg([b" "], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(json.dumps(by_key).encode() + b"\n")
        return int(connection.recv(100) or 1)


def _run(count: int, words: list[str], watched: list[Any] | None = None) -> int:
    """Be the agent: fork the ranks, serve their store, and wait for them. Return the exit status."""
    import signal
    import socket

    _import_torch_modules_of(words)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        ranks = {}
        for rank in range(count or 1):
            if (process := os.fork()) == 0:
                listening.close()
                if watched:
                    watched[0].close()
                if count:
                    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
                    os.environ.update(dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)))
                    os.environ.update(dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count)))
                raise _Fork(words)
            ranks[os.pidfd_open(process)] = process
        if count:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public nevertheless

            store = os.dup(listening.fileno())
            _STORES.append(TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=store))
    if not watched:
        signal.signal(signal.SIGTERM, lambda *_: _kill(ranks, signal.SIGTERM))
    return _wait(ranks, watched or [])


def _wait(ranks: dict[int, int], watched: list[Any]) -> int:
    """Wait for all ranks; end them when one fails, or when the client or the server has exited. Return the exit status."""
    import select
    import signal

    failed, ending = 0, False
    while ranks:
        ready = select.select([*watched, *ranks], [], [], END_SECONDS if ending else None)[0]
        for rank in ready:
            if rank in ranks:
                _, status = os.waitpid(ranks.pop(rank), 0)
                code = os.waitstatus_to_exitcode(status)
            else:
                watched, code = [], 1
            failed = failed or (128 - code if code < 0 else code)
        if not ready:
            _kill(ranks, signal.SIGKILL)
        elif failed and not ending:
            ending = True
            _kill(ranks, signal.SIGTERM)
    return failed


def _kill(ranks: dict[int, int], number: int) -> None:
    for process in ranks.values():
        os.kill(process, number)


def _import_torch_modules_of(words: list[str]) -> None:
    """Import the script's torch modules first, once for all ranks."""
    import ast

    source = words[1] if words[0] == "-c" else Path(words[0]).read_text()
    for node in ast.parse(source).body:
        named = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in named:
            if name.split(".")[0] == "torch":
                __import__(name)


def _become(words: list[str]) -> None:
    """Run the script like a Python that a launcher has started."""
    import builtins
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from types import ModuleType

    script, *arguments = words
    source, arguments = (arguments[0], arguments[1:]) if script == "-c" else (Path(script).read_text(), arguments)
    sys.argv, sys.orig_argv = [script, *arguments], [sys.executable, *words]
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = ["" if script == "-c" else str(Path(script).parent), *folders]
    site = PathFinder.find_spec("sitecustomize", folders)
    if site and site.loader:
        site.loader.exec_module(module := module_from_spec(site))
        if os.environ.get("RANKSCOPE_RUN_DIR"):
            module._attach()
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins)
    if script != "-c":
        main.__file__ = script
    sys.modules["__main__"] = main
    exec(compile(source, "<string>" if script == "-c" else script, "exec"), vars(main))


def _main(words: list[str]) -> int:
    if words[0] == "serve":
        _serve(words[1])
    if not words[0].isdecimal():
        return _ask(words[0], words[1:])
    os._exit(_run(int(words[0]), words[1:]))


if __name__ == "__main__":
    forked = None
    try:
        sys.exit(_main(sys.argv[1:]))
    except _Fork as fork:
        forked = fork.args[0]
    _become(forked)
