"""Signatures of webhooks by Standard Webhooks, which prove sender, integrity and time. Needs no extra.

Three headers: ``webhook-id``, the same for every attempt to deliver a message; ``webhook-timestamp``, the second of the attempt;
``webhook-signature``, ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``, one for each secret, separated by spaces.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
TOLERANCE_S: Final = 300
"""Maximum difference between a timestamp and our clock: an older signature counts as a replay."""
_PREFIX: Final = "whsec_"
_SHORTEST: Final = 24
_LONGEST: Final = 64
_MOST_SIGNATURES: Final = 16
_SIGNATURE_LENGTH: Final = 44
"""Characters of an HMAC-SHA256 in base64."""


class SecretError(ValueError):
    """A text is not a signing secret; the message does not contain it."""


class SignatureError(Exception):
    """A signature by a trusted key is missing, or its timestamp is off; the message may be sent to the client."""


def parse_secret(text: str) -> bytes:
    """Decode the key in ``whsec_…``. Raises ``SecretError``."""
    encoded = text.strip().removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"expected {_PREFIX} and base64") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise SecretError(f"expected a secret of {_SHORTEST} to {_LONGEST} bytes, found {len(key)}")
    return key


def sign(keys: Sequence[bytes], *, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the three headers for ``body``, signed with each of ``keys`` (at least one)."""
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp_s),
        SIGNATURE_HEADER: " ".join(f"v1,{_signature(key, message_id, str(timestamp_s), body)}" for key in keys),
    }


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """Verify that a message was signed with one of the keys within five minutes of ``now_s``, and return its id.

    ``headers`` have lower-case names. Signatures are compared in constant time. Raises ``SignatureError``.
    """
    signatures = signatures_in(headers, now_s=now_s)
    message_id, timestamp = headers[ID_HEADER], headers[TIMESTAMP_HEADER]
    expected = [_signature(key, message_id, timestamp, body).encode() for key in keys]
    matches = [hmac.compare_digest(signature, other) for signature in signatures for other in expected]
    if not any(matches):
        raise SignatureError("no signature matches")
    return message_id


def signatures_in(headers: Mapping[str, str], *, now_s: float) -> list[bytes]:
    """Return the signatures in ``headers``, at least one. Raises ``SignatureError``, also for an old timestamp."""
    timestamp = headers.get(TIMESTAMP_HEADER, "")
    if not headers.get(ID_HEADER) or not timestamp or SIGNATURE_HEADER not in headers:
        raise SignatureError(f"{ID_HEADER}, {TIMESTAMP_HEADER} and {SIGNATURE_HEADER} are required")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise SignatureError(f"{TIMESTAMP_HEADER} is not a number of seconds")
    if abs(int(timestamp) - now_s) > TOLERANCE_S:
        raise SignatureError(f"{TIMESTAMP_HEADER} is more than {TOLERANCE_S} s from our clock")
    words = [word.removeprefix("v1,") for word in headers[SIGNATURE_HEADER].split() if word.startswith("v1,")]
    signatures = [word.encode(errors="replace") for word in words[:_MOST_SIGNATURES] if len(word) == _SIGNATURE_LENGTH]
    if not signatures:
        raise SignatureError(f"{SIGNATURE_HEADER} has no signature of version 1")
    return signatures


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode(errors="replace") + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
