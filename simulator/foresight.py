"""The demand of spans of a workload, read ahead of the simulation, for the allocations that know the future."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from arlo.planning.planner import Seen
from arlo.planning.traffic.demand import RESOLUTION_S, DemandWindow
from arlo.simulator.scenario.scenario import Workload

SECOND_NS = 1_000_000_000


class Foresight:
    """Spans are asked for in ascending order."""

    def __init__(self, seen: Callable[[DemandWindow], Seen], workload: Workload, max_length: int) -> None:
        """`seen`: the planner's view of a window. `max_length`: of the longest runtime; longer requests are never
        served, and not counted."""
        self._seen = seen
        self._max_length = max_length
        self._steps = _by_step(workload, max_length)
        self._duration_s = workload.duration_s
        self._held: tuple[float, NDArray[np.int64]] | None = None  # read, but not asked for yet

    def span(self, begin_ns: int, end_ns: int) -> Seen:
        """Demand of [begin, end), cut at the workload's end, in whole steps of its clock: those that begin in it."""
        begin_s = begin_ns / SECOND_NS
        end_s = max(min(end_ns / SECOND_NS, self._duration_s), begin_s + 1e-9)
        window = DemandWindow(window_s=end_s - begin_s)
        total = np.zeros(self._max_length + 1, np.int64)
        window.add(begin_s, 0, total)  # type: ignore[arg-type]  # an array is a sequence of ints to it
        for at_s, counts in self._until(end_s):
            if at_s >= begin_s - 1e-9:
                total = total + counts
                window.add(min(at_s + RESOLUTION_S, end_s), 0, total)  # type: ignore[arg-type]
        window.add(end_s, 0, total)  # type: ignore[arg-type]
        return self._seen(window)

    def _until(self, end_s: float) -> Iterator[tuple[float, NDArray[np.int64]]]:
        while True:
            item = self._held if self._held is not None else next(self._steps, None)
            self._held = None
            if item is None:
                return
            if item[0] >= end_s - 1e-9:
                self._held = item
                return
            yield item


def _by_step(workload: Workload, max_length: int) -> Iterator[tuple[float, NDArray[np.int64]]]:
    """Begins of the steps of RESOLUTION_S with arrivals, ascending, and the arrivals in them by length; those that no
    runtime takes left out."""
    step_ns = round(RESOLUTION_S * SECOND_NS)
    current, counts = 0, np.zeros(max_length + 1, np.int64)
    for arrived, length in workload.chunks():
        steps = arrived // step_ns
        edges = np.flatnonzero(np.diff(steps)) + 1
        for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(steps)], strict=True):
            if begin == end:
                continue
            if steps[begin] != current:
                yield current * RESOLUTION_S, counts
                current, counts = int(steps[begin]), np.zeros(max_length + 1, np.int64)
            some = length[begin:end]
            counts += np.bincount(some[(some > 0) & (some <= max_length)], minlength=max_length + 1)
    yield current * RESOLUTION_S, counts
