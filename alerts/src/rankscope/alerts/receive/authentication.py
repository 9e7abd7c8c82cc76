"""Authentication of senders: bearer token, user and password, or a signature over the body; several of each, for rotation."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from rankscope.alerts.deliver.signing import Secret, SecretError, SecretUnavailableError, SignatureError, parse_secret, verify
from rankscope.base.http import basic_credentials, bearer_token

TOLERANCE_S: Final = 300.0
"""A signature whose timestamp differs more than this from our clock counts as a replay."""
GRAFANA_SIGNATURE: Final = b"x-grafana-alerting-signature"
MAX_FAILURES: Final = 20
"""Failed attempts of an address within ``FAILURES_S`` after which it is shut out until that time is over."""
FAILURES_S: Final = 60.0
UNGUESSABLE: Final = 24
"""Minimum bytes of a secret that cannot be guessed; Standard Webhooks secrets have at least these. Requests with such a secret
are accepted even from an address that is shut out: behind a proxy all clients share one address.
"""
MAX_ADDRESSES: Final = 1_024

Headers = Mapping[bytes, bytes]
"""Headers by lower-case name; a repeated header is left out."""


class RotatedSecret:
    """Current value of a secret, or its last readable value, so that a rotation locks no sender out.

    Raises ``SecretUnavailableError`` if the secret cannot be read at the start. Later ``report`` takes one line.
    """

    def __init__(self, secret: Secret, *, report: Callable[[str], object]) -> None:
        self._secret = secret
        self._report = report
        self._value = secret.read()
        self._pause_after = False

    def __repr__(self) -> str:
        return f"RotatedSecret({self._secret.where})"

    @property
    def where(self) -> str:
        """Place of the secret, without its content."""
        return self._secret.where

    @property
    def value(self) -> bytes:
        """Value of the secret."""
        try:
            self._value = self._secret.read()
            self._pause_after = False
        except SecretUnavailableError as error:
            if not self._pause_after:
                self._pause_after = True
                self._report(f"{error}; the last value stays in use")
        return self._value.encode()


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
    def any(self) -> bool:
        """True if requests need authentication."""
        return bool(self.bearer or self.basic or self.signed or self.grafana)

    @property
    def guessable(self) -> list[str]:
        """Places of secrets shorter than ``UNGUESSABLE``, which are not accepted from an address that is shut out."""
        known = (*self.bearer, *(password for _, password in self.basic), *self.grafana)
        return list(dict.fromkeys(secret.where for secret in known if len(secret.value) < UNGUESSABLE))

    def by_header(self, headers: Headers, *, shortest: int = 0) -> bool:
        """Check the headers for an accepted token or password of at least ``shortest`` bytes."""
        header = headers.get(b"authorization", b"")
        if (token := bearer_token(header)) is not None:
            return _one_of(token, [known for secret in self.bearer if len(known := secret.value) >= shortest])
        if (pair := basic_credentials(header)) is not None:
            passwords = [(user, password) for user, known in self.basic if len(password := known.value) >= shortest]
            return _one_of(b":".join(pair), [user.encode() + b":" + password for user, password in passwords])
        return False

    def by_signature(self, headers: Headers, body: bytes, *, now_s: float, shortest: int = 0) -> bool:
        """Check for a recent signature of the body with an accepted secret of at least ``shortest`` bytes."""
        return self._grafana(headers, body, now_s, shortest) or self._standard(headers, body, now_s)

    def _standard(self, headers: Headers, body: bytes, now_s: float) -> bool:
        keys = []
        for secret in self.signed:
            with suppress(SecretError):  # a secret in rotation must not disable the others
                keys.append(parse_secret(secret.value.decode()))
        words = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        try:
            verify(keys, words, body, now_s=now_s)
        except SignatureError:
            return False
        return True

    def _grafana(self, headers: Headers, body: bytes, now_s: float, shortest: int) -> bool:
        given = headers.get(GRAFANA_SIGNATURE)
        if given is None or not self.grafana:
            return False
        signed = body
        if self.grafana_timestamp_header is not None:
            at = headers.get(self.grafana_timestamp_header.lower().encode(), b"")
            if not at.isdigit() or len(at) > 12 or abs(int(at) - now_s) > TOLERANCE_S:
                return False
            signed = at + b":" + body
        return _one_of(
            given.strip().lower(),
            [
                hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()
                for known in self.grafana
                if len(secret := known.value) >= shortest
            ],
        )


def _one_of(given: bytes, known: Sequence[bytes]) -> bool:
    """Compare ``given`` with all of ``known``. The duration reveals neither a partial match nor which one matches."""
    digest = hashlib.sha256(given).digest()
    found = False
    for one in known:
        found |= hmac.compare_digest(digest, hashlib.sha256(one).digest())
    return found


@dataclass(slots=True)
class Failures:
    """Counter of failed attempts by address, against guessing. Reports each shut-out, and other failures once a minute."""

    report: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    _reported_s: float = -math.inf
    _counted: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)

    def blocked_s(self, address: str) -> float:
        """Return the seconds until the address is accepted again; 0 if it is not shut out."""
        began, count = self._counted.get(address, (0.0, 0))
        return max(0.0, began + FAILURES_S - self.clock()) if count >= MAX_FAILURES else 0.0

    def failed(self, address: str) -> None:
        """Count a failed attempt."""
        now = self.clock()
        began, count = self._counted.pop(address, (now, 0))
        if now - began > FAILURES_S:
            began, count = now, 0
        if count + 1 == MAX_FAILURES:
            self.report(f"{address}: {MAX_FAILURES} failed attempts within a minute; answered with 503 for the rest of it")
        elif count == 0 and now - self._reported_s >= FAILURES_S:
            self._reported_s = now
            self.report(f"refused a request from {address or 'an unknown address'}: not authenticated; more are only counted")
        self._counted[address] = (began, count + 1)
        while len(self._counted) > MAX_ADDRESSES:
            self._counted.popitem(last=False)
