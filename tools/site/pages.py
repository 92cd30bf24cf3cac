"""Hooks of mkdocs that turn the documents into a site: README.md is the first page, docs/index.md the navigation.

Documents outside docs/ become pages if other pages link to them. Links to other files (sources, examples) become text;
their targets must exist.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import api_page

ROOT = Path(__file__).resolve().parents[2]
# As it is in the repository -> as it is on the site, below docs/.
MOVED = {
    "README.md": "index.md",
    "docs/index.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "traces/README.md": "traces.md",
    "benchmarks/README.md": "benchmarks.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
API = "api.md"  # the page of the OpenAPI document, behind that of HTTP
SDK = "sdk.md"  # that of the client's docstrings, behind that of the client
BEHIND = {"http.md": {"HTTP API, every path": API}, "client.md": {"Client, every class": SDK}}
_ROW = re.compile(r"^\| \*\*(?P<section>[^|]+)\*\* \| (?P<pages>[^|]+) \|$", re.MULTILINE)
_SDK_PAGE = """\
# The client, every class

::: arlo.client
    options:
      members: {names}
      show_root_toc_entry: false
"""


def _place(path: str) -> str | None:
    """The place on the site of a file of the repository; None if it is not a page."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and path.endswith((".md", ".png", ".svg")) else None


def _relinked(text: str, source: str) -> str:
    """Links of `source`, a path in the repository, as they are on the site."""
    here = _place(source) or source

    def link(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return match[0]
        there = os.path.normpath(Path(source).parent / path)
        if not (ROOT / there).exists():
            raise PluginError(f"{source} links to {target}, which is not there")
        place = _place(there)
        if place is None:
            return words
        return f"{image}[{words}]({os.path.relpath(place, Path(here).parent)}{mark}{anchor})"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def _navigation() -> list[Any]:
    """The navigation from the table of docs/index.md: a section for each row."""
    found: list[Any] = [{"Arlo": "index.md"}, {"All pages": "pages.md"}]
    for row in _ROW.finditer((ROOT / "docs/index.md").read_text()):
        pages = []
        for _, words, target in _LINK.findall(row["pages"]):
            if place := _place(os.path.normpath(f"docs/{target}")):
                pages += [{words[0].upper() + words[1:]: place}, *([BEHIND[place]] if place in BEHIND else [])]
        found.append({row["section"]: pages})
    return found


def on_config(config: Any) -> Any:
    """Set the site's navigation."""
    config["nav"] = _navigation()
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages from outside docs/, and those made from the program."""
    if index := files.get_file_from_path("index.md"):
        files.remove(index)
    for source, place in MOVED.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, place, content=_relinked(text, source)))
    made = api_page.document()
    files.append(File.generated(config, API, content=api_page.page(made)))
    (names,) = re.findall(r"^__all__ = (\[[^]]*\])", (ROOT / "arlo/client/__init__.py").read_text(), re.MULTILINE)
    names = json.dumps(ast.literal_eval(names))
    files.append(File.generated(config, SDK, content=_SDK_PAGE.format(names=names)))
    files.append(File.generated(config, "openapi.json", content=json.dumps(made, indent=1)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite the links of a document."""
    if page.file.src_uri in (API, SDK, *MOVED.values()):
        return markdown
    return _relinked(markdown, f"docs/{page.file.src_uri}")
