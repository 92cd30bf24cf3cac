"""HybridServe's operating points, skips and benefits as printed (sections IV-B, IV-C, Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.decide import Floats
from arlo.cascade.search import ladder, points, sampling, skips
from arlo.cascade.search.find import SELECT, with_skips
from arlo.cascade.search.table import Table
from arlo.cascade.spec import Rules, ScoreKind
from arlo.cascade.study import Study

SkipKind = Literal["benefit", "uniform", "log", "off"]
PointName = Literal["ap", "eo"]
LOG_FLOOR = 1e-3


def point(study: Study, name: PointName, *, skip: SkipKind = "benefit", tolerance: float = 0.0, seed: int = 0) -> Rules:
    """Sampled thresholds of the point AP or EO on the select split, with skips if they cost less there."""
    select = study.of(SELECT)
    table = select.table()
    front = sampling.search(table, seed=seed)
    ap = points.accuracy_point(front, table, giant=select.giant == select.truth, tolerance=tolerance, seed=seed)
    at = len(front) - 1 if ap is None else ap
    if name == "eo":
        bend = points.efficient_point(front, table)
        at = at if bend is None else bend
    thresholds = front.thresholds[at]
    rules = Rules(prices=(ladder.as_rules(thresholds),))
    if skip == "off" or study.stages < 3:
        return rules
    if skip == "benefit":
        cuts = skips.by_benefit(table, thresholds, ladder.slope_at(front, at))
    else:
        labels = len(select.cascade.labels)
        cuts = tuple(
            spaced(
                float(thresholds[s]),
                select.stages - 1 - s,
                floor_of(stage.score, labels, squared=stage.scale == "prob2"),
                log=skip == "log",
            )
            for s, stage in enumerate(select.cascade.stages[:-1])
        )
    return with_skips(select, rules, cuts, tolerance=tolerance)


def floor_of(score: ScoreKind, labels: int, *, squared: bool) -> float:
    """The lowest possible confidence: 1/C for the largest of C probabilities, and 0 for other scores."""
    low = 1 / labels if score == "max" and labels > 0 else 0.0
    return low * low if squared else low


def spaced(t: float, successors: int, floor: float = 0.0, *, log: bool = False) -> tuple[float, ...]:
    """Cuts of [floor, t] into as many parts as there are later stages, even, or even in the logarithm."""
    shares = np.arange(1, successors) / successors
    t = min(t, 1.0)
    if log:
        low = min(max(floor, LOG_FLOOR), t)
        return tuple((low * (t / low) ** shares).tolist() if low > 0 else [0.0] * (successors - 1))
    low = min(floor, t)
    return tuple((low + (t - low) * shares).tolist())


def reach(table: Table, thresholds: ArrayLike) -> Floats:
    """Share of rows that run on each stage."""
    exits = table.exits(thresholds)
    return np.array([(exits >= s).mean() for s in range(table.stages)])


def printed_benefits(rho: Sequence[float], e: Sequence[float]) -> list[float]:
    """Benefit of each stage but the last (Algorithm 2, lines 1-4), from reach and cost of each:
    (rho_i - rho_(i+1)) e_(i+1) - rho_i e_i. It does not ask where the rows of a removed stage go."""
    return [(rho[i] - rho[i + 1]) * e[i + 1] - rho[i] * e[i] for i in range(len(rho) - 1)]
