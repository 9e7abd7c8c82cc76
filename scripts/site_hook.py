"""Hook of MkDocs: adds the pages that lie in the repository's root, and turns links to files of the source into their names.

The site stands alone, also on a machine without internet: it links to no file that is not a page of it.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rankscope.cli.verbs.schema import SCHEMAS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}

SCHEMA = re.compile(r"`rankscope schema ([a-z-]+)`")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the root's pages and the JSON Schemas to the files of the site."""
    from mkdocs.structure.files import File

    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, kind in SCHEMAS.items():
        schema = msgspec.json.format(msgspec.json.encode(msgspec.json.schema(kind)), indent=2).decode()
        files.append(File.generated(config, f"schemas/{name}.json", content=schema))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Return a page's text with links that lead out of docs/ turned into pages of the site, or into the file's name."""
    folder = ROOT if page.file.src_uri in ROOT_PAGES.values() else ROOT / "docs"

    def replace(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (folder / target).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            return match[0]  # broken: MkDocs reports it
        name = path.relative_to(ROOT).as_posix()
        if name in ROOT_PAGES:
            return f"[{text}]({ROOT_PAGES[name]}{anchor})"
        if name.startswith("docs/"):
            return f"[{text}]({name.removeprefix('docs/')}{anchor})"
        if name == "README.md":
            return f"[{text}](index.md{anchor})"
        return f"`{name}`" if name in text else f"{text} (`{name}`)"

    if page.file.src_uri.startswith("json-"):
        markdown = SCHEMA.sub(r"[`rankscope schema \1`](schemas/\1.json)", markdown)
    return LINK.sub(replace, markdown)
