"""Stages of a cascade on separate workers: the number of workers for each. Pure.

This is several models (models.py), with four rules that hold only where a row runs on one stage after the other:

* A stage's demand is measured there: its share of the rows, at their lengths after pruning. Before there is traffic,
  it is the reach of the operating point.
* A later stage has the part of the SLO that earlier stages leave: their expected time is subtracted.
* The last stage is planned for the upper end of its share's 95 % interval: too little ends rows early, or late.
* Another operating point sends other shares on. A plan is made for these at once, and the counts under the old
  point are forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arlo.planning.models import Models, Served
from arlo.planning.planner import PlannerSettings, Seen
from arlo.planning.traffic.demand import Demand, bins
from arlo.planning.traffic.shift import MIN_ROWS

Z = 1.645  # 95 %, one-sided
LEAST_LEFT = 0.1  # of the SLO, for a stage, however slow the earlier ones are


class Stages(Models):
    """See the module. The models are the stages, from the first to the last."""

    def __init__(
        self,
        settings: PlannerSettings,
        stages: Sequence[Served],
        reach: Sequence[float],
        *,
        lengths: Sequence[float] = (),
        divides: bool = True,
    ) -> None:
        """`reach`: of the operating point in force, by stage. `lengths`: of rows, as far as known before there is
        traffic: quantiles, in tokens of the first stage."""
        self.reach = tuple(reach)  # of the operating point in force, as searched
        self._counted_under = self.reach
        self._lengths_before = tuple(lengths)
        super().__init__(settings, stages, divides=divides)

    def turn(self, reach: Sequence[float]) -> bool:
        """Note the reach of the operating point in force. Returns whether it changed, so that a new plan is due."""
        if tuple(reach) == self.reach:
            return False
        self.reach, self.turned = tuple(reach), True
        return True

    def renewed(self, seen: Seen) -> Seen | None:
        """The recorded demand, converted to the new point's shares."""
        before, self._counted_under, self.turned = self._counted_under, self.reach, False
        return Seen(self._in_shares(seen.demand, before), seen.dispersion) if seen.demand.rows >= MIN_ROWS else None

    def _in_shares(self, demand: Demand, before: Sequence[float]) -> Demand:
        """The demand with this reach instead of `before`. A stage that had none gets its share of the first stage's
        rows, spread evenly over its lengths."""
        scaled = [np.asarray(quantities, np.float64) for quantities in (demand.mean, demand.peak)]
        found = [quantities.copy() for quantities in scaled]
        first = slice(0, len(self._bins[0]))
        for part, old, new in zip(self._parts(), before, self.reach, strict=True):
            for quantities, made in zip(scaled, found, strict=True):
                if quantities[part].sum() > 0 and old > 0:
                    made[part] *= new / old
                else:
                    made[part] = quantities[first].sum() * new / (part.stop - part.start)
        mean, peak = (tuple(made.tolist()) for made in found)
        rows = round(demand.rows * sum(mean) / demand.total) if demand.total else 0
        return Demand(demand.max_lengths, mean, peak, max(rows, MIN_ROWS), demand.span_s)

    def _parts(self) -> list[slice]:
        """The slices of the bins of each stage."""
        ends = np.cumsum([len(each) for each in self._bins]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def rates(self, demand: Demand) -> list[npt.NDArray[np.float64]]:
        """The counted rates; for the last stage the upper end of its interval."""
        *before, last = super().rates(demand)
        rows = float(last.sum()) * demand.span_s * 1000
        return [*before, last * (upper(rows) / rows if rows > 0 else 1.0)]

    def left_ms(self, demand: Demand) -> list[float]:
        """The SLO, less the mean time of a row at the stages before."""
        found, gone = [], 0.0
        for served, bins_of, rate in zip(self.models, self._bins, self.rates(demand), strict=True):
            found.append(max(served.slo_ms - gone, LEAST_LEFT * served.slo_ms))
            alone = np.array([line.batch_ms(1) for _, line in bins_of])
            gone += float(alone @ (rate / rate.sum() if rate.any() else np.full(len(alone), 1 / len(alone))))
        return found

    def stand_in(self) -> Seen:
        """Demand that fills half of the busiest stage's workers at the point's reach."""
        weights = [self._spread([length for length, _ in each]) for each in self._bins]
        work = []
        for served, bins_of, weight, reach in zip(self.models, self._bins, weights, self.reach, strict=True):
            alone = np.array([line.batch_ms(1) for _, line in bins_of])
            work.append(reach * float(weight @ alone) / max(served.workers, 1))
        rate = 0.5 * self._settings.slo_ms / max(*work, 1e-9)  # rows of the first stage in one SLO period
        mean = tuple(float(q) for w, r in zip(weights, self.reach, strict=True) for q in rate * r * w)
        return Seen(Demand(self.lengths, mean, mean, 0, 0.0))

    def _spread(self, ends: Sequence[int]) -> npt.NDArray[np.float64]:
        """Share of the rows in the bins with these ends."""
        if not self._lengths_before:
            return np.full(len(ends), 1 / len(ends))
        counts = np.bincount(np.ceil(self._lengths_before).astype(np.int64), minlength=ends[-1] + 1)
        found = bins(counts, ends)
        return np.asarray(found / found.sum())


def upper(rows: float) -> float:
    """Upper end of the one-sided 95 % interval of the mean of a Poisson count of `rows` (Byar's approximation)."""
    n = rows + 1
    return n * (1 - 1 / (9 * n) + Z / (3 * math.sqrt(n))) ** 3
