"""The progress display of `arlo compile profile`: a bar on a terminal, a line for each point elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console

from arlo.report.progress import LiveBar

if TYPE_CHECKING:
    from arlo.profiler import Progress


def describe(progress: Progress) -> str:
    """The latest point, or the runtime that is loading."""
    point = progress.point
    if point is None:
        return f"{progress.runtime}: loading"
    return (
        f"{progress.runtime}  length {point.length}  batch {point.batch}  {point.mean_us / 1000:.2f} ms "
        f"+-{point.half_width_us / point.mean_us:.1%}  p98 {point.p98_us / 1000:.2f} ms  {point.samples} samples"
    )


class LiveProgress:
    """A context manager that profile_runtimes() calls with each Progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = LiveBar(console, "starting a worker")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, progress: Progress) -> None:
        """Show this state."""
        line = f"{progress.done}/{progress.total}  {describe(progress)}"
        self._bar.show(progress.done, progress.total, line)
        if progress.point is not None and not self._bar.live:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
