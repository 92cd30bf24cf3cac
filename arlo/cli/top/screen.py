"""The document of arlo.cli.top.view on a terminal or in a file: tables, then a chart, as tall as there is room."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from arlo.cli.top import charts
from arlo.cli.top.tables import BELOW, HEAD, TABLES, Cell, Document, shares
from arlo.report.numbers import seconds

LEAST = 4  # lines that a section keeps while it is made smaller; then it goes
GAP = 2  # between columns
WORDS = 20  # characters of a last column that lists shares, before others go for it


@dataclasses.dataclass(frozen=True, slots=True)
class Screen:
    """One document, made for the terminal that it is printed to; without a height (a file, a pipe) all of it."""

    shown: Document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = charts.ASCII if options.ascii_only else charts.BLOCKS
        made = sections(self.shown, options.max_width, glyphs)
        lines = [console.render_lines(each, options.update(height=None), pad=False) for each in made]
        for block in fit(lines, options.height):
            for line in block:
                for text, style, control in line:  # rich cuts with an ellipsis on every terminal
                    yield Segment(text.replace("…", ".") if options.ascii_only else text, style, control)
                yield Segment.line()


def fit(blocks: Sequence[list[Any]], height: int | None) -> list[list[Any]]:
    """Lines of each section, cut to the height: the longest first; those that would be too short go, from the end."""
    kept = [list(block) for block in blocks]
    while height is not None and (more := sum(map(len, kept)) - height) > 0:
        longest = max(kept[1:], key=len, default=kept[0])
        if len(longest) > LEAST:
            del longest[-1]
        elif len(kept) > 1:
            del kept[-1]
        else:
            del kept[0][-more:]
    return kept


def sections(shown: Document, width: int, glyphs: charts.Glyphs) -> list[RenderableType]:
    """The head, then the sections that have content, the most important first."""
    now, control = shown["now"], shown["control"]
    head: list[RenderableType] = [_fields(HEAD, now)]
    head += [Text(shown[key], "red") for key in ("control_error", "gateway_error") if shown[key]]
    if control is not None and control["scaling"]["policy"] != "none":
        head.append(Text(_scaling(control), no_wrap=True, overflow="ellipsis"))
    stats: Document = next(iter(shown["stats"].values()), {})
    window = f" (ms, last {stats['total']['window_s']} s)" if stats else ""
    made: list[RenderableType | None] = [
        Group(*head),
        _section(f"models (rates over {seconds(now['window_s'])})", "models", now["models"], width),
        _section("latency" + window, "latency", now["latency"], width),
        *(_section(flow["title"], "stages", flow["stages"], width, flow["notes"]) for flow in now["flows"]),
        _section("lengths", "lengths", now["lengths"], width),
        _section("workers", "workers", now["workers"], width),
        _section("outcomes since the gateway's start", "outcomes", now["outcomes"], width),
        _section(_next_plan(control), "plans", now["plans"], width) if control is not None else None,
    ]
    if len(trend := [each["p98_ms"] for each in now.get("p98_trend", ())]) > 1:
        span = seconds(now["p98_trend"][0]["ago_s"])
        line = charts.sparkline(trend, width - 8, glyphs, limit=now["models"][0]["slo_ms"])
        made.append(_titled(f"p98 of {now['models'][0]['name']}, last {span}, up to {max(trend):.1f} ms", line))
    if rows := sum(now["rows_by_length"]):
        edges = sorted({row["max_length"] for row in now["lengths"]})
        lines = charts.histogram(now["rows_by_length"], edges, width, 6, glyphs)
        made.append(_titled(f"lengths: {rows:,} rows in {seconds(now['lengths_window_s'])}", *lines))
    return [each for each in made if each is not None]


def _titled(title: str, *parts: RenderableType) -> Group:
    return Group(Rule(Text(title, "bold"), align="left", style="bright_black"), *parts)


def _section(title: str, name: str, rows: Sequence[Document], width: int, notes: Iterable[Any] = ()) -> Group | None:
    """A titled table; figures without a column are listed below it."""
    if not rows:
        return None
    cells = [cell for cell in TABLES[name] if any(row[cell.key] is not None for row in rows)]
    columns = {cell: [_text(cell, row) for row in rows] for cell in cells if cell.rank != BELOW}
    widths = {cell: max(len(cell.title), *map(len, texts)) for cell, texts in columns.items()}
    last = next(reversed(columns))
    if last.form is shares:
        widths[last] = min(widths[last], WORDS)
    while (
        sum(widths[cell] + GAP for cell in columns) - GAP > width and (most := max(reversed(columns), key=_rank)).rank
    ):
        del columns[most]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bright_black")
    for cell in columns:
        words = any(isinstance(row[cell.key], str | dict) for row in rows)
        room = width - sum(widths[each] + GAP for each in columns if each is not cell) if cell is last else None
        justify: Any = "left" if words else "right"
        table.add_column(cell.title, justify=justify, no_wrap=True, overflow="ellipsis", max_width=room)
    for texts in zip(*columns.values(), strict=True):
        table.add_row(*texts)
    below = [
        (f"{cells[0].form(row[cells[0].key])}: {row[cell.key]}", "red" if cell.key == "error" else "yellow")
        for row in rows
        for cell in cells
        if cell.rank == BELOW and row[cell.key] is not None
    ]
    return _titled(title, table, *(Text(text, style) for text, style in (*below, *notes)))


def _rank(cell: Cell) -> int:
    return cell.rank


def _text(cell: Cell, row: Document) -> Text:
    value = row[cell.key]
    return Text("-") if value is None else Text(cell.form(value), cell.style(value))


def _fields(cells: Iterable[Cell], row: Document) -> Text:
    """`name value  name value ...`, of the cells that have a value."""
    parts = [
        Text.assemble((f"{cell.title} " if cell.title else "", "bright_black"), _text(cell, row))
        for cell in cells
        if row[cell.key] is not None
    ]
    return Text("  ").join(parts)


def _scaling(control: Document) -> str:
    scaling = control["scaling"]
    text = f"scaling {scaling['policy']}: {scaling['workers']} workers ({scaling['minimum']} to {scaling['maximum']})"
    if scaling["last_action"]:
        ago = seconds(max(0.0, (control["at_ms"] - scaling["last_at_ms"]) / 1000))
        text += f"; {scaling['last_action']} {ago} ago: {scaling['last_reason']}"
    return text


def _next_plan(control: Document) -> str:
    if not control["reallocate"]:
        return "plans: none to come, the allocation of the configuration stays"
    return f"plans: next in {seconds(max(0.0, control['next_plan_in_s']))} (every {seconds(control['period_s'])})"
