"""A plan before the period is over, when the traffic has clearly shifted: when to make it.

The same rule as the control plane's (arlo.control.scheduler), with its constants: the detector is that of
arlo.planning.demand, looked at ten times a second; a plan is made when it would save a tenth of the mean latency.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.planning.demand import Demand, DemandWindow, latest_shift
from arlo.simulator.allocation import Planner, Seen
from arlo.simulator.scenario import Scenario

MIN_ROWS = 50
SHIFT_ROWS = 25  # requests since a shift that are needed to plan for what came since
SHIFT_SPAN_S = 0.25  # the same, of time
RECENT_S = 10.0
SHIFT_SCORE = 20.0
UNKNOWN_DISPERSION = 3.0
SHIFT_GAIN = 0.10
SHIFT_PAUSE_S = 0.5  # after any plan
REFINE_S = (0.8, 2.0, 5.0, 15.0)  # after a shift, when more is known of the new traffic, the plan is looked at again


class ShiftWatch:
    """Fed with every sample of the arrival counters, and told of every plan."""

    def __init__(self, scenario: Scenario, planner: Planner) -> None:
        self._scenario = scenario
        self._planner = planner
        self._recent = planner.window(RECENT_S, resolution_s=0.1)
        self._planned_for: Demand | None = None  # of now, as far as is known; a shift is looked for against it
        self._dispersion = UNKNOWN_DISPERSION
        self._again_s = 0.0
        self._refine_at: list[float] = []
        self._dispersion_at_s = 0.0

    def add(self, now_s: float, counts: NDArray[np.int64]) -> None:
        """A sample of the arrival counters."""
        self._recent.add(now_s, 0, counts)  # type: ignore[arg-type]  # an array is a sequence of ints to it

    def planned(self, now_s: float, demand: Demand | None) -> None:
        """A plan was made, for this demand if for any."""
        self._again_s = now_s + SHIFT_PAUSE_S
        if demand is not None:
            self._planned_for = demand

    def looks(self, now_s: float, window: DemandWindow, counts: Sequence[int]) -> bool:
        """Whether the last moments are surely other traffic than the last plan was for, and a new plan would pay.

        `window`: that plans are made from; it forgets what came before the shift. `counts`: instances wanted now.
        """
        lengths, slo_ms = self._planner.lengths, self._scenario.slo_ms
        if not lengths or now_s < self._again_s:
            return False
        if now_s - self._dispersion_at_s >= 1.0:
            self._dispersion_at_s = now_s
            known = window.dispersion(lengths)
            self._dispersion = known if known is not None else self._dispersion
        if self._refine_at and now_s >= self._refine_at[0]:
            self._refine_at.pop(0)
            demand = self._planner.seen(window).demand
            return demand.rows >= SHIFT_ROWS and self._pays(demand, counts)
        if self._planned_for is None or not self._planned_for.span_s:
            recent = self._recent.estimate(lengths, slo_ms)
            if recent.rows < MIN_ROWS:
                return False
            if self._pays(recent, counts):
                self._begin(now_s, now_s - recent.span_s, window)
                return True
            self._does_not_pay(now_s, recent)
            return False
        shift = latest_shift(self._recent, self._planned_for, slo_ms, min_rows=SHIFT_ROWS)
        if shift is None or shift.score < SHIFT_SCORE * self._dispersion:
            return False
        known_now = shift.demand.rows >= SHIFT_ROWS and shift.demand.span_s >= SHIFT_SPAN_S
        if not known_now and shift.demand.span_s < RECENT_S / 2:
            return False  # surely another one, but not yet known which
        if known_now and self._pays(shift.demand, counts):
            self._begin(now_s, shift.since_s, window)
            return True
        self._does_not_pay(now_s, shift.demand)
        return False

    def _does_not_pay(self, now_s: float, demand: Demand) -> None:
        """Other traffic, but the deployment still fits it: from now on a shift is looked for against this one."""
        self._again_s = now_s + max(SHIFT_PAUSE_S, demand.span_s / 2)
        if demand.span_s >= RECENT_S / 2:
            self._planned_for = demand

    def _begin(self, now_s: float, since_s: float, window: DemandWindow) -> None:
        """The traffic has been another one since then: what came before says nothing of what comes."""
        window.restart(self._recent, since_s)
        self._recent.restart(self._recent, since_s)
        self._refine_at = [since_s + after_s for after_s in REFINE_S if since_s + after_s > now_s]

    def _pays(self, demand: Demand, counts: Sequence[int]) -> bool:
        seen = Seen(demand, self._dispersion)
        best = self._planner.solve(sum(counts), seen)
        least = max(SHIFT_GAIN, self._scenario.allocate.min_gain)
        return self._planner.gain(counts, best, seen) >= least
