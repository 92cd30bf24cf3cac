"""A plan before the period is over, when the traffic has clearly shifted: whether it would pay.

When to ask is the rule of arlo.planning.traffic.shift, which the control plane follows too. Its solver takes no
simulated time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.planning.traffic.demand import Demand, DemandWindow
from arlo.planning.traffic.shift import ShiftWatch, least_gain
from arlo.simulator.allocation import Planner
from arlo.simulator.scenario.scenario import Scenario


class EarlyPlans:
    """Fed with every sample of the arrival counters, and told of every plan."""

    def __init__(self, scenario: Scenario, planner: Planner, window: DemandWindow) -> None:
        """`window`: that plans are made from; it forgets what came before a shift."""
        self._planner = planner
        self._window = window
        self._least = least_gain(scenario.allocate.min_gain)
        self._watch = ShiftWatch(window, planner.lengths, scenario.slo_ms)
        self.add(0.0, np.zeros(1, np.int64))

    def add(self, now_s: float, counts: NDArray[np.int64]) -> None:
        """A sample of the arrival counters, that the window has already."""
        self._watch.add(now_s, 0, counts)  # type: ignore[arg-type]  # an array is a sequence of ints to it

    def pause(self, now_s: float) -> None:
        """A plan is being made."""
        self._watch.pause(now_s)

    def planned(self, demand: Demand) -> None:
        """A plan was made for this demand."""
        self._watch.planned(demand)

    def due(self, now_s: float, counts: Sequence[int]) -> bool:
        """Whether the last moments are surely other traffic than the last plan was for, and a new plan would pay.

        `counts`: instances wanted now.
        """
        candidate = self._watch.candidate(now_s)
        if candidate is None:
            return False
        pays = self._pays(candidate.demand, counts)
        self._watch.settle(candidate, pays, now_s)
        return pays

    def _pays(self, demand: Demand, counts: Sequence[int]) -> bool:
        if not any(counts[runtime] for runtime in self._planner.static):
            return False  # nobody to plan for
        seen = self._planner.seen_of(demand, self._window)
        best = self._planner.solve(sum(counts), seen)
        return self._planner.gain(counts, best, seen) >= self._least
