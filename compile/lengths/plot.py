"""The choice of lengths as a result file."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from arlo.compile.lengths.show import cost_title, rows, sentences
from arlo.compile.steps.lengths import LengthChoice
from arlo.planning.lengths.choice import PAPER_STEP
from arlo.report.figure import BLUE, GREEN, GREY, ORANGE, RED
from arlo.report.result import Document, chart, line, report, save, table

_BARS = 64  # of the histogram, at most
_NAMED = 8  # lengths whose names have room beside each other


def write_page(found: LengthChoice, path: Path, *, title: str) -> None:
    """Write a page (.html), or a file for `arlo report` (.json)."""
    save(path, [document(found, title=title)])


def document(found: LengthChoice, *, title: str) -> Document:
    """All of it: what each runtime saves, the requests by length, the sets of lengths beside each other."""
    choice, shown = found.choice, rows(found)
    numbers = list(range(1, len(choice.rows) + 1))
    saved = [100 * choice.marginal(index) for index in range(1, len(choice.rows))]
    head = ("runtimes", "maximum lengths", cost_title(found), "saves", "last one saves", "padding")
    cells = [(row.runtimes, row.lengths, row.expected, row.saving, row.further, row.padding) for row in shown]
    return report(
        "lengths",
        title,
        label=title,
        what=sentences(found),
        warnings=found.notes,
        charts=[
            _by_number(found),
            chart(
                "What each further runtime saves", "runtimes", "saved (%)", [line("saved", numbers[1:], saved, "bars")]
            ),
            _requests(found),
            _times(found),
        ],
        tables=[table("Sets of lengths", head, cells, marked=[n for n, row in enumerate(shown) if row.chosen])],
    )


def _by_number(found: LengthChoice) -> Document:
    """Expected time over the number of runtimes."""
    choice = found.choice
    best = [_cost(found, row.expected_us) for row in choice.rows]
    names = [", ".join(map(str, row.lengths)) for row in choice.rows]
    numbers = list(range(1, len(choice.rows) + 1))
    lines = [line("best lengths", numbers, best, "lines+markers", color=BLUE, text=names)]
    others = [(f"every {PAPER_STEP} tokens", choice.paper, GREY)]
    if choice.uniform.lengths != choice.paper.lengths:
        others.append(("equal steps", choice.uniform, ORANGE))
    if choice.given is not None:
        others.append(("as named", choice.given, RED))
    others.append(("chosen", choice.chosen, GREEN))
    for name, row, color in others:
        if len(row.lengths) <= 2 * max(8, len(choice.rows)):
            lines.append(line(name, [len(row.lengths)], [_cost(found, row.expected_us)], "markers", color=color))
    bound = {"y": _cost(found, choice.bound_us), "text": "a runtime for every length"}
    return chart("Expected time by number of runtimes", "runtimes", _axis(found), lines, marks=[bound])


def _requests(found: LengthChoice) -> Document:
    """The requests by length, coloured by the runtime that they take."""
    requests = found.traffic
    width = max(1, -(-requests.longest // _BARS))
    edges = np.arange(0, requests.longest + width, width)
    share = np.add.reduceat(requests.counts[1:], edges[:-1]) / requests.counts.sum() * 100
    bars = line("requests (%)", edges[:-1] + (width + 1) / 2, share, "bars")
    y = f"requests (% in {width} tokens)" if width > 1 else "requests (%)"
    return chart("Requests by length", "tokens", y, [bars], marks=_marks(found))


def _times(found: LengthChoice) -> Document:
    """The latency of a request that fits, and what it takes on the chosen runtimes."""
    choice, longest, curve = found.choice, found.traffic.longest, found.curve.curve
    measured = [(length, cost) for length, cost in curve.points if length <= longest] or [curve.points[0]]
    if measured[-1][0] < longest:
        measured.append((longest, float(curve.cost_us([longest])[0])))
    points = [(1, measured[0][1]), *measured]
    if curve.reading == "steps":  # each time holds from the length before
        points = [at for (a, _), (b, cost) in itertools.pairwise(points) for at in ((a, cost), (b, cost))]
    lengths = np.array(found.lengths)
    own = curve.cost_us(lengths)
    steps = [at for a, b, cost in zip((0, *lengths), lengths, own, strict=False) for at in ((a, cost), (b, cost))]
    names = (
        "latency, assumed" if found.curve.relative else "latency",
        "runtimes as named" if choice.given else "chosen runtimes",
    )
    lines = [
        line(name, [n for n, _ in each], [_cost(found, cost) for _, cost in each], color=color)
        for name, each, color in zip(names, (points, steps), (ORANGE, BLUE), strict=True)
    ]
    return chart("Time by length", "tokens", _axis(found), lines, marks=_marks(found))


def _marks(found: LengthChoice) -> list[Document]:
    return [{"x": int(length), "text": str(length) if len(found.lengths) <= _NAMED else ""} for length in found.lengths]


def _axis(found: LengthChoice) -> str:
    return "time (% of the longest runtime's)" if found.curve.relative else "time of one request (ms)"


def _cost(found: LengthChoice, cost_us: float) -> float:
    return 100 * cost_us / found.choice.rows[0].expected_us if found.curve.relative else cost_us / 1000
