"""Other differences between the two sides, such as versions and hosts: one of them may be the cause of a change."""

from __future__ import annotations

from typing import Final

from rankscope.analysis.compare.recording import Recording
from rankscope.analysis.compare.usable import Usable

_CLEARLY: Final = 0.01
_LONGEST: Final = 200
"""Maximum length of a phrase in characters: a list of a thousand hosts is cut."""


def differs(a: Usable, b: Usable) -> list[str]:
    """Return one phrase per difference: ``what: of A -> of B``."""
    old, new = a.recording, b.recording
    facts: list[tuple[str, str | None, str | None]] = [(what, _facts(old)[what], _facts(new)[what]) for what in _facts(old)]
    versions = (old.about.versions if old.about else {}, new.about.versions if new.about else {})
    facts += [(name, versions[0].get(name), versions[1].get(name)) for name in sorted({*versions[0], *versions[1]})]
    found = [f"{what}: {before} -> {after}" for what, before, after in facts if before and after and before != after]
    per_step = [side.work["input_elements"] for side in (a, b)]
    if per_step[0] is not None and per_step[1] is not None and abs(per_step[1] / per_step[0] - 1) > _CLEARLY:
        found.append(f"input elements per step: {per_step[0]:,.0f} -> {per_step[1]:,.0f}")
    return [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in found]


def _facts(recording: Recording) -> dict[str, str]:
    """Return the facts of a recording by name; an unknown fact is empty."""
    about = recording.about
    return {
        "world size": str(recording.world_size),
        "backend": (about.backend or "") if about else "",
        "layout": ", ".join(f"{name}={size}" for name, size in about.layout.items()) if about else "",
        "devices": ", ".join(sorted({info.gpu_name or info.device_kind for info in recording.infos.values()})),
        "hosts": ", ".join(sorted({info.host for info in recording.infos.values()})),
    }
