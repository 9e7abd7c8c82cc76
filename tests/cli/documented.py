"""Commands in the documentation: lines of fenced blocks, and inline code, that begin with a program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INLINE: Final = re.compile(r"`(rankscope [^`\n]+)`")
_SHELLS: Final = {"sh", "bash", "console"}
_TEXTS: Final = {"", "text"}
_ENDS: Final = re.compile(r"[|&;<>()]+")
_LEADING: Final = ("srun", "exec")
"""Programs that start the command behind them."""
_FILE: Final = "<file>"
"""In place of a program: a redirection's file follows."""


class Documented(NamedTuple):
    """A command as a page shows it. ``complete``: all of it is shown; inline code often names a part."""

    page: str
    words: list[str]
    complete: bool

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def commands(program: str | None = None) -> Iterator[Documented]:
    """Yield the commands of all pages, or those of one program, each once per page."""
    for page in PAGES:
        seen: set[tuple[str, ...]] = set()
        for words, complete in _of_page(page.read_text()):
            if program in (None, words[0]) and tuple(words) not in seen:
                seen.add(tuple(words))
                yield Documented(page.relative_to(ROOT).as_posix(), words, complete)


def _of_page(text: str) -> Iterator[tuple[list[str], bool]]:
    for language, block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            shown = line.strip().removeprefix("$ ")
            if language in _SHELLS:
                yield from ((words, True) for words in _split(shown))
            elif language in _TEXTS and re.match(r"(rankscope|docker|helm|kubectl|sbatch) [a-z]", shown):
                command, *_explanation = re.split(r"  +", shown)
                yield from ((words, False) for words in _split(command))
    for code in _INLINE.findall(_BLOCK.sub("", text)):
        yield from ((words, False) for words in _split(code))


def _split(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line of a shell, without assignments, redirections and launchers."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # an apostrophe in prose
        return
    words: list[str] = []
    for token in [*tokens, ";"]:
        if not _ENDS.fullmatch(token):
            words.append(token)
            continue
        while words and (words[0] in _LEADING or re.match(r"[A-Z_]+=", words[0])):
            words = words[1:]
        if words and words[0] != _FILE:
            yield words
        words = [_FILE] if ">" in token or "<" in token else []
