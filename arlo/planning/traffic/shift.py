"""Planning before the period is over, when the traffic has clearly changed: when, and for which demand. Pure.

The sooner the better: requests that do not fit the deployment pile up meanwhile, and the wait grows with the square of
the delay. A ShiftWatch gets every sample of the arrival counters, ten a second, and every plan. `candidate` returns
the demand to judge, if any. A solver finds whether a plan for it would pay, which takes a while, so this is left to
the caller, who passes the result to `settle`, and makes a plan if it pays. The control plane runs its solver in a
thread and the simulator at once; both use this rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from arlo.planning.traffic.demand import Demand, DemandWindow, latest_shift

SAMPLE_S = 0.1  # between two samples of the counters
MIN_ROWS = 50  # requests needed to tell a plan's demand from chance
SHIFT_ROWS = 25  # requests since a shift, needed to plan for them
SHIFT_SPAN_S = 0.25  # seconds since a shift, needed to plan for it
RECENT_S = 10.0
SHIFT_SCORE = 20.0  # a log-likelihood ratio that chance does not reach in years
UNKNOWN_DISPERSION = 3.0  # of arrivals, until they have been observed for long enough
DISPERSION_S = 1.0  # between two looks at it; also the length of its clips, in addition to those of the window
SHIFT_GAIN = 0.10
SHIFT_PAUSE_S = 0.5  # after any plan
REFINE_S = (0.8, 2.0, 5.0, 15.0)  # after a shift, when more is known of the new traffic, the plan is examined again


def least_gain(min_gain: float) -> float:
    """Share of the mean latency that an early plan has to save. `min_gain`: the share for any plan."""
    return max(SHIFT_GAIN, min_gain)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A demand for which a plan may pay now."""

    why: Literal["first", "shift", "refined"]  # the first requests; other ones than planned for; the same, known better
    demand: Demand
    since_s: float  # when the traffic changed to this; the samples' clock


class ShiftWatch:
    """Watches for a shift. One caller at a time, and every candidate is settled before the next is requested.

    Samples carry their reader's clock. `now_s` is of the caller's clock, which may be another and times the pauses.
    """

    def __init__(self, window: DemandWindow, lengths: Sequence[int], slo_ms: float) -> None:
        """`window`: plans are made from it; it forgets everything before a shift. `lengths`: those planned for."""
        self.recent = DemandWindow(window_s=RECENT_S, resolution_s=SAMPLE_S)
        self._window = window
        self._lengths = tuple(lengths)
        self._slo_ms = slo_ms
        self._planned_for: Demand | None = None  # the present demand, as far as known; shifts are judged against it
        self._dispersion = UNKNOWN_DISPERSION
        self._dispersion_at_s = 0.0  # the samples' clock, as the next three
        self._at_s: float | None = None  # of the last sample
        self._since_s = 0.0  # the last shift
        self._refine_at: list[float] = []
        self._look_again_s = 0.0  # the caller's clock

    def add(self, at_s: float, started_s: float, counts: Sequence[int]) -> None:
        """Add a sample of the counters, see DemandWindow.add; the window for plans has it already."""
        self._at_s = at_s
        self.recent.add(at_s, started_s, counts)
        if at_s - self._dispersion_at_s >= DISPERSION_S:
            self._dispersion_at_s = at_s
            known = [self._window.dispersion(self._lengths, clip_s=clip_s) for clip_s in (0.0, DISPERSION_S)]
            self._dispersion = max((value for value in known if value is not None), default=self._dispersion)

    def pause(self, now_s: float) -> None:
        """Pause for a moment: a plan is being made, for any reason and with any result."""
        self._look_again_s = now_s + SHIFT_PAUSE_S

    def planned(self, demand: Demand) -> None:
        """Record that a plan was made for this demand."""
        self._planned_for = demand

    def turned(self) -> None:
        """Record that the traffic has been different since the last sample."""
        if self._at_s is not None:
            self._begin(self._at_s)

    def candidate(self, now_s: float) -> Candidate | None:
        """Traffic that surely differs from the last plan's, if it is known well enough to plan for it."""
        if self._at_s is None or not self._lengths or now_s < self._look_again_s:
            return None
        if self._refine_at and self._at_s >= self._refine_at[0]:
            self._refine_at.pop(0)
            demand = self._window.estimate(self._lengths, self._slo_ms)
            return Candidate("refined", demand, self._since_s) if demand.rows >= SHIFT_ROWS else None
        if self._planned_for is None or not self._planned_for.span_s:
            recent = self.recent.estimate(self._lengths, self._slo_ms)
            return Candidate("first", recent, self._at_s - recent.span_s) if recent.rows >= MIN_ROWS else None
        shift = latest_shift(self.recent, self._planned_for, self._slo_ms, min_rows=SHIFT_ROWS)
        if shift is None or shift.score < SHIFT_SCORE * self._dispersion:
            return None
        if shift.demand.rows >= SHIFT_ROWS and shift.demand.span_s >= SHIFT_SPAN_S:
            return Candidate("shift", shift.demand, shift.since_s)
        if shift.demand.span_s >= RECENT_S / 2:
            self._keep(shift.demand, now_s)  # hardly any requests left: nothing to plan for
        return None  # otherwise it has surely changed, but it is not yet known to what

    def settle(self, candidate: Candidate, pays: bool, now_s: float) -> None:
        """Record whether a plan for the candidate would pay. The caller makes one if it does."""
        if candidate.why == "refined":
            # The same traffic, known better: a demand that rests on little is a poor reference for the next shift.
            if not pays:
                self._planned_for = candidate.demand
            return
        if pays:
            self._begin(candidate.since_s)
        else:
            self._keep(candidate.demand, now_s)

    def _keep(self, demand: Demand, now_s: float) -> None:
        """Judge shifts against this traffic from now on: it is new, but the deployment still fits it."""
        self._look_again_s = now_s + max(SHIFT_PAUSE_S, demand.span_s / 2)
        if demand.span_s >= RECENT_S / 2:
            self._planned_for = demand

    def _begin(self, since_s: float) -> None:
        """Start over at the moment of a shift: earlier arrivals say nothing about later ones."""
        self._window.restart(self.recent, since_s)
        self.recent.restart(self.recent, since_s)
        self._since_s = since_s
        self._refine_at = [since_s + after_s for after_s in REFINE_S if since_s + after_s > (self._at_s or 0.0)]
