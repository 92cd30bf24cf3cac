"""What counters of the gateway say of the traffic of a flow: roots per second, factors, exits, rows by stage. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from arlo.catalog.flow import Flow
from arlo.planning.flows.build import Exits, Factors
from arlo.planning.flows.demand import Demand, LiveFactors

MAX_GAP_S = 20.0  # after a longer silence what was counted before says nothing of now


@dataclasses.dataclass(frozen=True, slots=True)
class VariantCounts:
    """Of one variant, since the gateway's start."""

    answered: int
    ended: int  # of these, rows whose way ends there
    made: tuple[int, ...]  # rows that became of these, by edge to a stage, in the flow's order


@dataclasses.dataclass(frozen=True, slots=True)
class StageCounts:
    """Of one stage, since the gateway's start."""

    arrived: int  # rows that came to it, whatever became of them
    variants: tuple[VariantCounts, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a plan is made for."""

    demand: float  # roots per second
    factors: Factors
    exits: Exits
    stages: tuple[float, ...] | None  # rows per second of each stage of the flow; None: not known yet


class FlowTraffic:
    """Counters in, Traffic out. Factors and exits begin at the flow's own, which count as 50 rows do."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._edges = [[e for e in flow.out(s) if flow.edges[e].head is not None] for s in flow.order]
        self._demands = [Demand() for _ in flow.order]
        self._factors = LiveFactors(flow)
        self._exits: dict[tuple[int, int], tuple[float, float]] = {}  # answered, ended; both forgotten as factors are
        self._last: tuple[float, float, tuple[StageCounts, ...]] | None = None  # at, started, counts

    def add(self, at_s: float, started_s: float, counts: Sequence[StageCounts]) -> None:
        """Counters, stage by stage in the flow's order, at a moment of a clock that never goes back. They begin again
        with another `started_s`. Moments less than a second after the last one that counted are passed over."""
        stages, last = tuple(counts), self._last
        if len(stages) != len(self._flow.order):
            return
        if last is None or last[1] != started_s or at_s - last[0] > MAX_GAP_S:
            self._last = at_s, started_s, stages
            return
        took_s = at_s - last[0]
        if took_s < 1.0:
            return
        self._last = at_s, started_s, stages
        for at, (now, before) in enumerate(zip(stages, last[2], strict=True)):
            self._stage(at, now, before, took_s)

    def _stage(self, at: int, now: StageCounts, before: StageCounts, took_s: float) -> None:
        came = max(now.arrived - before.arrived, 0)
        for _ in range(round(took_s)):  # after a pause each second of it
            self._demands[at].add(came / took_s)
        stage = self._flow.order[at]
        for k, (one, old) in enumerate(zip(now.variants, before.variants, strict=False)):
            answered = one.answered - old.answered
            if answered <= 0 or k >= len(self._flow.stages[stage].variants):
                continue
            for edge, made, had in zip(self._edges[at], one.made, old.made, strict=False):
                self._factors.add(edge, k, answered, max(made - had, 0))
            if self._edges[at]:
                self._exit(stage, k, answered, max(one.ended - old.ended, 0))

    def _exit(self, stage: int, k: int, answered: int, ended: int) -> None:
        keep = self._factors.keep
        had_answered, had_ended = self._exits.get((stage, k), (0.0, 0.0))
        self._exits[stage, k] = had_answered * keep + answered, had_ended * keep + ended

    def seen(self) -> Traffic:
        """Until now. Roots are 0 per second before two moments were counted."""
        prior = self._factors.prior
        rates = tuple(demand.rate() for demand in self._demands)
        by_stage = [0.0] * len(rates)
        for stage, rate in zip(self._flow.order, rates, strict=True):
            by_stage[stage] = rate
        return Traffic(
            demand=rates[0],
            factors=self._factors.factors(),
            exits={
                (stage, k): (prior * self._flow.exit_share(stage, k) + ended) / (prior + answered)
                for (stage, k), (answered, ended) in self._exits.items()
            },
            stages=tuple(max(rate, 1e-3) for rate in by_stage) if self._last is not None and any(rates) else None,
        )
