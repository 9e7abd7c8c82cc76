"""Write the example traces of the tests again, and their expected values.

usage: python scripts/example_traces.py [--record]

Simulated traces and `expected.json` are the same each time. `--record` also records the real job over gloo again, which takes
half a minute and gives other times.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.example_traces import files, gloo


def main() -> None:
    """Write all files below tests/data/traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the real job over gloo again, too")
    record = parser.parse_args().record
    recorded = files.FOLDER / files.RECORDED
    if record or not recorded.exists():
        with tempfile.TemporaryDirectory() as folder:
            traces = gloo.record(Path(folder) / "run")
        shutil.rmtree(recorded, ignore_errors=True)
        for name, data in traces.items():
            _write(recorded / name, data)
    for kind in files.KINDS:
        shutil.rmtree(files.FOLDER / kind, ignore_errors=True)
        for name, data in files.simulated(kind):
            _write(files.FOLDER / name, data)
    files.write_expected()
    total = sum(path.stat().st_size for path in files.FOLDER.rglob("*") if path.is_file())
    print(f"{files.FOLDER}: {total / 1e6:.1f} MB")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    main()
