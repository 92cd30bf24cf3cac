"""The progress bar of a long task on a terminal; it disappears when the task is done."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
from rich.text import Text


class _What(ProgressColumn):
    max_refresh = None

    def render(self, task: Task) -> Text:
        what: str | Text = task.fields["what"]
        return what if isinstance(what, Text) else Text(what)


class LiveBar:
    """Elapsed time, a bar, and the current step. A context manager; without a terminal it draws nothing."""

    def __init__(self, console: Console, what: str = "starting") -> None:
        self.console, self.live = console, console.is_terminal
        columns = (TimeElapsedColumn(), BarColumn(bar_width=24), _What())
        self._bar = Progress(
            *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=None, what=what)
        self._what: str | Text = what

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, done: float, total: float | None, what: str | Text | None = None) -> None:
        """Show the amount done and the total; `what`: None leaves the step's text unchanged."""
        self._what = self._what if what is None else what
        self._bar.update(self._task, completed=done, total=total, what=self._what)
