"""How the parts of `arlo top` are put on a screen: one column below 130 characters, two above; as high as it is.

What does not fit is left out by importance: the header stays, then workers, runtimes and plans, then the lengths and
the allocation over time. Without a height (a file, a pipe) everything is shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from arlo.cli.top import charts, parts
from arlo.cli.top.view import View

WIDE = 130
LEFT = 80  # at least; the tables are made for it
PLAN_LINES = 8
ENOUGH = 14  # lines of a table before the charts get theirs
GAP = 3  # between the two columns


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A titled part. `draw` is given the lines that it may take, without the title."""

    title: str
    rank: int  # of importance, 0 first
    least: int
    want: int
    draw: Callable[[int], RenderableType]
    chart: bool = False


class Screen:
    """One screen, made for the terminal that it is printed to."""

    def __init__(self, shown: View) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height
        glyphs = charts.ASCII if options.ascii_only else charts.BLOCKS
        head = parts.header(self._shown, width, glyphs)
        yield from head
        room = None if height is None else max(0, height - len(head))
        if width < WIDE:
            yield stack([*_tables(self._shown, width, glyphs), *_charts(self._shown, width, glyphs)], room)
            return
        left = max(LEFT, (width - GAP) * 55 // 100)
        right = width - GAP - left
        grid = Table.grid(padding=(0, GAP, 0, 0))
        grid.add_column(width=left)
        grid.add_column(width=right)
        grid.add_row(stack(_tables(self._shown, left, glyphs), room), stack(_charts(self._shown, right, glyphs), room))
        yield grid


def share_out(sections: Sequence[Section], room: int | None) -> list[int]:
    """Lines for each section, without its title; 0: left out. First every table at its least and up to ENOUGH, then the
    charts, then what is left; each by rank."""
    if room is None:
        return [section.want for section in sections]
    given = [0] * len(sections)
    order = sorted(range(len(sections)), key=lambda index: sections[index].rank)
    tables = [index for index in order if not sections[index].chart]
    for group, most in ((tables, ENOUGH), (order, max((section.want for section in sections), default=0))):
        for index in group:
            cost = sections[index].least + 1
            if not given[index] and sections[index].want and cost <= room:
                given[index], room = sections[index].least, room - cost
        for index in group:
            more = max(0, min(room, min(most, sections[index].want) - given[index])) if given[index] else 0
            given[index], room = given[index] + more, room - more
    return given


def stack(sections: Sequence[Section], room: int | None) -> Group:
    """Sections one below the other, each with its title."""
    shown: list[RenderableType] = []
    for section, lines in zip(sections, share_out(sections, room), strict=True):
        if lines:
            shown += [Rule(Text(section.title, "bold"), align="left", style="bright_black"), section.draw(lines)]
    return Group(*shown)


def _tables(shown: View, width: int, glyphs: charts.Glyphs) -> list[Section]:
    rows, workers, models = len(shown.runtimes), len(shown.workers), len(shown.models)
    sections = []
    if workers:
        sections.append(
            Section(
                "workers",
                0,
                min(workers, 4) + 1,
                parts.worker_lines(shown, width),
                lambda n: parts.workers(shown, width, n, glyphs),
            )
        )
    if rows:
        title = "lengths by model" if models else "runtimes" if shown.control is not None else "levels"
        sections.insert(
            0, Section(title, 1, min(rows, 4) + 1, rows + 1, lambda n: parts.runtimes(shown, width, n, glyphs))
        )
    for each in shown.cascades:
        count = len(each.stages)
        sections.insert(
            0,
            Section(
                parts.cascade_title(each),
                -1,
                min(count, 2) + 1,
                count + 1,
                lambda n, each=each: parts.stages(each, width, n),  # type: ignore[misc]
            ),
        )
    for pipeline in shown.flows:
        count = len(pipeline.stages)
        sections.insert(
            0,
            Section(
                parts.flow_title(pipeline),
                -1,
                min(count, 2) + 1,
                count + 1,
                lambda n, pipeline=pipeline: parts.flow(pipeline, width, n),  # type: ignore[misc]
            ),
        )
    if models:
        sections.insert(
            0, Section("models", -1, min(models, 4) + 1, models + 1, lambda n: parts.models(shown, width, n, glyphs))
        )
    return sections


def _charts(shown: View, width: int, glyphs: charts.Glyphs) -> list[Section]:
    sections = []
    control = shown.control
    if control is not None:
        title = "plans: none to come, the allocation of the configuration stays"
        if control.reallocate:
            due, period = parts.seconds(max(0.0, control.next_plan_in_s)), parts.seconds(control.period_s)
            title = f"plans: next in {due} (every {period.removesuffix(' 00s')})"
        lines = min(len(parts.plans(control, width, 1 + PLAN_LINES)), 1 + PLAN_LINES)
        sections.append(Section(title, 2, min(lines, 2), lines, lambda n: Group(*parts.plans(control, width, n))))
    rows = sum(shown.lengths)
    if rows and shown.window_s:
        title = f"lengths: {rows:,} rows in {parts.seconds(shown.window_s)}"
        sections.append(
            Section(
                title,
                3,
                4,
                7,
                lambda n: Group(*charts.histogram(shown.lengths, shown.edges, width, n - 1, glyphs)),
                chart=True,
            )
        )
    if control is not None and control.runtimes:
        span_s, _ = charts.allocation_over_time(control, 1, glyphs)
        title = f"instances wanted: last {parts.seconds(span_s)}" if span_s else "instances wanted"
        lines = len(control.runtimes)
        sections.append(
            Section(title, 4, lines, lines, lambda n: Group(*charts.allocation(control, width, glyphs)[:n]), chart=True)
        )
    return sections
