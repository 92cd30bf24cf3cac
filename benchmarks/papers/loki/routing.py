"""Routing of rows to the next pool: tables of probabilities, from rates and live capacities.

`maf`, MostAccurateFirst, as printed (Loki, Algorithm 1): stage by stage, the pools that bring rows in, best first, fill
the pools of the next stage, best first. Where the text is ambiguous: the factor is that of the pool's own variant; a
pair whose path would be too long is left out; rows that fit nowhere are spread by capacity, and the table is marked
`overloaded`; at equal accuracy the lower number goes first; a pool without rows spreads them by capacity.

`plan` keeps to the plan's shares: every path gets its part of the rows, and what a pool cannot carry now flows to the
other pools of the same paths, filled evenly (water-filling).

Capacities are rows per second. Pools of one variant and batch cap are one pool, however many instances it has. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from arlo.catalog.flow_accuracy import joined_accuracy
from arlo.planning.flows.build import Factors
from arlo.planning.flows.problem import FlowPlan

Fill = Callable[[int, int, float, list[int]], None]  # (source, stage, rows, targets): sends a pool's rows to a stage
FRONT = -1  # where rows come from that have not run yet


@dataclasses.dataclass(frozen=True, slots=True)
class Routing:
    """The routing tables of a plan, and its rates by pool."""

    tables: Mapping[tuple[int, int], tuple[tuple[int, float], ...]]  # (pool or FRONT, stage) -> (pool, probability)
    incoming: tuple[float, ...]  # by pool: rows per second
    backup: tuple[tuple[int, float], ...]  # pools with room left, and how much: the most accurate first
    overloaded: frozenset[int]  # stages where rows fit nowhere


class _Filling:
    """Pools while they are being filled, stage by stage."""

    def __init__(self, plan: FlowPlan, capacity: Sequence[float] | None) -> None:
        self.plan = plan
        self.whole = list(capacity) if capacity is not None else [pool.capacity for pool in plan.pools]
        self.room = list(self.whole)
        self.incoming = [0.0] * len(plan.pools)
        self.tables: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        self.overloaded: set[int] = set()

    def run(
        self, demand: float, factors: Factors | None, fill: Callable[[int, int, float, list[int]], None]
    ) -> Routing:
        """Fill pools stage by stage, the most accurate first."""
        plan, flow = self.plan, self.plan.flow
        if targets := best_first(plan, flow.entry):
            fill(FRONT, flow.entry, demand, targets)
        for stage in flow.order:
            for source in best_first(plan, stage):
                for child in flow.children(stage):
                    edge = flow.parent_edge[child]
                    assert edge is not None
                    key = edge, plan.pools[source].variant
                    rows = self.incoming[source] * (factors or {}).get(key, flow.factor(*key))
                    if targets := [i for i in best_first(plan, child) if _pair(plan, source, i)]:
                        fill(source, child, rows, targets)
        left = tuple((i, self.room[i]) for stage in flow.order for i in best_first(plan, stage) if self.room[i] > 1e-9)
        return Routing(self.tables, tuple(self.incoming), left, frozenset(self.overloaded))

    def send(self, sent: dict[int, float], pool: int, rows: float) -> float:
        """Send as many rows as the pool has room for; returns the rest."""
        take = min(rows, self.room[pool])
        sent[pool] = sent.get(pool, 0.0) + take
        self.room[pool] -= take
        return rows - take

    def close(self, key: tuple[int, int], rows: float, sent: dict[int, float], left: float, targets: list[int]) -> None:
        """Write the table; remaining rows are spread by capacity."""
        by = sum(self.whole[i] for i in targets)
        spread = {i: self.whole[i] / by if by > 0 else 1 / len(targets) for i in targets}
        if left > 1e-9 * rows:
            self.overloaded.add(key[1])
            for i, part in spread.items():
                sent[i] = sent.get(i, 0.0) + part * left
        for i, rate in sent.items():
            self.incoming[i] += rate
        self.tables[key] = _exact(sent) if rows > 0 else _exact(spread)


def maf(
    plan: FlowPlan, demand: float, capacity: Sequence[float] | None = None, factors: Factors | None = None
) -> Routing:
    """MostAccurateFirst on a plan's pools. `capacity` [pools]: their present capacities; None: those of the plan."""
    state = _Filling(plan, capacity)

    def fill(source: int, stage: int, rows: float, targets: list[int]) -> None:
        sent: dict[int, float] = {}
        left = rows
        for i in targets:
            left = state.send(sent, i, left)
        state.close((source, stage), rows, sent, left, targets)

    return state.run(demand, factors, fill)


