"""Chooses the engines to keep of a model at several maximum lengths and token counts, both together. Pure.

An engine is a pair (maximum length, tokens that a layer adds or merges away) with a time and, by the length of the
row, an accuracy. A row of b tokens takes the kept engine, of those it fits, for which

    time + worth x (accuracy that the best engine of all has at b - accuracy of this one at b)

is least: `worth` is the time that a point of accuracy may cost. For each number of engines, the set with the least mean
over the rows is found among all sets (of at most MOST pairs), as in arlo.planning.lengths.choice for lengths alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError

MOST = 20  # pairs; they have a million sets
_AT_ONCE = 1 << 14  # sets
POINT = 0.01  # one point of accuracy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One pair. `accuracy`: (rows up to so many tokens, share that is right), ascending; the last is its length."""

    length: int
    tokens: int
    time_us: float  # of a row
    accuracy: tuple[tuple[int, float], ...]
    name: str = ""

    def right(self, row: int) -> float:
        """Accuracy for a row of that many tokens, which the engine takes."""
        return next(value for end, value in self.accuracy if row <= end)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A set of engines; `time_us`, `accuracy`: means over the rows."""

    engines: tuple[Engine, ...]
    cost_us: float  # with the cost of lost accuracy
    time_us: float
    accuracy: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PairChoice:
    """`best`: for each number of engines, from 1; `chosen` is one of them. `dominated`: engines in no set, each with
    the one that beats it: they are nowhere more accurate, and not quicker."""

    best: tuple[Kept, ...]
    chosen: Kept
    dominated: tuple[tuple[Engine, Engine], ...]


def choose_pairs(
    engines: Sequence[Engine],
    counts: Mapping[int, float],
    *,
    worth_us: float,
    most: int = 8,
    least_saving: float = 0.03,
) -> PairChoice:
    """counts: rows by their tokens; rows longer than all engines count as that long. worth_us: of a point of
    accuracy. A further engine must save `least_saving` of the mean cost. ConfigError if there are too many pairs."""
    dominated, left = _dominated(engines)
    if len(left) > MOST:
        raise ConfigError(f"{len(left)} pairs of length and tokens are too many to choose among: give at most {MOST}")
    longest = max(engine.length for engine in left)
    rows = sorted({min(row, longest) for row, count in counts.items() if count > 0})
    share = np.array([sum(count for row, count in counts.items() if min(row, longest) == end) for end in rows], float)
    share /= share.sum()
    fits = np.array([[row <= engine.length for row in rows] for engine in left])
    right = np.array([[engine.right(row) if row <= engine.length else 0.0 for row in rows] for engine in left])
    time = np.array([engine.time_us for engine in left])[:, None]
    cost = np.where(fits, time + worth_us / POINT * (right.max(0) - right), np.inf)
    # Rows that all engines treat equally are one.
    _, first, group = np.unique(cost, axis=1, return_index=True, return_inverse=True)
    share = np.bincount(group.ravel(), share).astype(np.float64)
    cost, right = cost[:, first], right[:, first]
    best = []
    for number in range(1, min(most, len(left)) + 1):
        found = _best_of(cost, share, number)
        if found is None:
            continue
        which = cost[found].argmin(0)
        taken = np.array(found)[which]
        at = np.arange(len(share))
        best.append(
            Kept(
                engines=tuple(sorted((left[i] for i in found), key=lambda each: (each.length, -each.tokens))),
                cost_us=float(cost[taken, at] @ share),
                time_us=float(time[taken, 0] @ share),
                accuracy=float(right[taken, at] @ share),
            )
        )
    chosen = best[0]
    for before, each in itertools.pairwise(best):
        if before.cost_us - each.cost_us < least_saving * before.cost_us:
            break
        chosen = each
    return PairChoice(best=tuple(best), chosen=chosen, dominated=tuple(dominated))


def _dominated(engines: Sequence[Engine]) -> tuple[list[tuple[Engine, Engine]], list[Engine]]:
    """Pairs of engines of the same length in which the second beats the first, and the unbeaten engines."""
    left = sorted(engines, key=lambda each: (each.length, each.time_us, -each.tokens))
    dominated: list[tuple[Engine, Engine]] = []
    for one in list(left):
        ends = [end for end, _ in one.accuracy]
        for other in left:
            no_worse = other is not one and other.length == one.length and other.time_us <= one.time_us
            if no_worse and all(other.right(end) >= one.right(end) for end in ends):
                left.remove(one)
                dominated.append((one, other))
                break
    return dominated, left


def _best_of(cost: NDArray[np.float64], share: NDArray[np.float64], number: int) -> list[int] | None:
    """The engines of the cheapest set of that size; None: no set takes all rows."""
    least, found = np.inf, None
    sets = itertools.combinations(range(len(cost)), number)
    while chunk := list(itertools.islice(sets, _AT_ONCE)):
        each = cost[np.array(chunk)].min(1) @ share
        at = int(each.argmin())
        if each[at] < least:
            least, found = float(each[at]), list(chunk[at])
    return found
