"""``--web.config.file``: TLS, users and headers, in the format of the Prometheus exporter-toolkit.

A setting that cannot be implemented in Python is an error that names it: no configured protection is silently missing.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rankscope.base.config_files import read_config_text
from rankscope.base.errors import InputError, MissingError

ClientAuth = Literal[
    "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
]

_VERIFY: Final = {"VerifyClientCertIfGiven": ssl.CERT_OPTIONAL, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
_TLS13_CIPHERS: Final = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
_HEADERS: Final = {
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
}
_BCRYPT: Final = re.compile(r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{53}", re.ASCII)
_MAX_BCRYPT_COST: Final = 14


class TlsServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; paths are relative to the file."""

    cert_file: str
    key_file: str
    client_auth_type: ClientAuth = "NoClientCert"
    client_ca_file: str = ""
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    curve_preferences: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True


class HttpServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``http_server_config``. ``http2`` has no effect: the exporter only speaks HTTP/1.1, to which every client falls back."""

    http2: bool = True
    headers: dict[str, str] = {}


class _WebConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: dict[str, str | None] | None = None
    rate_limit: Any = None


@dataclass(frozen=True, slots=True)
class WebConfig:
    """One version of the file, ready to serve.

    ``users`` maps names to bcrypt hashes; None if no password is required. ``files`` are all files it was read from.
    """

    users: dict[str, bytes] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    files: tuple[Path, ...] = ()
    tls: ssl.SSLContext | None = None
    allowed_sans: frozenset[tuple[str, str]] | None = None

    def admits(self, transport: Any) -> bool:
        """Return whether the client's certificate has one of ``allowed_sans``; True if there are none."""
        if self.allowed_sans is None:
            return True
        certificate = transport.get_extra_info("peercert") or {}
        return any(_san(kind, value) in self.allowed_sans for kind, value in certificate.get("subjectAltName", ()))


def load_web_config(path: Path) -> WebConfig:
    """Read the file and everything it names.

    Raises:
        InputError: one of the files cannot be read, or has an invalid or unsupported setting.
        MissingError: PyYAML or bcrypt is not installed.
    """
    parsed = _parse(path)
    if parsed.rate_limit is not None:
        raise InputError(path, "rate_limit is not supported; connections, failed log-ins and slow clients are limited without it")
    users, headers = _users(path, parsed.basic_auth_users), _headers(path, parsed.http_server_config.headers)
    tls = parsed.tls_server_config
    if tls is None:
        return WebConfig(users, headers, (path,))
    files = [path.parent / name for name in (tls.cert_file, tls.key_file, tls.client_ca_file) if name]
    context = _context(path, tls, files)
    allowed_sans = None
    if tls.client_allowed_sans:
        if tls.client_auth_type != "RequireAndVerifyClientCert":
            raise InputError(path, "client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")
        allowed_sans = frozenset(san for text in tls.client_allowed_sans for san in _san_of_text(text))
    return WebConfig(users, headers, (path, *files), context, allowed_sans)


def _parse(path: Path) -> _WebConfigFile:
    content = read_config_text(path)
    try:
        # An empty file is a valid one: neither TLS nor users.
        return msgspec.yaml.decode(content, type=_WebConfigFile) if content.strip() else _WebConfigFile()
    except msgspec.ValidationError as error:
        raise InputError(path, f"{error}") from error
    except msgspec.DecodeError as error:
        raise InputError(path, "not YAML: " + " ".join(str(error).split())) from error
    except ImportError as error:
        raise MissingError("--web.config.file needs PyYAML: pip install 'rankscope[exporter]'") from error


def _users(path: Path, users: dict[str, str | None] | None) -> dict[str, bytes] | None:
    if not users:
        return None
    try:
        import bcrypt  # noqa: F401  report a missing package now, not at the first log-in
    except ModuleNotFoundError as error:
        raise MissingError("basic_auth_users needs bcrypt: pip install 'rankscope[exporter]'") from error
    for name, hashed in users.items():
        match = _BCRYPT.fullmatch(hashed or "")
        if match is None:
            raise InputError(path, f"basic_auth_users: {name!r} has no bcrypt hash; make one with: htpasswd -nBC 10 {name}")
        if not 4 <= int(match[1]) <= _MAX_BCRYPT_COST:
            raise InputError(
                path, f"basic_auth_users: {name!r} has a bcrypt cost of {int(match[1])}; 4 to {_MAX_BCRYPT_COST} is possible"
            )
    return {name: hashed.encode() for name, hashed in users.items() if hashed}


