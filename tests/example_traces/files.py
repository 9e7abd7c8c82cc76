"""Files of the example traces in ``tests/data/traces``, and their expected values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.example_traces import damage, directed, jobs, mixed, variants
from tests.example_traces.variants import packed
from tests.trace_truth.values import values_of_file, values_of_job

FOLDER: Final = Path(__file__).resolve().parents[1] / "data" / "traces"
EXPECTED: Final = FOLDER / "expected.json"
RECORDED: Final = "recorded"
"""Folder with the traces of a real job: recording it again gives other times."""


def _jobs() -> Iterator[tuple[str, bytes]]:
    named = {name: jobs.job(name) for name in jobs.JOBS} | {"directed": directed.documents()}
    for name, documents in named.items():
        for number, document in enumerate(documents):
            yield f"{name}/rank-{number}.json.gz", packed(document)


def _variants() -> Iterator[tuple[str, bytes]]:
    for name in variants.VARIANTS:
        for number, document in enumerate(variants.variant(name)):
            yield f"{name}/rank-{number}.json.gz", packed(document)
    for name in variants.FILES:
        for file, data in variants.files(name).items():
            yield f"{name}/{file}", data


def _mixed() -> Iterator[tuple[str, bytes]]:
    for seed in mixed.SEEDS:
        yield f"{seed:02d}/rank-0.json.gz", packed(mixed.trace(seed))


def _damaged() -> Iterator[tuple[str, bytes]]:
    for name, make in damage.FILES.items():
        yield f"{name}/rank-0.json.gz", make()
    for name, files in damage.jobs().items():
        for file, data in files.items():
            yield f"{name}/{file}", data


_SIMULATED: Final = {"jobs": _jobs, "variants": _variants, "mixed": _mixed, "damaged": _damaged}
KINDS: Final = tuple(_SIMULATED)


def simulated(kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield path below ``FOLDER`` and content of all simulated files of a kind; the same each time."""
    for path, data in _SIMULATED[kind]():
        yield f"{kind}/{path}", data


def folders() -> list[str]:
    """Return the folders with traces: each holds one job."""
    named = {path.relative_to(FOLDER).parts[: 2 if RECORDED not in path.parts else 1] for path in _traces(FOLDER)}
    return sorted("/".join(parts) for parts in named)


def values(folder: str) -> dict[str, Any]:
    """Return the values of a folder by the independent program: of the job, and of every trace that differs from others."""
    traces = _traces(FOLDER / folder)
    # The ranks of a job are alike: the first and the last one show it.
    chosen = traces if len(traces) < 3 else [traces[0], traces[-1]]
    of_files = {str(path.relative_to(FOLDER / folder)): values_of_file(path) for path in chosen}
    return {"job": values_of_job(FOLDER / folder) if len(traces) > 1 else None, "traces": of_files}


def expected() -> dict[str, Any]:
    """Return the stored values by folder."""
    stored: dict[str, Any] = json.loads(EXPECTED.read_text())
    return stored


def write_expected() -> None:
    """Work out the values of all folders, and store them, a line for each trace."""
    lines = []
    for folder in folders():
        expected = values(folder)
        traces = ",\n".join(f"   {json.dumps(name)}: {json.dumps(document)}" for name, document in expected["traces"].items())
        lines.append(f' {json.dumps(folder)}: {{\n  "job": {json.dumps(expected["job"])},\n  "traces": {{\n{traces}\n  }}\n }}')
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _traces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name.startswith("rank-"))
