"""``rankscope dashboard``: the real command, its server and exit statuses, the modules that it loads, and its image."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.command_line import Cli, one_line_error
from tests.dashboards.served import serving

from rankscope.dashboards.commands import dashboard as command

TOKEN = "0123456789abcdef0123456789abcdef"
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> tuple[int, str]:
    with _opener.open(url, timeout=120) as response:
        return response.status, response.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_dashboard_serves_every_script_until_a_stop_signal(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as (process, url), contextlib.ExitStack() as silent:
        for _ in range(20):  # as browsers open them in advance
            silent.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
        began = time.monotonic()
        assert get(f"{url}/-/healthy") == (200, "ok\n")
        assert time.monotonic() - began < 3
        page = get(f"{url}/")[1]
        assert "rankscope" in page
        scripts = re.findall(r'<script src="(/_dash-component-suites/[^"]+)"', page)
        assert len(scripts) > 5
        for script in scripts:
            assert get(url + script)[0] == 200
        process.send_signal(number)
        assert process.wait(timeout=120) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dashboard_stops_silently_while_a_worker_is_busy(number: signal.Signals) -> None:
    # given a worker in the middle of a long request
    script = (
        "import socket, sys, time, dash; from rankscope.dashboards.web.server import serve\n"
        "app, sock = dash.Dash(), socket.create_server(('127.0.0.1', 0)); app.layout = dash.html.Div()\n"
        "app.server.add_url_rule('/long', view_func=lambda: (print('busy', file=sys.stderr, flush=True), time.sleep(600)))\n"
        "serve(app, sock, ready=lambda: print(sock.getsockname()[1], file=sys.stderr, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    try:
        with socket.create_connection(("127.0.0.1", int(process.stderr.readline()))) as asking:
            asking.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert process.stderr.readline() == "busy\n"
            # when it is stopped; Ctrl-C reaches all of its processes
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            # then it exits without output
            assert process.wait(timeout=120) == 0
        assert process.stderr.read() == ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_path_without_a_folder_is_a_one_line_error(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in ((tmp_path / "nothing", "no such file or folder"), (tmp_path / "file", "not a folder")):
        error = one_line_error(cli("dashboard", path))
        assert str(path) in error
        assert reason in error


@pytest.mark.slow
@pytest.mark.parametrize("name", [".", pytest.param("run", marks=pytest.mark.full)])
def test_unreadable_folder_is_a_one_line_error(tmp_path: Path, without_privilege: list[str], name: str) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    command = [*without_privilege, sys.executable, "-m", "rankscope", "dashboard", str(locked / name), "--listen", "127.0.0.1:0"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert f"{locked / name}: Permission denied" in one_line_error(completed)


@pytest.mark.slow
def test_port_in_use_is_a_one_line_error(tmp_path: Path, cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        error = one_line_error(cli("dashboard", tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}"))
    assert "in use" in error
    assert "--listen" in error


@pytest.mark.parametrize("address", ["0.0.0.0:8050", ":8050", "[::]:8050", "192.0.2.1:80", "example.org:80"])
def test_public_address_without_authentication_is_a_usage_error(tmp_path: Path, address: str, cli: Cli) -> None:
    completed = cli("dashboard", tmp_path, "--listen", address)
    assert completed.returncode == 2
    for way_out in ("--token-file FILE", "--trusted-proxy-header NAME", "openssl rand", "SSH tunnel"):
        assert way_out in " ".join(completed.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0", "--token-file", "TOKEN"], "--allow-host NAME"),
        (["--listen", "127.0.0.1:0", "--port", "9000"], "HOST:PORT"),
        (["--listen", "192.0.2.1:0", "--trusted-proxy-header", "X-Forwarded-User"], "--trusted-proxy ADDR"),
        (["--trusted-proxy", "10.0.0.5"], "needs --trusted-proxy-header"),
        (["--trusted-proxy-header", "X_User"], "not the name of a header"),
        (["--trusted-proxy-header", "host"], "sent by every browser"),
        (["--trusted-proxy-header", "X-User", "--trusted-proxy", "proxy.example"], "not an address"),
        (["--trusted-proxy-header", "X-User", "--trusted-proxy", "0.0.0.0/0"], "is everybody"),
        (["--allow-host", "http://runs.example"], "not a host's name"),
        (["--allow-host", "*"], "not a host's name"),
        (["--allow-host", "a..b"], "not a host's name"),
        (["--allow-host", f"{'a' * 64}.example"], "not a host's name"),
    ],
)
def test_incomplete_access_options_are_usage_errors(tmp_path: Path, options: list[str], message: str, cli: Cli) -> None:
    (tmp_path / "token").write_text(TOKEN)
    completed = cli("dashboard", tmp_path, *(str(tmp_path / "token") if option == "TOKEN" else option for option in options))
    assert completed.returncode == 2
    assert message in " ".join(completed.stderr.split())
    assert TOKEN not in completed.stderr


@pytest.mark.parametrize(
    "url", ["", "ui.perfetto.dev", "ftp://perfetto.example", "javascript:alert(1)", "https://me@perfetto.example"]
)
def test_invalid_perfetto_url_is_a_usage_error(tmp_path: Path, url: str, cli: Cli) -> None:
    completed = cli("dashboard", tmp_path, "--perfetto-url", url)
    assert completed.returncode == 2
    assert "--perfetto-url" in completed.stderr


@pytest.mark.parametrize("secret", ["hunter2", "a" * 64, "two words of many letters in all"])
def test_weak_token_is_refused_and_not_printed(tmp_path: Path, secret: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(f"{secret}\n")
    from_file = cli("dashboard", tmp_path, "--token-file", tmp_path / "token")
    monkeypatch.setenv("RANKSCOPE_DASHBOARD_TOKEN", secret)
    from_environment = cli("dashboard", tmp_path)
    for item, where in ((from_file, str(tmp_path / "token")), (from_environment, "RANKSCOPE_DASHBOARD_TOKEN")):
        error = one_line_error(item)
        assert where in error
        assert "openssl rand -hex 32" in error
        assert secret not in error


def test_empty_token_is_an_error(tmp_path: Path, cli: Cli) -> None:
    assert "RANKSCOPE_DASHBOARD_TOKEN" in one_line_error(cli("dashboard", tmp_path, env={"RANKSCOPE_DASHBOARD_TOKEN": ""}))


def test_missing_token_file_is_a_one_line_error(tmp_path: Path, cli: Cli) -> None:
    error = one_line_error(cli("dashboard", tmp_path, "--token-file", tmp_path / "nothing"))
    assert f"{tmp_path / 'nothing'}: No such file or directory" in error
    assert "--token-file" in error


@pytest.mark.slow
def test_login_session_is_valid_for_later_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_DASHBOARD_TOKEN", TOKEN)
    with serving(tmp_path) as (process, url):
        # the token is not in the command line, which other users can read
        assert TOKEN not in " ".join(Path(f"/proc/{process.pid}/cmdline").read_text().split("\0"))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{url}/_dash-layout")
        jar = urllib.request.HTTPCookieProcessor()
        browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), jar)
        browser.open(f"{url}/login", data=f"token={TOKEN}".encode(), timeout=120).close()
        with browser.open(f"{url}/_dash-layout", timeout=120) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("address", ["8050", "127.0.0.1", "127.0.0.1:99999", "::1:80", "localhost:http", ""])
def test_malformed_listen_address_is_a_usage_error(tmp_path: Path, address: str, cli: Cli) -> None:
    completed = cli("dashboard", tmp_path, "--listen", address)
    assert completed.returncode == 2
    assert "HOST:PORT" in completed.stderr


ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "dashboards" / "docker" / "Dockerfile"


def test_command_extras_and_sources_of_the_container_image_exist() -> None:
    text = DOCKERFILE.read_text()
    (arguments,) = (json.loads(line) for line in re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installed,) = re.findall(r'"\.\[([\w,]+)\]"', text)

    context = command.make_context("dashboard", [str(arg).replace("/runs", str(ROOT)) for arg in arguments])

    assert context.params["listen"] is not None
    assert set(installed.split(",")) <= set(extras)
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in sources.split())


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(completed.stdout.split())


@pytest.mark.slow
def test_app_and_server_do_not_import_torch() -> None:
    loaded = loaded_after("import rankscope.dashboards.app, rankscope.dashboards.web.server, rankscope.dashboards.store.disk")
    assert "dash" in loaded
    assert "torch" not in loaded


@pytest.mark.slow
def test_command_module_imports_without_the_dashboards_extra() -> None:
    loaded = loaded_after("import rankscope.dashboards.commands")
    assert loaded.isdisjoint({"dash", "plotly", "flask", "numpy", "gunicorn"})