def _headers(path: Path, headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in headers.items():
        if name not in _HEADERS:
            raise InputError(path, f"http_server_config: header {name!r} cannot be set; use {', '.join(sorted(_HEADERS))}")
        if not re.fullmatch(r"[\x20-\x7e]*", value) or value.strip() != value:
            raise InputError(
                path,
                f"http_server_config: header {name!r} has a value that is not plain text on one line, or begins or ends blank",
            )
    # nosniff is always sent
    return tuple((name.lower(), value) for name, value in headers.items() if name != "X-Content-Type-Options")


def _context(path: Path, tls: TlsServerConfig, files: list[Path]) -> ssl.SSLContext:
    if tls.client_auth_type in ("RequestClientCert", "RequireAnyClientCert"):
        raise InputError(
            path,
            f"client_auth_type {tls.client_auth_type} asks for certificates without verifying them, which is not supported;"
            " use RequireAndVerifyClientCert",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    except KeyError as error:
        raise InputError(path, f"TLS version {error.args[0]!r} is not supported; use TLS12 or TLS13") from error
    if context.minimum_version > context.maximum_version:
        raise InputError(path, f"min_version {tls.min_version} is above max_version {tls.max_version}")
    context.set_alpn_protocols(["http/1.1"])
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    _limit_algorithms(path, tls, context)
    folder = path.parent
    _load(lambda: context.load_cert_chain(folder / tls.cert_file, folder / tls.key_file, password=_no_password), path, files)
    if tls.client_auth_type in _VERIFY:
        if not tls.client_ca_file:
            raise InputError(path, f"client_auth_type {tls.client_auth_type} needs client_ca_file")
        _load(lambda: context.load_verify_locations(folder / tls.client_ca_file), path, files)
        context.verify_mode = _VERIFY[tls.client_auth_type]
    elif tls.client_ca_file:
        raise InputError(path, "client_ca_file has no effect without client_auth_type: RequireAndVerifyClientCert")
    return context


def _limit_algorithms(path: Path, tls: TlsServerConfig, context: ssl.SSLContext) -> None:
    ciphers = [_cipher(path, name) for name in tls.cipher_suites if name not in _TLS13_CIPHERS]
    if ciphers:
        _choose(path, "cipher_suites", lambda: context.set_ciphers(":".join(ciphers)))
    if len(tls.curve_preferences) > 1:
        raise InputError(path, "curve_preferences: a list of one curve is supported; leave it out for all")
    for curve in tls.curve_preferences:
        if curve not in _CURVES:
            raise InputError(path, f"curve_preferences: {curve!r} is not one of {', '.join(_CURVES)}")
        _choose(path, f"curve_preferences: {curve}", partial(context.set_ecdh_curve, _CURVES[curve]))


def _choose(path: Path, setting: str, choose: Callable[[], None]) -> None:
    """Apply a choice of algorithms, which OpenSSL's build or the system's crypto policy may not offer."""
    try:
        choose()
    except (ssl.SSLError, ValueError) as error:
        raise InputError(path, f"{setting}: the OpenSSL of this machine does not offer that ({error})") from error


def _cipher(path: Path, name: str) -> str:
    if name not in _CIPHERS:
        raise InputError(path, f"cipher_suites: {name!r} is not supported; possible are {', '.join(_CIPHERS)}")
    return _CIPHERS[name]


def _no_password() -> str:
    """Return an empty password, so that OpenSSL does not prompt for one if the key is encrypted."""
    return ""


def _load(load: Callable[[], None], path: Path, files: list[Path]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        reason = (error.reason or "not usable PEM").lower().replace("_", " ")
        raise InputError(path, f"{', '.join(map(str, files))}: {reason}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name, or no key in the file
        unreadable = next((file for file in files if not _readable(file)), files[0])
        raise InputError(path, f"{unreadable}: {(error.strerror if isinstance(error, OSError) else None) or error}") from error


def _readable(path: Path) -> bool:
    try:
        path.open("rb").close()
    except (OSError, ValueError):
        return False
    return True


def _san(kind: str, value: str) -> tuple[str, str]:
    if kind == "IP Address":
        try:
            return kind, str(ipaddress.ip_address(value.strip()))
        except ValueError:
            return kind, value
    return kind, value.lower() if kind == "DNS" else value


def _san_of_text(text: str) -> list[tuple[str, str]]:
    """Return the SANs that ``text`` may stand for: ``client_allowed_sans`` does not give the kind of a name."""
    return [_san(kind, text) for kind in ("DNS", "email", "IP Address", "URI")]
