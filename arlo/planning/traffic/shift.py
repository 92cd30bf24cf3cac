"""Planning before the period is over, when the traffic has clearly become another one: when, and for what. Pure.

The sooner the better: what does not fit the deployment piles up meanwhile, and the wait grows with the square of the
delay. A ShiftWatch sees every sample of the arrival counters, ten a second, and hears of every plan. `candidate` says
what to judge, if anything. Whether a plan for that demand would pay is found by a solver, which takes a while, so that
is left to the caller, who tells the answer to `settle`, and makes a plan if it was yes. The control plane asks its
solver in a thread and the simulator at once; the rule is this one in both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from arlo.planning.traffic.demand import Demand, DemandWindow, latest_shift

SAMPLE_S = 0.1  # between two samples of the counters
MIN_ROWS = 50  # requests that a plan needs to be more than chance
SHIFT_ROWS = 25  # requests since a shift that are needed to plan for what came since
SHIFT_SPAN_S = 0.25  # the same, of time
RECENT_S = 10.0
SHIFT_SCORE = 20.0  # a log-likelihood ratio that chance does not reach in years
UNKNOWN_DISPERSION = 3.0  # of arrivals, until they have been seen for long enough
DISPERSION_S = 1.0  # between two looks at it, and the clips that it is of, beside those of the window
SHIFT_GAIN = 0.10
SHIFT_PAUSE_S = 0.5  # after any plan
REFINE_S = (0.8, 2.0, 5.0, 15.0)  # after a shift, when more is known of the new traffic, the plan is looked at again


def least_gain(min_gain: float) -> float:
    """Share of the mean latency that an early plan has to save. `min_gain`: what any plan has to."""
    return max(SHIFT_GAIN, min_gain)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A demand for which a plan may pay now."""

    why: Literal["first", "shift", "refined"]  # the first requests; other ones than planned for; more is known of those
    demand: Demand
    since_s: float  # when the traffic became this one; the samples' clock


class ShiftWatch:
    """One caller at a time, and every candidate is settled before the next is asked for.

    Samples carry the clock of whoever counted. `now_s` is the caller's own, which may be another: pauses are of it.
    """

    def __init__(self, window: DemandWindow, lengths: Sequence[int], slo_ms: float) -> None:
        """`window`: that plans are made from. It forgets what came before a shift. `lengths`: that are planned for."""
        self.recent = DemandWindow(window_s=RECENT_S, resolution_s=SAMPLE_S)
        self._window = window
        self._lengths = tuple(lengths)
        self._slo_ms = slo_ms
        self._planned_for: Demand | None = None  # of now, as far as is known; a shift is looked for against it
        self._dispersion = UNKNOWN_DISPERSION
        self._dispersion_at_s = 0.0  # the samples' clock, as the next three
        self._at_s: float | None = None  # of the last sample
        self._since_s = 0.0  # the last shift
        self._refine_at: list[float] = []
        self._look_again_s = 0.0  # the caller's clock

    def add(self, at_s: float, started_s: float, counts: Sequence[int]) -> None:
        """A sample of the counters, as DemandWindow.add takes it; the window that plans are made from has it."""
        self._at_s = at_s
        self.recent.add(at_s, started_s, counts)
        if at_s - self._dispersion_at_s >= DISPERSION_S:
            self._dispersion_at_s = at_s
            known = [self._window.dispersion(self._lengths, clip_s=clip_s) for clip_s in (0.0, DISPERSION_S)]
            self._dispersion = max((value for value in known if value is not None), default=self._dispersion)

    def pause(self, now_s: float) -> None:
        """A plan is being made, whatever for and whatever comes of it: leave it a moment."""
        self._look_again_s = now_s + SHIFT_PAUSE_S

    def planned(self, demand: Demand) -> None:
        """A plan was made for this demand."""
        self._planned_for = demand

    def turned(self) -> None:
        """The traffic is known to be another one since the last sample."""
        if self._at_s is not None:
            self._begin(self._at_s)

    def candidate(self, now_s: float) -> Candidate | None:
        """What is surely other traffic than the last plan was for, if it is known well enough to plan for it."""
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
            self._keep(shift.demand, now_s)  # hardly any requests any more: nothing to plan for
        return None  # else surely another one, but not yet known which

    def settle(self, candidate: Candidate, pays: bool, now_s: float) -> None:
        """Whether a plan for the candidate would pay. The caller makes one if it does."""
        if candidate.why == "refined":
            # The same traffic, of which more is known: what rests on little says too little of the next shift.
            if not pays:
                self._planned_for = candidate.demand
            return
        if pays:
            self._begin(candidate.since_s)
        else:
            self._keep(candidate.demand, now_s)

    def _keep(self, demand: Demand, now_s: float) -> None:
        """Other traffic, but the deployment still fits it: from now on a shift is looked for against this one."""
        self._look_again_s = now_s + max(SHIFT_PAUSE_S, demand.span_s / 2)
        if demand.span_s >= RECENT_S / 2:
            self._planned_for = demand

    def _begin(self, since_s: float) -> None:
        """The traffic has been another one since then: what came before says nothing of what comes."""
        self._window.restart(self.recent, since_s)
        self.recent.restart(self.recent, since_s)
        self._since_s = since_s
        self._refine_at = [since_s + after_s for after_s in REFINE_S if since_s + after_s > (self._at_s or 0.0)]
