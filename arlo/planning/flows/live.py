"""The traffic of a flow from the gateway's counters: roots per second, factors, exits, rows by stage. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from arlo.catalog.flow import Flow
from arlo.planning.flows.build import Exits, Factors
from arlo.planning.flows.demand import Demand, LiveFactors
from arlo.planning.flows.window import WINDOW_S, Second

MAX_GAP_S = 20.0  # after a longer silence, earlier counts say nothing of the present


@dataclasses.dataclass(frozen=True, slots=True)
class VariantCounts:
    """Counters of one variant since the gateway's start."""

    answered: int
    ended: int  # of these, rows whose journey ends there
    made: tuple[int, ...]  # rows made from these, by edge to a stage, in the flow's order


@dataclasses.dataclass(frozen=True, slots=True)
class StageCounts:
    """Counters of one stage since the gateway's start."""

    arrived: int  # rows that came to it, with any outcome
    variants: tuple[VariantCounts, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The input of a plan."""

    demand: float  # roots per second
    factors: Factors
    exits: Exits
    window: tuple[Second, ...] = ()  # the last seconds, compared with the plans in force, oldest first


class FlowTraffic:
    """Counters in, Traffic out. Factors and exits start from the flow's, which count as 50 rows do."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._edges = [[e for e in flow.out(s) if flow.edges[e].head is not None] for s in flow.order]  # as counted
        self._demand = Demand()
        self._factors = LiveFactors(flow)
        self._exits: dict[tuple[int, int], tuple[float, float]] = {}  # answered, ended; both forgotten as factors are
        self._last: tuple[float, float, tuple[StageCounts, ...]] | None = None  # at, started, counts
        self._place = {stage: at for at, stage in enumerate(flow.order)}
        self._planned: tuple[float, Factors] | None = None  # demand and factors at the last plan
        self._window: collections.deque[Second] = collections.deque(maxlen=WINDOW_S)

    def add(self, at_s: float, started_s: float, counts: Sequence[StageCounts]) -> None:
        """Add counters, stage by stage in the flow's order, at a moment of a clock that never goes back. A new
        `started_s` means that they restarted. Moments less than a second after the last counted one are ignored."""
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
        if self._planned is not None:
            self._window.extend([self._second(stages, last[2], took_s)] * round(took_s))

    def planned(self) -> None:
        """Record that a plan was made for the traffic so far: later seconds are compared with it."""
        rate = self._demand.rate()
        self._planned = (rate, self._factors.factors()) if rate > 0 else None

    def _second(self, stages: Sequence[StageCounts], last: Sequence[StageCounts], took_s: float) -> Second:
        """Rows relative to those that the plan's demand and factors predict, for the variants that were used."""
        assert self._planned is not None
        rate, factors = self._planned
        roots = max(stages[0].arrived - last[0].arrived, 0) / took_s
        load = [roots / rate] * len(stages)
        for at, edges in enumerate(self._edges):
            pairs = list(zip(stages[at].variants, last[at].variants, strict=False))
            for i, edge in enumerate(edges):
                if not self._flow.of_tree(edge):
                    continue
                made = sum(now.made[i] - old.made[i] for now, old in pairs)
                meant = sum(
                    (now.answered - old.answered) * factors.get((edge, k), self._flow.factor(edge, k))
                    for k, (now, old) in enumerate(pairs)
                )
                head = self._flow.edges[edge].head
                assert head is not None
                more = made / meant if meant > 0 else 1.0
                load[self._place[self._flow.index[head]]] = load[at] * max(more, 0.0)
        return Second(roots, tuple(load))

    def _stage(self, at: int, now: StageCounts, before: StageCounts, took_s: float) -> None:
        came = max(now.arrived - before.arrived, 0)
        if at == 0:
            for _ in range(round(took_s)):  # after a pause, once for each second of it
                self._demand.add(came / took_s)
        stage = self._flow.order[at]
        joined = [i for i, edge in enumerate(self._edges[at]) if self._flow.edges[edge].join]
        for i in joined:  # a joined row is made from rows of several variants: counted for all of them together
            pairs = list(zip(now.variants, before.variants, strict=False))
            answered = sum(one.answered - old.answered for one, old in pairs)
            made = sum(one.made[i] - old.made[i] for one, old in pairs)
            if answered > 0 and self._flow.of_tree(self._edges[at][i]):
                for k in range(len(self._flow.stages[stage].variants)):
                    self._factors.add(self._edges[at][i], k, answered, max(made, 0))
        for k, (one, old) in enumerate(zip(now.variants, before.variants, strict=False)):
            answered = one.answered - old.answered
            if answered <= 0 or k >= len(self._flow.stages[stage].variants):
                continue
            for i, (edge, made, had) in enumerate(zip(self._edges[at], one.made, old.made, strict=False)):
                if i not in joined:
                    self._factors.add(edge, k, answered, max(made - had, 0))
            if self._edges[at]:
                self._exit(stage, k, answered, max(one.ended - old.ended, 0))

    def _exit(self, stage: int, k: int, answered: int, ended: int) -> None:
        keep = self._factors.keep
        had_answered, had_ended = self._exits.get((stage, k), (0.0, 0.0))
        self._exits[stage, k] = had_answered * keep + answered, had_ended * keep + ended

    def seen(self) -> Traffic:
        """The traffic until now. Roots are 0 per second until two moments were counted."""
        prior = self._factors.prior
        return Traffic(
            demand=self._demand.rate(),
            factors=self._factors.factors(),
            exits={
                (stage, k): (prior * self._flow.exit_share(stage, k) + ended) / (prior + answered)
                for (stage, k), (answered, ended) in self._exits.items()
            },
            window=tuple(self._window),
        )


def drawn(flow: Flow, roots: Sequence[int], random: np.random.Generator) -> tuple[Second, ...]:
    """The window of a served flow with these roots, second by second: with plans every `plan_period_s`, and children
    drawn from a Poisson distribution around the means of the first variants."""
    traffic, period = FlowTraffic(flow), max(round(flow.plan_period_s), 1)
    came, made = [0] * len(flow.stages), [0] * len(flow.edges)
    for at, count in enumerate([0, *roots]):
        new = {flow.entry: count}
        counts = []
        for stage in flow.order:
            came[stage] += new[stage]
            for edge in flow.out(stage):
                if (head := flow.edges[edge].head) is not None and flow.of_tree(edge):
                    new[flow.index[head]] = int(random.poisson(new[stage] * flow.factor(edge, 0)))
                    made[edge] += new[flow.index[head]]
            rows = tuple(made[edge] for edge in flow.out(stage) if flow.edges[edge].head is not None)
            counts.append(StageCounts(came[stage], (VariantCounts(came[stage], came[stage], rows),)))
        traffic.add(float(at), 0.0, counts)
        if at % period == 0:
            traffic.planned()
    return traffic.seen().window
