"""Qualified name of the function in a kernel's name, as profilers write it: demangled, mangled or cut off.

A demangled name has the types of all template arguments and parameters, and these say nothing of what the kernel itself does.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_ANONYMOUS: Final = "anonymous"
_CLONE: Final = re.compile(r"( \[clone [^\]]*\]|\.kd)+$")
"""Suffix of ROCm's kernels and of a compiler's clones."""
_UNNAMED_NAMESPACE: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|_GLOBAL__N_\w*")
_MANGLED: Final = re.compile(r"_ZN?K?(?=\d|L|St|12?_GLOBAL)")
_LENGTH: Final = re.compile(r"L?(\d+)")


@lru_cache(maxsize=1 << 14)
def function_of(name: str) -> str:
    """Return the qualified name of a kernel's function, without return type, template arguments and parameters.

    ``void a::(anonymous namespace)::f<int, b::C>(b::D)`` and ``_ZN1a12_GLOBAL__N_11fIiN1b1CEEEvNS1_1DE`` → ``a::anonymous::f``.
    """
    name = _CLONE.sub("", name.strip())
    start = _MANGLED.match(name)
    if start is not None and (parts := _mangled_parts(name, start.end())):
        return "::".join(parts)
    bare = _without_brackets(_UNNAMED_NAMESPACE.sub(_ANONYMOUS, name)).split()
    return bare[-1] if bare else name


def last_part(function: str) -> str:
    """Return the function's own name, without namespaces and classes."""
    return function.rpartition("::")[2]


def _mangled_parts(name: str, at: int) -> list[str]:
    """Return the identifiers of a name in the mangling of the Itanium ABI, each of which has its length in front."""
    parts: list[str] = []
    nested = name.startswith("_ZN")
    while (length := _LENGTH.match(name, at)) is not None:
        at = length.end() + int(length.group(1)[:4])
        part = name[length.end() : at]
        parts.append(_ANONYMOUS if _UNNAMED_NAMESPACE.match(part) else part)
        if not nested:
            break
    return parts


def _without_brackets(name: str) -> str:
    """Return the text outside all angle and round brackets; one that is never closed was cut off."""
    kept: list[str] = []
    angles = rounds = 0
    for letter in name:
        if letter == "(":
            rounds += 1
        elif letter == ")":
            rounds = max(0, rounds - 1)
        elif letter == "<" and not rounds:
            angles += 1
        elif letter == ">" and not rounds:
            angles = max(0, angles - 1)
        elif not angles and not rounds:
            kept.append(letter)
    return "".join(kept)
