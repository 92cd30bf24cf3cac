"""Small charts of text: sparkline and length histogram. Pure.

Every chart has two alphabets: blocks, and ASCII for terminals that cannot show them.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from rich.text import Text

# Colours of the levels, shortest first. Green, yellow and red are kept for good, fair and bad.
PALETTE = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")
Glyphs = str  # bars of growing height; the first is empty
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*%#"


def column(value: float, most: float, height: int, glyphs: Glyphs) -> str:
    """One vertical bar of `height` characters, top first; a value above 0 shows at least the lowest mark."""
    steps = len(glyphs) - 1
    filled = round(value / most * height * steps) if most > 0 else 0
    filled = min(height * steps, max(filled, 1 if value > 0 else 0))
    return "".join(glyphs[min(steps, max(0, filled - row * steps))] for row in reversed(range(height)))


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs, *, limit: float | None = None) -> Text:
    """The newest values, one character each, from 0 to the greatest of them; red above `limit`."""
    shown = list(values)[-width:] if width > 0 else []
    text = Text()
    for value in shown:
        text.append(column(value, max(shown), 1, glyphs), "red" if limit and value > limit else "")
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
            line.append(mark[row], PALETTE[level % len(PALETTE)] if level >= 0 else "")
        lines.append(line)
    return [*lines, _axis(longest, edges, bars)]


def _bars(longest: int, width: int) -> int:
    """The most bars that fit; any number above half as many will do, for bars that are equally many lengths wide."""
    most = min(width, longest)
    return next((bars for bars in range(most, most // 2, -1) if longest % bars == 0), most)


def _axis(longest: int, edges: Sequence[int], bars: int) -> Text:
    """Each edge's number, ending below its last bar, if there is room; the longest always."""
    marks = [" "] * bars
    for edge in sorted({*edges, longest}, reverse=True):
        label = str(edge)
        end = max(len(label), round(edge / longest * bars))
        start = end - len(label)
        if all(mark == " " for mark in marks[max(0, start - 1) : end + 1]):
            marks[start:end] = label
    return Text("".join(marks), style="bright_black", no_wrap=True)
