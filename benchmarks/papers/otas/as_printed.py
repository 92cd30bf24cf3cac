"""The policies that OTAS, section V, compares on one worker: Algorithms 1 to 3 with the rates of Table I, and INFaaS.

The product's `printed` (src/solve/tokens) has the same algorithms; its f of the rate comes from the latency profile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.simulator.report.result import Figures
from arlo.simulator.tokens.file import TokenSpec
from arlo.simulator.tokens.served import MS_NS, S_NS, figures_of

# (queries per second, tokens up to it); from the last one on the fewest tokens.
TABLE_I = ((280, 8), (320, 4), (350, 2), (380, 0), (450, -5), (520, -10), (1000, -15))
LOOKED_AT = 32  # batches, most urgent first
LOAD_NS = S_NS  # for which INFaaS loads another model


@dataclasses.dataclass(slots=True)
class Waiting:
    """A batch of Algorithm 1: numbers of queries, and the values that the next query is compared with."""

    rows: list[int]
    arrived: int
    deadline: int
    utility: float


# Which batch starts, and its token count; chosen from the batches by deadline, the rate, all waiting and the time.
Choice = tuple[int, int] | None
Rule = Callable[[Sequence[Waiting], float, int, int], Choice]


class Stream:
    """Queries of a body on one worker."""

    def __init__(self, spec: TokenSpec, arrived: NDArray[np.int64], kind: NDArray[np.uint16]) -> None:
        self.spec = spec
        self.arrived = arrived
        self.kind = kind
        self.deadline = arrived + np.array([round(query.slo_ms * MS_NS) for query in spec.queries])[kind]
        self.worth = np.array([query.utility for query in spec.queries])[kind]
        self.accuracy = np.array([spec.accuracy[query.task] for query in spec.queries])[kind]  # [queries, counts]
        rows = np.arange(spec.batch + 1)
        self.took = np.array(  # [counts, rows] ns
            [np.interp(rows, *np.array(variant.latency).T) * MS_NS for variant in spec.variants]
        ).astype(np.int64)

    def serve(self, rule: Rule, *, switch: int = 0) -> Figures:
        """Serve all queries; returns their figures. `switch`: ns that a change of count between batches costs."""
        count = np.full(len(self.arrived), -1)
        begun = self.arrived.copy()
        ended = np.full(len(self.arrived), np.iinfo(np.int64).max)
        waiting: list[Waiting] = []
        now, came, last = 0, 0, -1
        while came < len(self.arrived) or waiting:
            if not waiting:
                now = max(now, int(self.arrived[came]))
            while came < len(self.arrived) and self.arrived[came] <= now:
                self.put(waiting, came)
                came += 1
            ordered = sorted(waiting, key=lambda batch: batch.deadline)[:LOOKED_AT]
            self.leave_out(waiting, ordered, now + int(self.took[:, 1].min()))
            ordered = [batch for batch in ordered if batch.rows]
            choice = rule(ordered, self.rate(now, came), len(waiting), now) if ordered else None
            if choice is None:  # nothing until another query comes, or one can be in time no more
                later = [*(batch.deadline for batch in ordered), *(int(at) for at in self.arrived[came : came + 1])]
                now = max(now + 1, min(later, default=now))
                continue
            batch, tokens = ordered[choice[0]], choice[1]
            while batch.rows and self.leave_out(waiting, [batch], now + int(self.took[tokens, len(batch.rows)])):
                pass
            if not batch.rows:
                continue
            end = now + int(self.took[tokens, len(batch.rows)]) + (switch if last not in (-1, tokens) else 0)
            count[batch.rows], begun[batch.rows], ended[batch.rows] = tokens, now, end
            waiting.remove(batch)
            now, last = end, tokens
        columns = {
            "arrived_ns": self.arrived,
            "runtime": count,
            "outcome": np.where(ended <= self.deadline, 0, 1),
            "length": np.ones(len(count), np.int64),
            "worker": np.zeros(len(count), np.int64),
            "wait_ns": begun - self.arrived,
        }
        return figures_of(self.spec, columns, self.kind, 0)

    def put(self, waiting: list[Waiting], query: int) -> None:
        """Algorithm 1: into the newest batch that is near enough, or one more. As in _core.tokens_batch."""
        spec = self.spec
        at, due, worth = int(self.arrived[query]), int(self.deadline[query]), float(self.worth[query])
        for batch in reversed(waiting):
            if batch.arrived + spec.delta_ms * MS_NS < at:
                break
            near = abs(batch.deadline - due) <= spec.eta_ms * MS_NS and abs(batch.utility - worth) <= spec.mu
            if near and len(batch.rows) < spec.batch:
                batch.rows.append(query)
                batch.deadline = min(batch.deadline, due)
                return
        waiting.append(Waiting([query], at, due, worth))

    def leave_out(self, waiting: list[Waiting], batches: Sequence[Waiting], end: int) -> bool:
        """Evict queries that would be late when ending at `end`; returns whether any were."""
        evicted = False
        for batch in batches:
            if end <= batch.deadline:
                continue
            kept = [query for query in batch.rows if end <= self.deadline[query]]
            evicted = evicted or len(kept) < len(batch.rows)
            batch.rows = kept
            if kept:
                batch.deadline = int(min(self.deadline[kept]))
            else:
                waiting.remove(batch)
        return evicted

    def rate(self, now: int, came: int) -> float:
        """Queries a second, over the last window_s."""
        window = min(max(now - int(self.arrived[0]), S_NS // 32), round(self.spec.window_s * S_NS))
        return float(came - np.searchsorted(self.arrived, now - window)) * S_NS / window


def for_rate(table: Sequence[tuple[float, int]], rate: float, beyond: int) -> int:
    """The entry of the first rate in the table above this one, else `beyond`."""
    return next((entry for below, entry in table if rate < below), beyond)


def otas(spec: TokenSpec, arrived: NDArray[np.int64], kind: NDArray[np.uint16]) -> Figures:
    """Algorithm 3 while few batches wait and at the start, Algorithm 2 otherwise."""
    stream = Stream(spec, arrived, kind)
    table = [(rate, spec.tokens.index(tokens)) for rate, tokens in TABLE_I]

    def rule(ordered: Sequence[Waiting], rate: float, all_batches: int, now: int) -> Choice:
        queue = []
        for batch in ordered:
            utility = stream.worth[batch.rows] @ stream.accuracy[batch.rows]
            took = stream.took[:, len(batch.rows)]
            options = [(int(t), float(u), batch.deadline + 1) for t, u in zip(took, utility, strict=True)]
            queue.append((options, float(stream.worth[batch.rows].mean())))
        if all_batches <= spec.beta or now < arrived[0] + spec.initial_s * S_NS:
            plan = _core.tokens_manual(now, queue, for_rate(table, rate, 0), spec.kappa)
        else:
            plan = _core.tokens_printed(now, queue)
        return next(((at, count) for at, count in enumerate(plan[0]) if count >= 0), None)

    return stream.serve(rule)


def infaas(
    spec: TokenSpec, arrived: NDArray[np.int64], kind: NDArray[np.uint16], table: Sequence[tuple[float, int]]
) -> Figures:
    """The most urgent batch on the variant, one of several models, that `table` has for the rate. No hysteresis."""
    stream = Stream(spec, arrived, kind)
    return stream.serve(lambda _ordered, rate, _all, _now: (0, for_rate(table, rate, 0)), switch=LOAD_NS)
