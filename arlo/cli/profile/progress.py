"""The progress display of `arlo compile profile`: a bar on a terminal, a line for each point elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class LiveProgress(LiveBar):
    """A context manager that profile_runtimes() calls with each Progress."""

    def __call__(self, progress: Progress) -> None:
        """Show this state."""
        line = f"{progress.done}/{progress.total}  {describe(progress)}"
        self.show(progress.done, progress.total, line)
        if progress.point is not None and not self.live:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
