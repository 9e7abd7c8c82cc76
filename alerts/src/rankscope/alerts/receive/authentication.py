"""Who sends: a bearer token, a user and password, or a signature over the body. Several of each, so that they can be changed."""

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
"""A signature that names a time further away than this is an old one sent again."""
GRAFANA_SIGNATURE: Final = b"x-grafana-alerting-signature"
MAX_FAILURES: Final = 20
"""Failed attempts of an address within ``FAILURES_S``; then it is heard again only when that time is over."""
FAILURES_S: Final = 60.0
UNGUESSABLE: Final = 24
"""Bytes of a secret that nobody finds by trying, as those of Standard Webhooks have at least. Whoever knows one is heard all the
same: behind a proxy everybody has the same address.
"""
MAX_ADDRESSES: Final = 1_024

Headers = Mapping[bytes, bytes]
"""Names in lower case; one that came twice is not in it."""


class Known:
    """A secret as it is now, or as it was when it could last be read: while it is replaced, nobody is turned away.

    Raises ``SecretUnavailableError`` where there is none at the start; later ``report`` gets a line, once.
    """

    def __init__(self, secret: Secret, *, report: Callable[[str], object]) -> None:
        self._secret = secret
        self._report = report
        self._value = secret.read()
        self._troubled = False

    def __repr__(self) -> str:
        return f"Known({self._secret.where})"

    @property
    def where(self) -> str:
        """Its place, fit for a message."""
        return self._secret.where

    @property
    def value(self) -> bytes:
        """What it is."""
        try:
            self._value = self._secret.read()
            self._troubled = False
        except SecretUnavailableError as error:
            if not self._troubled:
                self._troubled = True
                self._report(f"{error}; the secret that was read before stays in use")
        return self._value.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What is accepted; nothing at all means that nobody is asked."""

    bearer: Sequence[Known] = ()
    basic: Sequence[tuple[str, Known]] = ()
    """User, and password."""
    signed: Sequence[Known] = ()
    """Standard Webhooks: ``whsec_…``."""
    grafana: Sequence[Known] = ()
    grafana_timestamp_header: str | None = None
    """As set in Grafana; then its signature covers ``TIME:BODY``."""

    @property
    def any(self) -> bool:
        """Whether somebody is asked at all."""
        return bool(self.bearer or self.basic or self.signed or self.grafana)

    @property
    def guessable(self) -> list[str]:
        """Places of secrets that are so short that whoever knows one is not heard while somebody guesses from his address."""
        known = (*self.bearer, *(password for _, password in self.basic), *self.grafana)
        return list(dict.fromkeys(secret.where for secret in known if len(secret.value) < UNGUESSABLE))

    def by_header(self, headers: Headers, *, shortest: int = 0) -> bool:
        """Whether the headers alone say who it is, by a token or password of at least ``shortest`` bytes."""
        header = headers.get(b"authorization", b"")
        if (token := bearer_token(header)) is not None:
            return _one_of(token, [known for secret in self.bearer if len(known := secret.value) >= shortest])
        if (pair := basic_credentials(header)) is not None:
            passwords = [(user, password) for user, known in self.basic if len(password := known.value) >= shortest]
            return _one_of(b":".join(pair), [user.encode() + b":" + password for user, password in passwords])
        return False

    def by_signature(self, headers: Headers, body: bytes, *, now_s: float, shortest: int = 0) -> bool:
        """Whether the body is signed by somebody we know, with a secret of at least ``shortest`` bytes, and lately."""
        return self._grafana(headers, body, now_s, shortest) or self._standard(headers, body, now_s)

    def _standard(self, headers: Headers, body: bytes, now_s: float) -> bool:
        keys = []
        for secret in self.signed:
            with suppress(SecretError):  # one that is being replaced does not spoil the others
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
    """Whether it is one of these, in a time that does not tell how much of it is right, nor which it is."""
    digest = hashlib.sha256(given).digest()
    found = False
    for one in known:
        found |= hmac.compare_digest(digest, hashlib.sha256(one).digest())
    return found


@dataclass(slots=True)
class Failures:
    """Counts failed attempts by address, so that nobody guesses for long; one a minute is told."""

    report: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    _told: float = -math.inf
    _counted: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)

    def shut_out_s(self, address: str) -> float:
        """Seconds until the address is heard again; 0: now."""
        began, count = self._counted.get(address, (0.0, 0))
        return max(0.0, began + FAILURES_S - self.clock()) if count >= MAX_FAILURES else 0.0

    def failed(self, address: str) -> None:
        """Another one."""
        now = self.clock()
        began, count = self._counted.pop(address, (now, 0))
        if now - began > FAILURES_S:
            began, count = now, 0
        if count + 1 == MAX_FAILURES:
            self.report(f"{address}: {MAX_FAILURES} failed attempts within a minute; it gets 503 for the rest of that")
        elif count == 0 and now - self._told >= FAILURES_S:
            self._told = now
            self.report(f"refused a request from {address or 'an unknown address'}: not authenticated; others are only counted")
        self._counted[address] = (began, count + 1)
        while len(self._counted) > MAX_ADDRESSES:
            self._counted.popitem(last=False)
