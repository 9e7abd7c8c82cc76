"""Cost of alerting: 10,000 alerts through the outbox, and watching 1,024 ranks. Prints one JSON object.

Each part is a script of its own, which documents its measurement and its peer: `alerts_sender_job.py` and
`alerts_watcher_job.py`.

    python benchmarks/alerts.py [--alerts 10000] [--ranks 1024] [--seconds 330]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any


def measured(script: str, *options: str) -> dict[str, Any]:
    """Return the result of a script, even if it exceeds its budgets."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit(f"{script} failed with status {done.returncode}")
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alerts", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=330.0, help="how long the run is watched")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    parts = {
        "sender": measured("alerts_sender_job.py", "--alerts", str(args.alerts)),
        "watcher": measured("alerts_watcher_job.py", "--ranks", str(args.ranks), "--seconds", str(args.seconds)),
    }
    budgets = [row | {"name": f"{part}: {row['name']}"} for part, result in parts.items() for row in result["budgets"]]
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load_before, 2),
    }
    figures = {part: result["figures"] for part, result in parts.items()}
    print(json.dumps({"figures": figures, "budgets": budgets, "environment": environment}, indent=1))
    if not all(row["ok"] for row in budgets):
        sys.exit(1)


if __name__ == "__main__":
    main()
