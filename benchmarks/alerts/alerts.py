"""Cost of alerting: 10,000 alerts through the outbox, and watching 1,024 ranks. Prints one JSON object.

Each part is a script of its own, which documents its measurement and its peer: `sender_job.py` and `watcher_job.py`.

    python -m benchmarks.alerts.alerts [--alerts 10000] [--ranks 1024] [--seconds 330]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.common.result import environment, finish


def measured(part: str, *options: str) -> dict[str, Any]:
    """Return the result of a part, even if it exceeds its budgets."""
    command = [sys.executable, "-m", f"benchmarks.alerts.{part}_job", *options]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not completed.stdout:
        sys.exit(f"{part}_job failed with status {completed.returncode}")
    return dict(json.loads(completed.stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alerts", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=330.0, help="how long the run is watched")
    args = parser.parse_args()
    parts = {
        "sender": measured("sender", "--alerts", str(args.alerts)),
        "watcher": measured("watcher", "--ranks", str(args.ranks), "--seconds", str(args.seconds)),
    }
    budgets = [row | {"name": f"{part}: {row['name']}"} for part, result in parts.items() for row in result["budgets"]]
    finish({part: result["figures"] for part, result in parts.items()}, budgets, environment("rankscope"))


if __name__ == "__main__":
    main()
