"""Several models, each on separate workers: the number of workers for each, and when some move. Pure.

The counters of all models are concatenated, a model's lengths after those of the one before. The queueing model
predicts a model with n workers as one level of n servers, which takes rows in full batches when
many wait; it does not depend on the other models, so the division with the least sum is found exactly
(src/solve/separable.cc). A millisecond counts by the model's share, as a part of its SLO.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arlo import _core
from arlo.catalog.bundle import Bundle
from arlo.catalog.manifest import Runtime
from arlo.clock import monotonic_s
from arlo.planning.allocation.curves import curve
from arlo.planning.allocation.problem import Allocation, LatencyCurve
from arlo.planning.allocation.queueing import HORIZON_MS
from arlo.planning.allocation.queueing_model import WaitModel
from arlo.planning.planner import Answer, PlannerSettings, Problem, Seen, Subject
from arlo.planning.traffic.demand import Demand

UNSERVED = 1e3  # weight of a request without any worker, as a multiple of the longest time that an overload lasts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model on separate workers."""

    bundle: Runtime  # held by each of them
    slo_ms: float
    share: float = 1.0
    workers: int = 1  # at first

    @property
    def bins(self) -> list[tuple[int, LatencyCurve]]:
        """Lengths in tokens with equal cost, by the longest of them, and their costs."""
        if isinstance(self.bundle, Bundle) and not self.bundle.members[0].dynamic:
            lengths = sorted({runtime.max_length for runtime in self.bundle.members})
        else:
            measured = {point.length for point in self.bundle.latency if point.length < self.bundle.max_length}
            lengths = [*sorted(measured), self.bundle.max_length]
        return [(length, curve(self.bundle, length)) for length in lengths]


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """A model's load: `rate` rows per ms; a row alone, its share of the best batch, and the whole batch."""

    weight: float  # of a ms of a row
    rate: float
    alone_ms: float
    share_ms: float
    full_ms: float

    def mean_ms(self, workers: Sequence[int]) -> list[float]:
        """Mean latency by number of workers; finite if there is at least one."""
        if not self.rate:
            return [0.0] * len(workers)
        model = WaitModel(
            alone_ms=np.array([self.alone_ms]),
            share_ms=np.array([self.share_ms]),
            full_ms=np.array([self.full_ms]),
            rate=np.array([self.rate]),
            slo_ms=0.0,
            horizon_ms=HORIZON_MS,
        )
        counts = np.array([[max(count, 1)] for count in workers], np.int64)
        found, _ = model.mean_ms(counts)
        unserved = UNSERVED * HORIZON_MS
        return [float(ms) if count else unserved for ms, count in zip(found, workers, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True)
class ByModel(Problem):
    """Workers divided among models, in their order."""

    workers: int
    loads: tuple[Load, ...]

    def solve(self, last: Allocation | None, *, time_limit_s: float) -> Answer:
        """The best division; every model gets a worker if there are enough, at any demand."""
        del last, time_limit_s  # milliseconds, exactly
        began_s = monotonic_s()
        least = 1 if self.workers >= len(self.loads) else 0
        cost = []
        for load in self.loads:
            means = load.mean_ms(range(self.workers + 1))
            cost.append([math.inf if count < least else load.weight * load.rate * ms for count, ms in enumerate(means)])
        instances, *_ = _core.allocate_separable(self.workers, cost, [least] * len(self.loads))
        reason = None if least else f"too_few_workers: {self.workers} for {len(self.loads)} models, one each"
        found = Allocation(
            instances=tuple(instances),
            objective=sum(line[count] for line, count in zip(cost, instances, strict=True)),
            solver="separable",
            solve_s=monotonic_s() - began_s,
            optimal=True,
            reason=reason,
        )
        return Answer(found, "")

    def loss(self, instances: Sequence[int]) -> float:
        """The mean latency over the rows of all models, by their weights."""
        rows = [load.weight * load.rate for load in self.loads]
        means = [load.mean_ms([count])[0] for load, count in zip(self.loads, instances, strict=True)]
        return sum(n * ms for n, ms in zip(rows, means, strict=True)) / sum(rows) if sum(rows) else 0.0


class OfModels(Subject):
    """Several models and their bins of demand."""

    def __init__(self, settings: PlannerSettings, models: Sequence[Served], *, divides: bool) -> None:
        """`models`: in the order of the configuration, at least one. `divides`: False if all workers serve all of
        them, so that only their load matters."""
        self._settings = settings
        self.models = list(models)
        self.planned = [served.bundle for served in models] if divides else []
        self._bins = [served.bins for served in models]
        # A model's counters run from 0 to its longest length.
        self._starts = np.cumsum([0, *(bins[-1][0] + 1 for bins in self._bins)])
        pairs = zip(self._starts[:-1], self._bins, strict=True)
        self.lengths = tuple(int(start) + length for start, bins in pairs for length, _ in bins)
        self.load_lengths = self.lengths
        self.load_curves = tuple(line for bins in self._bins for _, line in bins)

    def joined(self, counts: Sequence[Sequence[int]]) -> list[int]:
        """Counters by length of each model, in the form for Planner.add."""
        whole: list[int] = []
        for (start, end), one in zip(zip(self._starts, self._starts[1:], strict=False), counts, strict=True):
            size = int(end - start)
            whole += [*one[:size], *[0] * (size - len(one))]
        return whole

    def by_runtime(self, quantities: Sequence[float]) -> dict[str, float]:
        """A Demand's values by bin, keyed by the name of a model's bundle; in SLO periods of the settings."""
        sums, rest = {}, list(quantities)
        for served, bins in zip(self.models, self._bins, strict=True):
            sums[served.bundle.name] = sum(rest[: len(bins)])
            rest = rest[len(bins) :]
        return sums

    def by_model(self, demand: Demand) -> list[Demand]:
        """The demand of each model, in its SLO periods and by its lengths."""
        found, at = [], 0
        for served, bins in zip(self.models, self._bins, strict=True):
            part, scale = slice(at, at + len(bins)), served.slo_ms / self._settings.slo_ms
            at += len(bins)
            mean, peak = ([q * scale for q in quantities[part]] for quantities in (demand.mean, demand.peak))
            rows = round(sum(demand.mean[part]) / demand.total * demand.rows) if demand.total else 0
            found.append(Demand(tuple(length for length, _ in bins), tuple(mean), tuple(peak), rows, demand.span_s))
        return found


class Models(OfModels):
    """See the module. Numbers of instances are by model."""

    def __init__(self, settings: PlannerSettings, models: Sequence[Served], *, divides: bool = True) -> None:
        super().__init__(settings, models, divides=divides)

    def problem(self, workers: int, seen: Seen | None, wanted: Sequence[int]) -> ByModel:
        """The problem of these workers and requests; `seen` None: the requests are not known yet."""
        del wanted
        seen = seen if seen is not None else self.stand_in()
        scale = sum(served.share / served.slo_ms for served in self.models) / len(self.models)
        loads, rates_of_all, left = [], self.rates(seen.demand), self.left_ms(seen.demand)
        for served, bins, rates, left_ms in zip(self.models, self._bins, rates_of_all, left, strict=True):
            best = [_best_batch(line, left_ms) for _, line in bins]
            alone = np.array([line.batch_ms(1) for _, line in bins])
            rate = float(rates.sum())
            parts = rates / rate if rate else np.full(len(bins), 1 / len(bins))
            loads.append(
                Load(
                    weight=served.share / served.slo_ms / scale,
                    rate=rate,
                    alone_ms=float(parts @ alone),
                    share_ms=float(parts @ [ms / rows for rows, ms in best]),
                    full_ms=float(parts @ [ms for _, ms in best]),
                )
            )
        return ByModel(workers, tuple(loads))

    def rates(self, demand: Demand) -> list[npt.NDArray[np.float64]]:
        """Rows per ms of each model, by its lengths."""
        found, at = [], 0
        for bins in self._bins:
            found.append(np.array(demand.mean[at : at + len(bins)]) / self._settings.slo_ms)
            at += len(bins)
        return found

    def stand_in(self) -> Seen:
        """A guess: each model fills half of its initial workers."""
        mean: list[float] = []
        for served, bins in zip(self.models, self._bins, strict=True):
            share_ms = sum(ms / rows for rows, ms in (_best_batch(line, served.slo_ms) for _, line in bins))
            mean += [0.5 * served.workers * self._settings.slo_ms / share_ms] * len(bins)
        return Seen(Demand(self.lengths, tuple(mean), tuple(mean), 0, 0.0))


def _best_batch(line: LatencyCurve, slo_ms: float) -> tuple[int, float]:
    """(rows, ms) of the batch with the cheapest row, of those that end within the SLO; of one row if none does."""
    within = [(ms / rows, rows, ms) for rows, ms in line.points if ms <= slo_ms]
    return min(within)[1:] if within else line.points[0]
