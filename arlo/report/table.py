"""Tables of a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", classes: Sequence[str] = ()) -> str:
    """Columns with a head, numbers to the right. `kind`: class of the table; `classes`: of each row."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    named = iter(classes)
    body = "".join(
        f"<tr{_class(next(named, ''))}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="box"><table{_class(kind)}><tr>{top}</tr>{body}</table></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and their values, in two columns."""
    cells = "".join(f"<tr><td>{html.escape(a)}</td><td><code>{html.escape(b)}</code></td></tr>" for a, b in rows)
    return f'<div class="box facts"><table>{cells}</table></div>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
