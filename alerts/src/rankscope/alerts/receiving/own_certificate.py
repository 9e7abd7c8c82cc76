"""Whether those who send can trust the receiver's certificate today: they would find out, and nobody would be told."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

_OUT_OF_DATE: Final = {9: "not valid yet", 10: "expired"}
"""OpenSSL's codes of what is wrong with the dates of a certificate."""
_FLIGHTS: Final = 3
"""Each side says so often something until the client has verified what it was shown."""


def out_of_date(server: ssl.SSLContext, file: Path) -> str:
    """What is wrong with the dates of the certificate in ``file``, which ``server`` shows; empty: nothing.

    The standard library reads no dates of a file, so a client that trusts this certificate alone is made to verify it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(file)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for _ in range(_FLIGHTS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return _OUT_OF_DATE.get(error.verify_code, "")
            except ssl.SSLError:  # they may not agree on how to speak: nothing is known
                return ""
    return ""
