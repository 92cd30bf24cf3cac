"""Workers among the stages of a cascade. Pure.

    min sum_s f_s(n_s)   s.t.  sum_s n_s = G,  n_s >= least_s

f_s(n) is the best objective of stage s alone with n workers, per row of traffic, so that a stage is weighted by its
reach already; any solver of this package gives it. The rule of HybridServe (section V-C) is here to compare with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from arlo.errors import ConfigError

Objective = Callable[[int], float]  # of one stage, by its workers; inf where they are too few


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """Workers of each stage, and the sum of their objectives (inf: no division carries the load)."""

    workers: tuple[int, ...]
    objective: float


def divide(objectives: Sequence[Objective], workers: int, least: Sequence[int] | None = None) -> Division:
    """The best division, by a dynamic program over the stages: exact whatever the shape of f_s.

    Every f_s is asked once for each number of workers that the others' least leaves room for. Ties go to fewer workers
    for the later stage. ConfigError when there are fewer workers than the stages need.
    """
    import numpy as np

    need = tuple(least) if least is not None else (1,) * len(objectives)
    spare = workers - sum(need)
    if not objectives or len(need) != len(objectives) or min(need) < 0 or spare < 0:
        raise ConfigError(f"{workers} workers are too few for stages that need {', '.join(map(str, need))}")
    # best[g]: of the stages so far, with g spare workers; took[s][g]: how many of them stage s has.
    best, took = np.full(spare + 1, math.inf), []
    best[0] = 0.0
    for s, f in enumerate(objectives):
        values = np.array([f(need[s] + extra) for extra in range(spare + 1)])
        wanted = [spare] if s == len(objectives) - 1 else range(spare + 1)
        made, mine = np.full(spare + 1, math.inf), np.zeros(spare + 1, np.int64)
        for g in wanted:
            sums = values[: g + 1] + best[g::-1]
            mine[g] = g if s == 0 else sums.argmin()  # the first stage has all that it is given
            made[g] = sums[mine[g]]
        best = made
        took.append(mine)
    g, found = spare, []
    for s in range(len(objectives) - 1, -1, -1):
        found.append(need[s] + int(took[s][g]))
        g -= int(took[s][g])
    return Division(tuple(reversed(found)), float(best[spare]))


def proportional(
    reach: Sequence[float], latency: Sequence[float], workers: int, *, span: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Replicas R_s with R_s S_s in proportion to rho_s l_s (HybridServe section V-C); S_s: devices of a replica.

    Rounding as printed need not sum to the workers: at least one replica each, the rest by largest remainder, ties to
    the earlier stage. ConfigError when they do not suffice for one each.
    """
    size = tuple(span) if span is not None else (1,) * len(reach)
    if sum(size) > workers or min(size) < 1:
        raise ConfigError(f"{workers} workers are too few for one replica of each of {len(reach)} stages")
    weights = [r * t for r, t in zip(reach, latency, strict=True)]
    shares = [w * workers / sum(weights) / s for w, s in zip(weights, size, strict=True)]
    replicas = [max(1, math.floor(share)) for share in shares]
    while (left := workers - sum(r * s for r, s in zip(replicas, size, strict=True))) != 0:
        if left < 0:  # the least of one each took more than there is: from where the most is above its share
            over = [i for i, r in enumerate(replicas) if r > 1]
            replicas[max(over, key=lambda i: (replicas[i] - shares[i], -i))] -= 1
            continue
        fits = [i for i, s in enumerate(size) if s <= left]
        if not fits:
            break
        replicas[max(fits, key=lambda i: (shares[i] - replicas[i], -i))] += 1
    return tuple(replicas)
