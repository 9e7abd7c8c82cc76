"""Masking of secrets in the command of a job, which the run records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_MASK: Final = "***"
_SECRET_VARIABLE: Final = re.compile(r"KEY|TOKEN(?!I|S\b)|SECRET|PASSW|PASSPHRASE|CREDENTIAL")
"""Pattern of environment variables with secrets; ``TOKENIZERS_PARALLELISM`` and ``MAX_TOKENS`` hold none."""
_SECRET_OPTION: Final = re.compile(
    r"(?:^|[-_.+]|api|access|private)key(?:$|[-_.])|token(?:$|[-_.])|secret|passw|passphrase|credential", re.IGNORECASE
)
"""Pattern of options and settings with secrets; ``--tokenizer``, ``--max-tokens`` and ``--keys`` hold none."""
_ASSIGNMENT: Final = re.compile(r"(?<![^\s;&|\"'])([\w.+-]+)=(\"[^\"]*\"|'[^']*'|\S+)")
_OPTION_AND_VALUE: Final = re.compile(r"(?<!\S)(--?[\w.-]+)(\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)")
_IN_ADDRESS: Final = re.compile(r"(://)[^/\s@]+@")


def masked(command: Sequence[str]) -> list[str]:
    """Return ``command`` with ``***`` for the values of secrets (``--api-key=…``, ``--hf-token …``, ``HF_TOKEN=…``).

    Values inside a shell's own command line are masked too, and so are names and passwords in URLs (``https://…@``).
    """
    shown = list[str]()
    follows = False
    for word in command:
        if follows and not word.startswith("-"):
            shown.append(_MASK)
            follows = False
            continue
        follows = word.startswith("-") and _is_secret(word)
        name, assigned, _ = word.partition("=")
        if assigned and _is_secret(name):
            shown.append(f"{name}={_MASK}")
        else:
            shown.append(_masked_within(word))
    return shown


def _masked_within(word: str) -> str:
    word = _IN_ADDRESS.sub(rf"\1{_MASK}@", word)
    if not any(letter.isspace() for letter in word):
        return word
    word = _ASSIGNMENT.sub(lambda match: f"{match[1]}={_MASK}" if _is_secret(match[1]) else match[0], word)
    return _OPTION_AND_VALUE.sub(lambda match: f"{match[1]}{match[2]}{_MASK}" if _is_secret(match[1]) else match[0], word)


def _is_secret(name: str) -> bool:
    if any(letter.isspace() for letter in name) or "=" in name:
        return False
    return (_SECRET_VARIABLE if name.isupper() else _SECRET_OPTION).search(name) is not None
