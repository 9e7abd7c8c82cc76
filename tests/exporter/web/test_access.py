"""TLS, client certificates and passwords of the web configuration file, over real connections."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bcrypt
import pytest
from tests.command_line import Cli
from tests.exporter.conftest import RunningExporter, StartExporter

from rankscope.base.errors import InputError
from rankscope.exporter.web.config import load_web_config

pytestmark = pytest.mark.slow  # each starts real processes

HURRIED = (
    "from rankscope.base import followed_files, http_server; "
    "followed_files.LOOK_EVERY_S = 0.1; http_server.REQUEST_DEADLINE_S = 1"
)
PASSWORD = "s3cret of a scraper"
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key%s}\n"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


class Certificates:
    """A folder with a certificate authority, made by the real openssl, that passes Python 3.13's strict verification."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl(
            "req", "-x509", "-subj", "/CN=test ca", "-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca.key",
            "-out", "ca.pem", *self._new_key,
        )  # fmt: skip

    _new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def issue(self, name: str, san: str) -> None:
        self._openssl(
            "req", "-x509", "-subj", f"/CN={name}", "-addext", f"subjectAltName={san}", "-addext", "basicConstraints=CA:FALSE",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", f"{name}.key",
            "-out", f"{name}.pem", *self._new_key,
        )  # fmt: skip

    def client(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if name is not None:
            context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.issue("server", "IP:127.0.0.1")
    return made


def served_serial(exporter: RunningExporter, certificates: Certificates) -> str:
    with (
        socket.create_connection((exporter.host, exporter.port), timeout=120) as plain,
        certificates.client().wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        certificate = secure.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_tls_serves_verifying_clients_and_disconnects_silent_clients(
    start_exporter: StartExporter, certificates: Certificates, web_config: Callable[[str], Path]
) -> None:
    exporter = start_exporter("--simulate", "1", "--web.config.file", web_config(TLS % ", min_version: TLS13"), prelude=HURRIED)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((exporter.host, exporter.port), timeout=120)) for _ in range(50)]
        silent[1].sendall(b"\x16\x03\x01\x02\x00\x01")

        assert exporter.get("/-/healthy", context=certificates.client()).status == 200
        old = certificates.client()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            exporter.get("/-/healthy", context=old)
        with socket.create_connection((exporter.host, exporter.port), timeout=120) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"gpu_up" not in plain.recv(4096)

        for connection in silent:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass


def test_client_certificates_are_verified(
    start_exporter: StartExporter, certificates: Certificates, web_config: Callable[[str], Path]
) -> None:
    certificates.issue("prometheus", "DNS:prometheus.example")
    certificates.issue("intern", "DNS:intern.example")
    more = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem, client_allowed_sans: [prometheus.example]"
    exporter = start_exporter("--simulate", "1", "--web.config.file", web_config(TLS % more))

    assert exporter.get("/metrics", context=certificates.client("prometheus")).status == 200
    for stranger in (None, "intern"):
        with pytest.raises((OSError, http.client.HTTPException)):
            exporter.get("/metrics", context=certificates.client(stranger))


def test_a_new_certificate_is_served_without_dropping_a_connection(
    start_exporter: StartExporter, certificates: Certificates, web_config: Callable[[str], Path]
) -> None:
    prelude = "from rankscope.base import followed_files; followed_files.LOOK_EVERY_S = 0.1"
    exporter = start_exporter("--simulate", "1", "--web.config.file", web_config(TLS % ""), prelude=prelude)
    before = served_serial(exporter, certificates)
    kept = exporter.connect()
    kept.request("GET", "/-/healthy")
    assert kept.getresponse().read() == b"healthy\n"
    statuses: list[int] = []
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(0.02):
            statuses.append(exporter.get("/metrics").status)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        # first the certificate alone, which does not match the key; then both
        key = (certificates.folder / "server.key").read_bytes()
        certificates.issue("server", "IP:127.0.0.1")
        fresh = (certificates.folder / "server.key").read_bytes()
        (certificates.folder / "server.key").write_bytes(key)
        exporter.wait_until(lambda: "stays as it was" in exporter.stderr)
        (certificates.folder / "server.key").write_bytes(fresh)
        exporter.wait_until(lambda: served_serial(exporter, certificates) != before)
    finally:
        stop.set()
        scraper.join()

    assert set(statuses) == {200}
    kept.request("GET", "/-/healthy")
    assert kept.getresponse().read() == b"healthy\n"
    kept.close()


