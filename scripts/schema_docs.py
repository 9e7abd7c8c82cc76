"""Write docs/json-analysis.md, json-results.md and json-records.md: the fields of all JSON that has a schema. A test compares.

usage: python scripts/schema_docs.py [FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from rankscope.cli.verbs.schema import SCHEMAS

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
RESULTS: Final = {
    "analysis": "rankscope analyze --format json",
    "hang": "rankscope hang --format json",
    "compare": "rankscope compare --format json",
    "whatif": "rankscope whatif --format json",
    "export": "rankscope export --format json",
    "capture": "rankscope capture --format json",
    "dump": "rankscope capture --flight-recorder --format json",
    "replay": "rankscope alerts replay --format json",
    "explain": "rankscope alerts explain --format json",
    "outbox-list": "rankscope alerts outbox list --format json",
    "test-webhook": "rankscope alerts test-webhook --format json",
}
"""Schemas of results, and the command that prints each; all other schemas are of records and requests."""
GENERATED_NOTE: Final = "Made by `make docs` from the code; do not edit.\n"
RULES: Final = """
`null` means unknown, never 0. Times are microseconds (`_us`) or nanoseconds since 1970 (`_unix_ns`), sizes bytes.
Fields are added, never renamed ([compatibility.md](compatibility.md)): ignore those that you do not know.
"""
PAGES: Final = {
    "json-analysis.md": f"""# JSON of an analysis

{GENERATED_NOTE}
The fields of what `rankscope analyze --format json` prints.
{RULES}""",
    "json-results.md": f"""# JSON of other results

{GENERATED_NOTE}
The fields of what other commands print with `--format json`; those of `analyze` are in [json-analysis.md](json-analysis.md).
{RULES}""",
    "json-records.md": f"""# JSON of records

{GENERATED_NOTE}
The fields of the records in a run directory, of requests to a running job, and of the answers to them.
[run-directory.md](run-directory.md) describes the files. A field that is absent has its default: empty, false, 0 or `null`.
{RULES}""",
}


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS)
    folder = parser.parse_args().folder
    targets: dict[type, str] = {}
    for page, head in PAGES.items():
        (folder / page).write_text(head + "".join(_sections(page, targets)))


def _page(name: str) -> str:
    return "json-analysis.md" if name == "analysis" else "json-results.md" if name in RESULTS else "json-records.md"


def _sections(page: str, targets: dict[type, str]) -> Iterator[str]:
    """Yield the sections of a page; ``targets``: page and anchor of the structs described so far, which are described once."""
    for name in SCHEMAS:
        if _page(name) != page:
            continue
        kind = SCHEMAS[name]
        structs = dict(_structs(kind))
        schema = msgspec.json.schema(kind)["$defs"]
        new = [title for title, struct in structs.items() if struct is kind or struct not in targets]
        targets |= {structs[title]: f"{page}#{name}" + ("" if structs[title] is kind else f"-{title.lower()}") for title in new}
        links = {title: targets[struct].removeprefix(page) for title, struct in structs.items()}
        for title in new:
            struct = structs[title]
            yield f"\n## {name}\n\n{_origin(name)}\n" if struct is kind else f"\n### {name}: {title}\n"
            yield f"\n{_text(inspect.getdoc(struct) or '')}\n\n| field | type | meaning |\n|---|---|---|\n"
            meanings = _meanings(struct)
            for field, field_schema in schema[title]["properties"].items():
                meaning = _text(meanings.get(field, "")).replace("|", chr(92) + "|")
                yield f"| `{field}` | {_type(field_schema, links)} | {meaning} |\n"


def _origin(name: str) -> str:
    schema = f"JSON Schema: `rankscope schema {name}`."
    return f"Printed by `{RESULTS[name]}`. {schema}" if name in RESULTS else schema


def _structs(kind: Any) -> Iterator[tuple[str, type]]:
    """Yield a struct and all that its fields refer to, by name, outer ones first."""
    visited: set[type] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, msgspec.inspect.StructType):
            if node.cls in visited:
                continue
            visited.add(node.cls)
            yield node.cls.__name__, node.cls
            waiting[:0] = [field.type for field in node.fields]
        else:
            parts = [getattr(node, name, ()) for name in ("types", "item_types", "item_type", "value_type", "type")]
            waiting[:0] = [
                part
                for part_or_parts in parts
                for part in (part_or_parts if isinstance(part_or_parts, tuple) else (part_or_parts,))
            ]


def _meanings(struct: type) -> dict[str, str]:
    """Return the text below each field of a struct and of its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(
        [ancestor for ancestor in struct.__mro__ if issubclass(ancestor, msgspec.Struct) and ancestor is not msgspec.Struct]
    ):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        names = dict(zip(base.__struct_fields__, base.__struct_encode_fields__, strict=True))
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                meanings[names[field.target.id]] = inspect.cleandoc(ast.literal_eval(text.value))
    return meanings


def _text(docstring: str) -> str:
    """Return a docstring as one line of Markdown per paragraph."""
    plain = re.sub(r"``([^`]*)``", r"`\1`", docstring).replace("`None`", "`null`")
    return " ".join(plain.split())


def _type(schema: dict[str, Any], links: dict[str, str]) -> str:
    """Return the type of a value in words, with a link where it is an object of named fields."""
    match schema:
        case {"$ref": reference}:
            title = reference.rpartition("/")[2]
            text = f"[{title}]({links[title]})"
        case {"anyOf": kinds}:
            text = " or ".join(_type(part, links) for part in kinds)
        case {"enum": values}:
            text = ", ".join(f"`{value}`" for value in values)
        case {"prefixItems": items}:
            text = f"array of {' and '.join(_type(part, links) for part in items)}"
        case {"type": "array", "items": dict(item)}:
            text = f"array of {_type(item, links)}"
        case {"type": "object", "additionalProperties": dict(item)}:
            text = f"object of {_type(item, links)}"
        case _:
            text = str(schema.get("type", "any"))
    return text


if __name__ == "__main__":
    main()
