"""A page: one HTML file that loads nothing from anywhere.

    text = render("Replay", [cards([("42", "requests")]), plots([figure]), "<h2>Summary</h2>", facts(rows)])
    write(path, text)

Parts are strings of HTML. Functions that build them escape their arguments, except those documented to take HTML.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arlo.errors import ConfigError, EnvironmentProblem

# The browser enforces the promise of this page: it sends no request.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)

_STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --soft: #5a6575; --back: #f4f6f9; --box: #fff; --line: #e1e6ed;
  --thin: #eef1f5; --chosen: #eaf1fd; --warn: #fff6e5; --edge: #f0d49a; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text: #dde3ec; --soft: #98a4b5; --back: #12161c; --box: #1b2129; --line: #303945; --thin: #262e38;
    --chosen: #20304d; --warn: #3a2f16; --edge: #6f5a26; }
  .plotly-graph-div { filter: invert(0.9) hue-rotate(180deg); } /* plots keep their hues on a dark ground */
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
@media (max-width: 600px) { main { padding: 16px 10px 32px; } }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 10px; }
p.what { margin: 0 0 16px; color: var(--soft); overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; }
.card, .box { background: var(--box); border: 1px solid var(--line); border-radius: 8px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 22px; font-weight: 600; }
.card span { color: var(--soft); font-size: 13px; }
.box { padding: 6px; overflow-x: auto; min-width: 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(540px, 100%), 1fr)); gap: 14px;
  margin: 14px 0; }
.plots .box { overflow: hidden; }
.plots p { margin: 0 10px 8px; color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: 5px 9px; border-bottom: 1px solid var(--thin); vertical-align: top; text-align: right; }
td:first-child, th:first-child, .facts td { text-align: left; }
td:first-child { font-weight: 600; }
.box:not(.facts) td { white-space: nowrap; }
.facts td:first-child { width: 1%; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
p.note { margin: 4px 0; }
tr.chosen td { background: var(--chosen); font-weight: 600; }
code { font: 13px ui-monospace, monospace; word-break: break-word; }
.warn { background: var(--warn); border: 1px solid var(--edge); border-radius: 8px; padding: 8px 14px; margin: 12px 0; }
"""

# The first plot measures its box before the second one takes half of the row.
_RESIZE = '<script>addEventListener("load", () => dispatchEvent(new Event("resize")))</script>'
_PLOTS = {"displayModeBar": False, "responsive": True}


def render(title: str, parts: Iterable[str], *, what: Sequence[str] = (), style: str = "") -> str:
    """The whole page, of about 5 MB: the plotting library is in it. `what`: lines below the title, as text.

    `style` is added to the rules that all pages share. EnvironmentProblem when plotly is not installed.
    """
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise EnvironmentProblem("the page needs plotly: pip install 'arlo-serve[bench]'") from None
    name = html.escape(title)
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{_STYLE}{style}</style>",
            f"<script>{offline.get_plotlyjs()}</script></head>\n<body><main><h1>{name}</h1>",
            *(f'<p class="what">{html.escape(line)}</p>' for line in what),
            *parts,
            _RESIZE,
            "</main></body></html>\n",
        ]
    )


def write(path: Path, text: str) -> None:
    """Write a page. ConfigError where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from None


def plots(figures: Iterable[Any], captions: Iterable[str] = ()) -> str:
    """Plotly figures in boxes, two in a row where there is room, with a line of text below each that has one."""
    notes = iter(captions)
    boxes = []
    for figure in figures:
        drawn = figure.to_html(full_html=False, include_plotlyjs=False, config=_PLOTS)
        note = next(notes, "")
        boxes.append(f'<div class="box">{drawn}{f"<p>{html.escape(note)}</p>" if note else ""}</div>')
    return f'<div class="plots">{"".join(boxes)}</div>'


def cards(values: Iterable[tuple[str, str]]) -> str:
    """Figures, each with its label."""
    shown = "".join(
        f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in values
    )
    return f'<div class="cards">{shown}</div>'


def notes(lines: Iterable[str]) -> str:
    """Notes on the whole page, a paragraph each."""
    return "".join(f'<p class="note">{html.escape(line)}</p>' for line in lines)


def warnings(lines: Iterable[str]) -> str:
    """Sentences that a reader should not miss."""
    return "".join(f'<div class="warn">{html.escape(line)}</div>' for line in lines)


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
