"""Authentication of senders: bearer token, user and password, or a signature over the body; several of each, for rotation."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.signing import TOLERANCE_S, SignatureError, parse_secret, signatures_in, verify
from rankscope.base.errors import InputError
from rankscope.base.http import basic_credentials, bearer_token
from rankscope.base.problems import ProblemLog

GRAFANA_SIGNATURE: Final = b"x-grafana-alerting-signature"
MIN_SECRET: Final = 16
"""Minimum characters of a token or password: with so many, guessing is hopeless at any speed, so no sender is ever locked out."""

Headers = Mapping[bytes, bytes]
"""Headers by lower-case name; a repeated header is left out."""


class RotatedSecret:
    """Last usable value of a secret, so that a rotation locks no sender out.

    ``check`` raises ``ValueError`` for an unusable text. Raises ``InputError`` if the secret is unusable at the start. Later
    ``report`` takes one line.
    """

    def __init__(self, secret: Secret, *, check: Callable[[str], object], report: Callable[[str], object]) -> None:
        self._secret = secret
        self._check = check
        self._problems = ProblemLog(report)
        self.value = self._read()

    def __repr__(self) -> str:
        return f"RotatedSecret({self._secret.where})"

    def read_again(self) -> None:
        """Read the secret. May block as long as its file system does."""
        try:
            self.value = self._read()
        except InputError as error:
            self._problems.report(f"{error}; the last value stays in use")
        else:
            self._problems.report(None)

    def _read(self) -> bytes:
        text = self._secret.read()
        try:
            self._check(text)
        except ValueError as error:
            raise InputError(self._secret.where, str(error)) from error
        return text.encode()


def check_length(text: str) -> None:
    """Raise ``ValueError`` for a token or password that is too short."""
    if len(text) < MIN_SECRET:
        raise ValueError(f"shorter than {MIN_SECRET} characters, so it could be guessed; make one with: openssl rand -hex 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Accepted credentials. Without any, requests need no authentication."""

    bearer: Sequence[RotatedSecret] = ()
    basic: Sequence[tuple[str, RotatedSecret]] = ()
    """User and password."""
    signed: Sequence[RotatedSecret] = ()
    """Standard Webhooks: ``whsec_…``."""
    grafana: Sequence[RotatedSecret] = ()
    grafana_timestamp_header: str | None = None
    """As set in Grafana; then its signature covers ``TIME:BODY``."""

    @property
    def required(self) -> bool:
        """True if requests need authentication."""
        return bool(self.bearer or self.basic or self.signed or self.grafana)

    @property
    def sent_in_requests(self) -> bool:
        """True if a request contains a secret, which everyone on its way can read without TLS."""
        return bool(self.bearer or self.basic)

    def read_again(self) -> None:
        """Read all secrets. May block as long as a file system does."""
        for secret in (*self.bearer, *(password for _, password in self.basic), *self.signed, *self.grafana):
            secret.read_again()

    def by_header(self, headers: Headers) -> bool:
        """Check the headers for an accepted token or password."""
        header = headers.get(b"authorization", b"")
        if (token := bearer_token(header)) is not None:
            return _matches_any(token, [secret.value for secret in self.bearer])
        if (pair := basic_credentials(header)) is not None:
            return _matches_any(b":".join(pair), [user.encode() + b":" + password.value for user, password in self.basic])
        return False

    def may_be_signed(self, headers: Headers, *, now_s: float) -> bool:
        """Check that the headers contain a recent signature of an accepted kind, which may fit the body."""
        if self.grafana and self._grafana_signature(headers, now_s) is not None:
            return True
        try:
            return bool(self.signed and signatures_in(_words(headers), now_s=now_s))
        except SignatureError:
            return False

    def by_signature(self, headers: Headers, body: bytes, *, now_s: float) -> bool:
        """Check for a recent signature of the body with an accepted secret."""
        return self._grafana(headers, body, now_s) or self._standard(headers, body, now_s)

    def _standard(self, headers: Headers, body: bytes, now_s: float) -> bool:
        keys = [parse_secret(secret.value.decode()) for secret in self.signed]
        try:
            verify(keys, _words(headers), body, now_s=now_s)
        except SignatureError:
            return False
        return True

    def _grafana_signature(self, headers: Headers, now_s: float) -> tuple[bytes, bytes] | None:
        """Return Grafana's signature, and what it covers before the body; ``None`` if it is missing or too old."""
        signature = headers.get(GRAFANA_SIGNATURE, b"").strip().lower()
        if len(signature) != hashlib.sha256().digest_size * 2:
            return None
        if self.grafana_timestamp_header is None:
            return signature, b""
        at = headers.get(self.grafana_timestamp_header.lower().encode(), b"")
        if not at.isdigit() or len(at) > 12 or abs(int(at) - now_s) > TOLERANCE_S:
            return None
        return signature, at + b":"

    def _grafana(self, headers: Headers, body: bytes, now_s: float) -> bool:
        signature = self._grafana_signature(headers, now_s)
        if signature is None:
            return False
        hex_digest, prefix = signature
        signed = prefix + body
        return _matches_any(
            hex_digest, [hmac.new(secret.value, signed, hashlib.sha256).hexdigest().encode() for secret in self.grafana]
        )


def _words(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}


def _matches_any(credential: bytes, secrets: Sequence[bytes]) -> bool:
    """Compare ``credential`` with all of ``secrets``. The duration reveals neither a partial match nor which one matches."""
    digest = hashlib.sha256(credential).digest()
    accepted = False
    for secret in secrets:
        accepted |= hmac.compare_digest(digest, hashlib.sha256(secret).digest())
    return accepted
