"""Progress of a build on the screen: a bar on a terminal, else a line for each finished step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO

from arlo.compile.progress import Progress

_SHOWN = 4  # steps under way that a terminal names at a time


@contextlib.contextmanager
def display(stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """What to give each event to."""
    if not stream.isatty():
        yield lambda event: _line(event, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("", total=None)
        under_way: dict[tuple[str, str], None] = {}

        def move(event: Progress) -> None:
            if event.done:
                under_way.pop((event.step, event.title), None)
            else:
                under_way[event.step, event.title] = None
            names = [f"{step} {title}" for step, title in under_way]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            bar.update(task, total=event.total, completed=event.number, description=", ".join(names[:_SHOWN]) + more)

        yield move


def _line(event: Progress, stream: TextIO) -> None:
    if not event.done:
        return
    width = len(str(event.total))
    how = "cached" if event.cached else f"{event.seconds:.2f} s"
    note = f", {event.note}" if event.note else ""
    print(f"[{event.number:>{width}}/{event.total}] {event.step} {event.title}: {how}{note}", file=stream, flush=True)