def by_plan(
    plan: FlowPlan, demand: float, capacity: Sequence[float] | None = None, factors: Factors | None = None
) -> Routing:
    """The plan's shares, filled into the capacities that are there now. `capacity` as for `maf`."""
    state = _Filling(plan, capacity)
    wanted: dict[tuple[int, int], dict[int, float]] = {}
    for route in plan.routes:
        source = route.pools[-2] if len(route.pools) > 1 else FRONT
        parts = wanted.setdefault((source, route.stage), {})
        parts[route.pools[-1]] = parts.get(route.pools[-1], 0.0) + route.share

    def fill(source: int, stage: int, rows: float, targets: list[int]) -> None:
        parts = wanted.get((source, stage)) or {i: state.whole[i] for i in targets}
        total = sum(parts.values())
        sent: dict[int, float] = {}
        left = rows
        for i, part in parts.items():
            aim = rows * part / total if total > 0 else 0.0
            left -= aim - state.send(sent, i, aim)
        for i, more in _water(targets, state.room, state.whole, left).items():
            left -= more - state.send(sent, i, more)
        state.close((source, stage), rows, sent, max(left, 0.0), targets)

    return state.run(demand, factors, fill)


def accuracy(plan: FlowPlan, routing: Routing) -> float:
    """Accuracy of rows that follow the tables: the mean over the exits, for paths whose accuracy is a product."""
    flow = plan.flow
    leaves = [stage for stage in range(len(flow.stages)) if not flow.children(stage)]
    total = 0.0
    for leaf in leaves:
        line = flow.line(leaf)
        paths: list[tuple[tuple[int, ...], float, float]] = [((), 1.0, 1.0)]  # pools, share, accuracy
        for stage in line:
            paths = [
                ((*path, i), share * p, right * flow.stages[stage].accuracy(plan.pools[i].variant))
                for path, share, right in paths
                for i, p in routing.tables.get((path[-1] if path else FRONT, stage), ())
            ]
        total += joined_accuracy(flow, leaf) * sum(share * right for _, share, right in paths) / len(leaves)
    return total


def best_first(plan: FlowPlan, stage: int) -> list[int]:
    """Pools of a stage, the most accurate first."""
    mine = [i for i, pool in enumerate(plan.pools) if pool.stage == stage]
    return sorted(mine, key=lambda i: (-plan.flow.stages[stage].accuracy(plan.pools[i].variant), i))


def _pair(plan: FlowPlan, source: int, target: int) -> bool:
    """Whether a path that is short enough has both, one after the other."""
    return any((source, target) in itertools.pairwise(path) for path in plan.feasible)


def _water(targets: Sequence[int], room: Sequence[float], whole: Sequence[float], rows: float) -> dict[int, float]:
    """Rows into pools with room, so that the emptiest, as a share of its capacity, is filled first."""
    taken = dict.fromkeys(targets, 0.0)
    if rows <= 0:
        return taken
    order = sorted((i for i in targets if room[i] > 0), key=lambda i: (-room[i] / whole[i], i))
    wet = 0.0  # capacity of the pools that are being filled
    for at, i in enumerate(order):
        free, wet = room[i] / whole[i], wet + whole[i]
        after = room[order[at + 1]] / whole[order[at + 1]] if at + 1 < len(order) else 0.0
        pour = min(rows, (free - after) * wet)
        for j in order[: at + 1]:
            taken[j] += pour * whole[j] / wet
        rows -= pour
        if rows <= 0:
            break
    return taken


def _exact(entries: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Probabilities that add up to 1."""
    total = sum(entries.values())
    return tuple((i, p / total) for i, p in entries.items() if p > 0)
