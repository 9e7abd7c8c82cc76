"""Print docs/measured.md: the budgets in the newest result file of each benchmark, and its table where it has one.

usage: python scripts/measured.py >docs/measured.md
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
NAME = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)-(?P<benchmark>.+)\.json")

HEAD = """\
# Accuracy and overhead, measured

This page lists the limits that the project sets itself and the newest measurement of each, also where a limit was missed.
`make docs` writes it from the files in `benchmarks/results`, which also hold the figures behind the limits, the machine and the
versions. `make bench` measures again, with public tools only. The machines were small and shared: ratios count more than times.

What is seen of each layout of parallelism: [NCCL jobs: what each source shows](durations.md#nccl-jobs-what-each-source-shows).
"""


def main() -> None:
    """Print the page."""
    print(HEAD)
    for benchmark, path in sorted(newest_results().items()):
        script = script_of(benchmark)
        if script is None:
            continue
        print(f"## {benchmark}\n\n{summary(script)}\n\nFrom `{path.name}`, by `{script.relative_to(BENCHMARKS.parent)}`.\n")
        print("| what | measured | limit | met |\n|---|---|---|---|")
        result = json.loads(path.read_text())
        for budget in result["budgets"]:
            name = str(budget["name"]).replace("|", "\\|").replace("_", " ")
            print(f"| {name} | {number(budget['value'])} | {number(budget['limit'])} | {'yes' if budget['ok'] else '**no**'} |")
        print()
        if (table := result.get("table")) is not None:
            print(table_text(table) + "\n")


def newest_results() -> dict[str, Path]:
    """Return the newest result file with budgets of each benchmark, by the benchmark's name."""
    files: dict[str, Path] = {}
    for path in sorted((BENCHMARKS / "results").glob("*.json")):
        match = NAME.fullmatch(path.name)
        if match and json.loads(path.read_text()).get("budgets"):
            files[match["benchmark"]] = path
    return files


def script_of(benchmark: str) -> Path | None:
    """Return the script that writes a benchmark's results, whose name they begin with; None if it was removed."""
    words = benchmark.replace("-", "_").split("_")
    names = ("_".join(words[:length]) for length in range(len(words), 0, -1))
    return next((script for name in names for script in BENCHMARKS.glob(f"*/{name}.py")), None)


def summary(script: Path) -> str:
    """Return the first paragraph of a script's docstring."""
    paragraph = (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n\n")[0].replace("\n", " ")
    return re.sub(r" ?Prints (one JSON object|JSON)\.", "", paragraph)


def table_text(table: dict[str, Any]) -> str:
    """Return the table of a result as Markdown: ``text`` before it, ``columns``, and ``rows`` of text and numbers."""
    lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    rows = ("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n".join([table["text"], "", *rows])


def number(value: float | None) -> str:
    """Return a measured value or a limit with at most four significant digits, integers in full."""
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
