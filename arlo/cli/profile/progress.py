"""How `arlo profile` shows its way: a bar on a terminal, a line for each point elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from arlo.profiler import Progress


def describe(progress: Progress) -> str:
    """The latest point, or what is being loaded."""
    point = progress.point
    if point is None:
        return f"{progress.runtime}: loading"
    return (
        f"{progress.runtime}  length {point.length}  batch {point.batch}  {point.mean_us / 1000:.2f} ms "
        f"+-{point.half_width_us / point.mean_us:.1%}  p98 {point.p98_us / 1000:.2f} ms  {point.samples} samples"
    )


class LiveProgress:
    """A context manager, and what profile_runtimes() calls with each Progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        if console.is_terminal:
            columns = (
                TimeElapsedColumn(),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[what]}"),
            )
            self._bar = Bar(*columns, console=console, transient=True, refresh_per_second=4)
            self._task = self._bar.add_task("profile", total=None, what="starting a worker")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show this state."""
        if self._bar is not None:
            self._bar.update(self._task, total=progress.total, completed=progress.done, what=describe(progress))
        elif progress.point is not None:
            line = f"{progress.done}/{progress.total}  {describe(progress)}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
