"""The report: one HTML file that loads nothing from anywhere, made from the results alone."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arlo.report import page
from arlo.report.table import table as table_of
from benchmarks.figures.document import number, of_paper, span
from benchmarks.figures.experiment import VERDICTS, verdict
from benchmarks.figures.plots import draw

_STYLE = """
main { max-width: 1340px; }
h2 { font-size: 19px; margin: 44px 0 6px; padding-top: 10px; border-top: 2px solid #d5dce6; }
h3 { font-size: 14px; margin: 18px 0 6px; }
p { margin: 6px 0 10px; max-width: 1100px; }
a { color: #2f6fde; text-decoration: none; }
.box { margin: 8px 0; }
.plots .box { margin: 0; }
td, th { padding: 3px 9px; }
th { color: #5a6575; font-weight: 600; }
td:first-child { font-weight: inherit; }
td.left, th.left, .words td, .words th { text-align: left; }
table.summary { font-size: 13px; }
table.summary td:first-child { min-width: 190px; }
table.summary td, table.summary th { padding: 3px 6px; }
td.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.note { text-align: left; color: #414b5a; font-size: 12.5px; min-width: 260px; }
td.span { min-width: 128px; line-height: 1.2; }
.wide td:first-child { min-width: 250px; }
tr.group td { background: #f7f9fc; font-weight: 600; }
.tag { display: inline-block; border-radius: 10px; padding: 0 8px; font-size: 12px; white-space: nowrap; }
.reached { background: #d9f2e3; color: #17633c; } .beyond { background: #dfeafd; color: #1b4796; }
.shipped { background: #d5f0ee; color: #14595a; }
.short { background: #fde3d9; color: #93330d; } .fact { background: #eceff3; color: #4b5563; }
.missing { background: #f3e3f7; color: #6b2a7d; }
details { margin: 8px 0; } summary { cursor: pointer; color: #2f6fde; }
"""


def write(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the page, of about 5 MB (the plotting library is in it). EnvironmentProblem when plotly is missing."""
    page.write(path, render(results))


def render(results: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    parts = [*_summary(results), *("".join(_section(result)) for result in results)]
    return page.render("The paper's evaluation, beside ours", parts, style=_STYLE)


def _summary(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for result in results:
        for row in result["rows"]:
            found = verdict(result["targets"][row["target"]], row)
            counts[found] = counts.get(found, 0) + 1
    tally = " &nbsp; ".join(
        f'<span class="tag {name}">{count} {VERDICTS[name]}</span>'  # type: ignore[index]
        for name, count in counts.items()
    )
    wall_s = sum(result["wall_s"] for result in results)
    millions = sum(result["simulated_requests"] for result in results) / 1e6
    machine = results[0]["machine"]
    yield (
        '<p class="what">Arlo (ICPP\'24), section 5, in the simulator with the scheduler that serves. '
        f"{millions:,.0f} million requests, {wall_s:,.0f} s on {machine['cores']} cores of "
        f"{html.escape(machine['cpu'])}. "
        "Brackets: span over the assumptions that the paper leaves open (each changed alone), or over seeds. Shipped: "
        "the policy and objective that Arlo ships instead of the paper's. No parameter was tuned to meet a number."
        f"</p><p>{tally}</p>"
    )
    if any(result["short"] for result in results):
        yield page.warnings(
            ["A short run: traces of seconds, only to see that everything works. Its figures cannot be compared with "
             "the paper's."]
        )  # fmt: skip
    yield '<div class="box"><table class="summary"><tr><th>quantity</th><th>paper</th><th>ours</th><th>span</th>'
    yield '<th>shipped</th><th></th><th class="left">why</th></tr>'
    for result in results:
        title = html.escape(result["title"])
        yield f'<tr class="group"><td colspan="7"><a href="#{result["name"]}">{title}</a></td></tr>'
        for row in result["rows"]:
            yield _row(result["targets"][row["target"]], row)
    yield "</table></div>"


def _row(target: dict[str, Any], row: dict[str, Any]) -> str:
    unit, found = target["unit"], verdict(target, row)
    around = f"{span(row, unit)}<br>over {html.escape(row['over'])}" if span(row, unit) else ""
    better = number(row["better"], unit) if row["better"] is not None else ""
    return (
        f"<tr><td>{html.escape(target['quantity'])}<br><small>{html.escape(target['where'])}</small></td>"
        f'<td class="n">{of_paper(target)}</td><td class="n"><b>{number(row["ours"], unit)}</b></td>'
        f'<td class="span"><small>{around}</small></td><td class="n">{better}</td>'
        f'<td><span class="tag {found}">{VERDICTS[found]}</span></td>'
        f'<td class="note">{html.escape(row["note"])}</td></tr>'
    )


def _section(result: dict[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{result["name"]}">{html.escape(result["title"])}</h2><p>{html.escape(result["text"])}</p>'
    for paragraph in result["findings"]:
        yield f"<p>{html.escape(paragraph)}</p>"
    if result["plots"]:
        yield page.plots(map(draw, result["plots"]), [plot["caption"] for plot in result["plots"]])
    for table in result["tables"]:
        yield _table(table)
    for table in result["sensitivity"]:
        yield _table({**table, "title": f"Sensitivity: {table['title']}"})
    if result["parameters"]:
        rows = [[one["name"], one["value"], one["source"]] for one in result["parameters"]]
        table = {"title": "", "columns": ["parameter", "value", "from"], "rows": rows, "caption": ""}
        yield f"<details><summary>Parameters</summary>{_table(table, words=True)}</details>"
    yield (
        f'<p class="what"><code>{html.escape(result["command"])}</code>, {result["date"]}, {result["wall_s"]:g} s, '
        f"{result['simulated_requests']:,} requests simulated</p>"
    )


def _table(table: dict[str, Any], *, words: bool = False) -> str:
    title = f"<h3>{html.escape(table['title'])}</h3>" if table["title"] else ""
    caption = f'<p class="what">{html.escape(table["caption"])}</p>' if table["caption"] else ""
    return title + caption + table_of(table["columns"], table["rows"], kind="words" if words else "wide")
