"""Progress of a build on the screen: a bar on a terminal, else a line for each finished step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO

from arlo.compile.progress import Progress

FIRST_STEP = "resolve"
"""Its warning is shown at once: what the folder lacks is said before the work begins."""
_SHOWN = 4  # steps under way that a terminal names at a time


@contextlib.contextmanager
def display(stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """Yield the function that displays each event."""
    if not stream.isatty():
        yield lambda event: _line(event, stream)
        return
    from rich.console import Console

    from arlo.report.progress import LiveBar

    console = Console(file=stream)
    with LiveBar(console) as bar:
        under_way: dict[tuple[str, str], None] = {}

        def move(event: Progress) -> None:
            if event.done:
                under_way.pop((event.step, event.title), None)
            else:
                under_way[event.step, event.title] = None
            names = [f"{step} {title}" for step, title in under_way]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            what = f"{event.number}/{event.total}  {', '.join(names[:_SHOWN])}{more}"
            bar.show(event.number, event.total, what)
            if warning := _first_warning(event):
                console.print(warning, markup=False, highlight=False)

        yield move


def _line(event: Progress, stream: TextIO) -> None:
    if not event.done:
        return
    width = len(str(event.total))
    how = "cached" if event.cached else f"{event.seconds:.2f} s"
    note = f", {event.note}" if event.note else ""
    if warning := _first_warning(event):
        print(warning, file=stream, flush=True)
    print(f"[{event.number:>{width}}/{event.total}] {event.step} {event.title}: {how}{note}", file=stream, flush=True)


def _first_warning(event: Progress) -> str:
    return f"arlo: warning: {event.warning}" if event.warning and event.step == FIRST_STEP else ""
