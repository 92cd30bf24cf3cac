"""Tables and warnings on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | Text


def columns(
    head: Sequence[Cell],
    rows: Iterable[Sequence[Cell]],
    *,
    left: Collection[int] = (0,),
    title: str | None = None,
    bold: Collection[int] = (),
) -> Table:
    """A table without lines. Columns are aligned to the right, those of `left` to the left; `bold`: numbers of rows."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number in left else "right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row), style="bold" * (number in bold))
    return table


def console(width: int = 0) -> Console:
    """The console on standard output, at least so many characters wide: no table is broken or cut for a pipe."""
    made = Console(highlight=False)
    made.width = max(made.width, width) if made.is_terminal else 1000
    return made


def say(to: Console, lines: Iterable[str]) -> None:
    """Print lines as they are, each on one line."""
    for line in lines:
        to.print(Text(line), soft_wrap=True)


def warn(to: Console, lines: Iterable[str]) -> None:
    """Print sentences that a reader should not miss."""
    for line in lines:
        to.print(Text.assemble(("warning: ", "yellow"), line), soft_wrap=True)
