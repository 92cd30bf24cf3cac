"""Small charts of text for `arlo top`: bar, sparkline, length histogram, allocation over time. Pure.

Every chart has two alphabets: blocks, and ASCII for terminals that cannot show them.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from rich.text import Text

from arlo.control.http.status import ControlStatus

# Of the levels, shortest first. Green, yellow and red say how well something is.
PALETTE = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")


@dataclasses.dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters to draw with."""

    eighths: str  # bars of growing height; the first is empty
    full: str
    empty: str
    none: str  # no instance
    arrow: str


BLOCKS = Glyphs(eighths=" ▁▂▃▄▅▆▇█", full="█", empty="░", none="·", arrow="→")
ASCII = Glyphs(eighths=" .:-=+*%#", full="#", empty=".", none=".", arrow=">")


def level_style(index: int) -> str:
    """The colour of a level."""
    return PALETTE[index % len(PALETTE)]


def share_style(share: float, *, good: float = 0.8, fair: float = 1.0) -> str:
    """Green, yellow, red for something that should stay below 1."""
    return "green" if share <= good else "yellow" if share <= fair else "red"


def bar(share: float, width: int, glyphs: Glyphs, style: str = "") -> Text:
    """A horizontal bar of `width` characters; shares above 1 fill it."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return Text.assemble((glyphs.full * filled, style), (glyphs.empty * (width - filled), "bright_black"))


def column(value: float, most: float, height: int, glyphs: Glyphs) -> str:
    """One vertical bar of `height` characters, top first; what is not 0 shows at least the lowest mark."""
    steps = len(glyphs.eighths) - 1
    filled = round(value / most * height * steps) if most > 0 else 0
    filled = min(height * steps, max(filled, 1 if value > 0 else 0))
    return "".join(glyphs.eighths[min(steps, max(0, filled - row * steps))] for row in reversed(range(height)))


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs, *, limit: float | None = None) -> Text:
    """The newest values, one character each, from 0 to the greatest of them; coloured by how near `limit` they are."""
    shown = list(values)[-width:] if width > 0 else []
    most = max(shown, default=0.0)
    text = Text()
    for value in shown:
        text.append(column(value, most, 1, glyphs), "" if limit is None else share_style(value / limit))
    return text


def histogram(lengths: Sequence[int], edges: Sequence[int], width: int, height: int, glyphs: Glyphs) -> list[Text]:
    """Rows by length as `height` lines of bars and one line with the levels' edges. `lengths`: index = tokens.

    Each bar covers as many lengths as the next; its colour is that of the level of its longest length.
    """
    longest = max([*edges[-1:], *(length for length, rows in enumerate(lengths) if rows)], default=0)
    if longest == 0 or width < 8:
        return []
    bars = _bars(longest, width)
    heights = [sum(lengths[1 + longest * i // bars : 1 + longest * (i + 1) // bars]) for i in range(bars)]
    columns = [column(value, max(heights), height, glyphs) for value in heights]
    levels = [min(bisect.bisect_left(edges, longest * (i + 1) // bars), len(edges) - 1) for i in range(bars)]
    lines = []
    for row in range(height):
        line = Text(no_wrap=True)
        for mark, level in zip(columns, levels, strict=True):
            line.append(mark[row], level_style(level) if level >= 0 else "")
        lines.append(line)
    return [*lines, _axis(longest, edges, bars)]


def _bars(longest: int, width: int) -> int:
    """As many as fit; one less than half as many is allowed, for bars that are equally many lengths wide."""
    most = min(width, longest)
    return next((bars for bars in range(most, most // 2, -1) if longest % bars == 0), most)


def _axis(longest: int, edges: Sequence[int], bars: int) -> Text:
    """Each edge's number, ending below its last bar, where there is room; the longest always."""
    marks = [" "] * bars
    for edge in sorted({*edges, longest}, reverse=True):
        label = str(edge)
        end = max(len(label), round(edge / longest * bars))
        start = end - len(label)
        if all(mark == " " for mark in marks[max(0, start - 1) : end + 1]):
            marks[start:end] = label
    return Text("".join(marks), style="bright_black", no_wrap=True)


def allocation_over_time(control: ControlStatus, width: int, glyphs: Glyphs) -> tuple[float, dict[str, list[int]]]:
    """Seconds that are covered, and per runtime the instances wanted in each of `width` equal parts of that time.

    Only plans that were carried out count; the last part is what is wanted now.
    """
    moved = [plan for plan in control.plans if plan.moved]
    names = [runtime.name for runtime in control.runtimes]
    start_ms = moved[0].at_ms if moved else control.at_ms
    span_ms = max(1, control.at_ms - start_ms)
    times = [plan.at_ms for plan in moved]
    planned = {name for plan in moved for name in plan.instances}
    result: dict[str, list[int]] = {name: [] for name in names}
    for part in range(width):
        end_ms = start_ms + span_ms * (part + 1) / width
        index = bisect.bisect_right(times, end_ms) - 1
        last = part == width - 1 or index < 0
        wanted = control.desired if last else moved[index].instances
        for name in names:
            # A runtime that no numbers are planned of, as where every worker holds it, is there as it is now.
            result[name].append(wanted.get(name, 0 if name in planned else control.desired.get(name, 0)))
    return span_ms / 1000 if moved else 0.0, result


def allocation(control: ControlStatus, width: int, glyphs: Glyphs) -> list[Text]:
    """One line per runtime: max_length, or whose it is of several models; the instances over time; wanted now."""
    names = [(runtime.model or "all") if control.models else str(runtime.max_length) for runtime in control.runtimes]
    label = min(16, max([5, *map(len, names)]))
    room = max(4, width - label - 6)
    _, over_time = allocation_over_time(control, room, glyphs)
    most = max((value for values in over_time.values() for value in values), default=0)
    lines = []
    for index, runtime in enumerate(control.runtimes):
        line = Text(no_wrap=True)
        line.append(f"{names[index][:label]:>{label}} ", level_style(index))
        for value in over_time[runtime.name]:
            mark = column(value, most, 1, glyphs) if value else glyphs.none
            line.append(mark, level_style(index) if value else "bright_black")
        line.append(f"{control.desired.get(runtime.name, 0):>4}", "bold")
        lines.append(line)
    return lines