def test_passwords_are_required_and_headers_are_sent(start_exporter: StartExporter, web_config: Callable[[str], Path]) -> None:
    users = f"basic_auth_users: {{ann: {hashed(PASSWORD)}}}\n"
    headers = "http_server_config: {headers: {Strict-Transport-Security: max-age=60, X-Frame-Options: deny}}"
    exporter = start_exporter("--simulate", "1", "--web.config.file", web_config(users + headers))

    assert exporter.get("/metrics", authorization=basic("ann", PASSWORD)).status == 200
    for wrong in ("", "Basic", "Basic !!", "Bearer x"):
        answer = exporter.get("/metrics", authorization=wrong)
        assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Basic")
    for path in ("/", "/-/ready"):
        assert exporter.get(path).status == 401
    # the health check needs no password, for probes
    assert exporter.get("/-/healthy").status == 200
    for path in ("/", "/metrics", "/nothing"):
        sent = exporter.get(path, authorization=basic("ann", PASSWORD)).headers
        assert (sent["strict-transport-security"], sent["x-frame-options"]) == ("max-age=60", "deny")


def test_guesses_do_not_lock_out_the_right_password(start_exporter: StartExporter, web_config: Callable[[str], Path]) -> None:
    prelude = "import rankscope.exporter.web.access as access; access.PAUSE_S = 0.01"
    users = f"basic_auth_users: {{ann: {hashed(PASSWORD)}, bob: {hashed('another')}}}"
    exporter = start_exporter("--simulate", "1", "--web.config.file", web_config(users), prelude=prelude)
    guesses = [basic("ann", "another"), basic("nobody", PASSWORD), basic("ann", "x" * 100), basic("ann", PASSWORD + "\0")]
    guesses += [basic("ann", f"guess {number}") for number in range(300)]

    # from the address of the scraper, before its first scrape and all at once with it
    with ThreadPoolExecutor(64) as clients:
        answers = [clients.submit(exporter.get, "/metrics", authorization=guess) for guess in guesses]
        right = clients.submit(exporter.get, "/metrics", authorization=basic("ann", PASSWORD))
        assert {answer.result().status for answer in answers} == {401}
        assert right.result().status == 200
    # and one by one
    assert [exporter.get("/metrics", authorization=guess).status for guess in guesses[:20]] == [401] * 20
    assert exporter.get("/metrics", authorization=basic("bob", "another")).status == 200
    assert exporter.get("/metrics", authorization=basic("ann", PASSWORD)).status == 200


def test_changed_password_is_applied_and_invalid_file_is_ignored(
    start_exporter: StartExporter, web_config: Callable[[str], Path]
) -> None:
    path = web_config(f"basic_auth_users: {{ann: {hashed(PASSWORD)}}}")
    exporter = start_exporter("--simulate", "1", "--web.config.file", path, prelude=HURRIED)

    web_config("basic_auth_users: [")
    exporter.wait_until(lambda: exporter.get("/metrics").status == 401 and "stays as it was" in exporter.stderr)
    assert exporter.get("/metrics", authorization=basic("ann", PASSWORD)).status == 200

    web_config(f"basic_auth_users: {{ann: {hashed('another')}}}")
    exporter.wait_until(lambda: exporter.get("/metrics").status == 401 and "was read again" in exporter.stderr)
    assert exporter.get("/metrics", authorization=basic("ann", "another")).status == 200
    assert exporter.get("/metrics", authorization=basic("ann", PASSWORD)).status == 401
    assert exporter.stderr.count("stays as it was") == 1

    # An editor has emptied the file, and not yet written it
    web_config("")
    exporter.wait_until(lambda: exporter.get("/metrics").status != 200 and exporter.stderr.count("stays as it was") == 2)
    assert exporter.get("/metrics", authorization=basic("ann", "another")).status == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_server_confg: {}", "tls_server_confg"),
        ("tls_server_config: {cert_file: server.pem}", "key_file"),
        (TLS % "", "server.pem"),
        (TLS % ", min_version: TLS10", "TLS10"),
        (TLS % ", min_version: TLS13, max_version: TLS12", "above max_version"),
        (TLS.replace("server.pem", '"server\\0.pem"') % "", "null"),
        ('http_server_config: {headers: {X-Frame-Options: " deny"}}', "begins or ends blank"),
        (TLS % ", client_auth_type: RequestClientCert", "RequestClientCert"),
        (TLS % ", cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]", "TLS_RSA_WITH_RC4_128_SHA"),
        ("basic_auth_users: {ann: plain}", "htpasswd"),
        ("http_server_config: {headers: {Server: x}}", "Server"),
        ("rate_limit: {interval: 1s}", "rate_limit"),
        ("{", "not YAML"),
    ],
)
def test_web_config_error_names_the_file(web_config: Callable[[str], Path], text: str, message: str) -> None:
    path = web_config(text)

    with pytest.raises(InputError) as refused:
        load_web_config(path)

    assert str(path.parent) in str(refused.value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_exporter_does_not_start_with_an_invalid_web_config(cli: Cli, web_config: Callable[[str], Path]) -> None:
    path = web_config("basic_auth_users: {ann: plain}")

    completed = cli("exporter", "--simulate", "1", "--listen", "127.0.0.1:0", "--spool", path.parent, "--web.config.file", path)

    assert completed.returncode == 3
    assert len(completed.stderr.splitlines()) == 1, completed.stderr
    assert str(path) in completed.stderr
