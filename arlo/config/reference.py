"""docs/configuration.md, written from the declarations in model.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from arlo.config.field import Doc, describe, hints
from arlo.config.load import toml_key
from arlo.config.model import SECTIONS

HEAD = """# Configuration

<!-- Written by `make docs` from arlo/config/model.py; a test fails when the two differ. -->

`arlo serve CONFIG.toml` reads one TOML file. `arlo config check FILE` checks it, `arlo config show FILE` prints every
key with its value, defaults included. Relative paths are relative to the file. An unknown key is an error that names
the nearest one. The smallest file:

```toml
[model]
repository = "minilm"   # what `arlo compile` wrote
slo_ms = 150

[deployment]
allocation = {64 = 2, 128 = 1, 512 = 1}
```
"""


def reference() -> str:
    """The whole page, Markdown."""
    return "\n".join([HEAD, *(tables(f"[{name}]", cls) for name, cls in SECTIONS.items())]).rstrip() + "\n"


def tables(heading: str, cls: type[Any]) -> str:
    """One section: its heading, its description, a table of its keys."""
    parts = [
        f"## {heading}\n\n{(cls.__doc__ or '').strip()}\n",
        "| key | type | default | meaning |\n|---|---|---|---|",
    ]
    parts.extend(_row(cls, field) for field in dataclasses.fields(cls))
    return "\n".join(parts) + "\n"


def _row(cls: type[Any], field: dataclasses.Field[Any]) -> str:
    doc: Doc = field.metadata["doc"]
    kind = describe(hints(cls)[field.name])
    if doc.unit:
        kind += f", {doc.unit}"
    text = doc.text
    if doc.left_out:
        text += f" Left out: {doc.left_out}."
    if doc.range:
        text += f" Range: {doc.range}."
    if doc.relation:
        text += f" Relation: {doc.relation}."
    cells = (f"`{toml_key(field.name)}`", kind, _default(field), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "`{}`"
    if field.default is dataclasses.MISSING:
        return "**required**"
    value = field.default
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[]`"
    if isinstance(value, (str, Path)):
        return f'`"{value}"`'
    return f"`{value}`"
