"""The number of runtimes, and their maximum lengths (paper, section 3.3, "Determine the max length"). Pure.

    curve = CostCurve(points=((64, 1152.0), (128, 1681.0), (512, 4860.0)), reading="steps")
    choice = choose(curve, counts, max_runtimes=8)  # counts[n]: requests of n tokens, n = 0 .. the longest served
    choice.chosen.lengths, choice.chosen.expected_us

A request runs on the shortest runtime that takes it, so a set of maximum lengths costs, per request,

    sum over b of q(b) * cost(the shortest maximum length that is at least b)

and for each number of runtimes the cheapest set is found exactly, by dynamic programming. The paper takes every
step of the latency staircase (64, 128, ..., 512 for TensorRT and BERT): that set is evaluated for comparison.

This leaves out waiting. A request that goes to a longer runtime because the right one is busy costs more than
assumed here, and each further runtime splits the workers once more; `worthwhile` accounts for that.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from arlo.errors import ConfigError

Counts = npt.NDArray[np.int64]

PAPER_STEP = 64
"""Tokens between the maximum lengths of the paper: the staircase of TensorRT's kernels for BERT (Fig. 2)."""

LEAST_SAVING = 0.03
"""Share of the expected cost that a further runtime must save, see `worthwhile`."""

KERNEL_MULTIPLE = 8
"""Tensor cores take 16 bytes at a time: matrices whose rows are multiples of 8 half-precision numbers need no padding
or slower kernel, and the matrix of attention scores has a row of one number per token. Fits 4 TF32 numbers too."""

_MOST_CANDIDATES = 1024
_MOST_TOTAL = 2**62


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Time of one row on a static runtime over its maximum length, by measured points.

    reading, between two points: `line` interpolates. `steps` takes the next longer point's time, for
    curves that rise in steps or whose points are far apart: a length in between is known to take no longer than that,
    but nothing more, so only measured savings are counted. Below the shortest point both take its time.
    """

    points: tuple[tuple[int, float], ...]  # (tokens, microseconds), ascending
    reading: Literal["line", "steps"]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("a cost curve needs at least one measured length")
        for length, cost_us in self.points:
            if length < 1 or not math.isfinite(cost_us) or cost_us <= 0:
                raise ConfigError(f"{cost_us} us for {length} tokens is not a latency")
        if any(left[0] >= right[0] for left, right in itertools.pairwise(self.points)):
            raise ConfigError("the lengths of a cost curve must ascend, each once")

    @property
    def longest(self) -> int:
        """The longest measured length."""
        return self.points[-1][0]

    def cost_us(self, lengths: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """float64 [lengths]: microseconds of runtimes of these maximum lengths; ConfigError above the longest point."""
        at = np.asarray(lengths, np.int64)
        if at.size and int(at.max()) > self.longest:
            raise ConfigError(
                f"the latency is known up to {self.longest} tokens only, and {int(at.max())} are asked for: measure "
                f"longer ones, or serve at most {self.longest} tokens"
            )
        measured, cost = np.array([p[0] for p in self.points]), np.array([p[1] for p in self.points])
        if self.reading == "steps":
            return cost[np.searchsorted(measured, at)]
        return np.asarray(np.interp(at, measured, cost), np.float64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The cost of a set of maximum lengths over a traffic."""

    lengths: tuple[int, ...]  # ascending
    expected_us: float  # of one request, without waiting
    padded_share: float  # of the computed tokens that are padding
    shares: tuple[float, ...]  # of the requests, on each of `lengths`


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best lengths for each number of runtimes, the chosen number, and alternatives for comparison."""

    rows: tuple[Evaluation, ...]  # rows[k - 1]: the best of at most k runtimes; ends where further ones save nothing
    runtimes: int  # chosen: rows[runtimes - 1]
    max_runtimes: int
    least_saving: float
    further: Evaluation | None  # the best with one runtime more than allowed, if that saves anything
    paper: Evaluation  # every 64 tokens
    uniform: Evaluation  # as many runtimes as chosen, evenly spaced
    given: Evaluation | None  # lengths given by hand
    bound_us: float  # expected cost with a runtime for every length: no set costs less
    longest: int  # the longest length served, in tokens

    @property
    def chosen(self) -> Evaluation:
        """The lengths to build."""
        return self.rows[self.runtimes - 1]

    def saving(self, row: Evaluation) -> float:
        """Share of the cost of padding all requests to the longest length that `row` saves; negative if dearer."""
        return 1 - row.expected_us / self.rows[0].expected_us

    def marginal(self, index: int) -> float:
        """Share of the cost of rows[index - 1] that rows[index] saves; 0 for the first."""
        return 1 - self.rows[index].expected_us / self.rows[index - 1].expected_us if index else 0.0

    @property
    def why(self) -> str:
        """One sentence with the reason for this number of runtimes."""
        count, limit = self.runtimes, f"{100 * self.least_saving:g} %"
        what = "1 runtime" if count == 1 else f"{count} runtimes"
        after = self.rows[count] if count < len(self.rows) else self.further
        if after is None:
            return f"{what}: a further one would save nothing"
        more = 1 - after.expected_us / self.chosen.expected_us
        if count < len(self.rows) or more < self.least_saving:
            return f"{what}: a further one would save {100 * more:.1f} %, less than {limit}"
        return f"{what}, as many as allowed: a further one would save {100 * more:.1f} %"


def choose(
    curve: CostCurve,
    counts: Counts,
    *,
    max_runtimes: int = 8,
    least_saving: float = LEAST_SAVING,
    multiple: int = KERNEL_MULTIPLE,
    also: Iterable[int] = (),
    given: Sequence[int] | None = None,
) -> Choice:
    """The best maximum lengths for 1 to `max_runtimes` runtimes and the number that is worthwhile.

    counts: int64 [longest + 1], requests by length in tokens; the last entry is for the longest length served,
    which always gets a runtime (it may be 0). Candidates: multiples of `multiple`, the points of the curve, `also`
    (such as edges of a staircase), and the longest; very long texts double the multiple until at most 1,024 remain.

    Of sets with the same cost, the one with the fewest runtimes is taken, then the one with the longest lengths,
    compared from the longest runtime down: they take more lengths for the same time. Costs are added in whole
    nanoseconds, so ties are exact. ConfigError for empty or too large counts, and for lengths beyond the curve.
    """
    counts = _checked(counts)
    if max_runtimes < 1:
        raise ConfigError(f"max_runtimes must be 1 or more, not {max_runtimes}")
    if not 0 <= least_saving < 1:
        raise ConfigError(f"least_saving is a share from 0 to 1, not {least_saving:g}")
    longest = len(counts) - 1
    lengths = candidates(longest, multiple=multiple, also=[*also, *(point[0] for point in curve.points)])
    sets = _best_sets(curve, counts, lengths, max_runtimes + 1)
    rows = [evaluate(best, curve, counts) for best in sets]
    while len(rows) > 1 and rows[-1].expected_us >= rows[-2].expected_us:
        rows.pop()
    further = rows.pop() if len(rows) > max_runtimes else None
    runtimes = worthwhile([row.expected_us for row in rows], least_saving)
    return Choice(
        rows=tuple(rows),
        runtimes=runtimes,
        max_runtimes=max_runtimes,
        least_saving=least_saving,
        further=further,
        paper=evaluate(uniform_step(longest, PAPER_STEP), curve, counts),
        uniform=evaluate(uniform_count(longest, runtimes), curve, counts),
        given=None if given is None else evaluate(given, curve, counts),
        bound_us=_bound_us(curve, counts),
        longest=longest,
    )


def worthwhile(expected_us: Sequence[float], least_saving: float = LEAST_SAVING) -> int:
    """The number of runtimes to build, given the expected costs of 1, 2, ... of them.

    The smallest number above which no further runtimes save `least_saving` each. (Where latency never falls with the
    length, savings shrink from runtime to runtime, and the next one saves less than that. A measurement that falls
    somewhere by chance may hide a large saving behind a small one.)

    Why not all allowed ones: each runtime is built, verified and kept in memory, needs a separate instance as long
    as its texts come at all, and splits the workers. Workers that carry a load R (in workers) need about sqrt(R)
    more of them so that requests hardly wait; split into k groups, sqrt(k R) more. The (k+1)-th group thereby takes
    1 / (2 sqrt(k R)) of the load, if no request may use another group: 5.6 % for k = 8 and R = 10, 2.8 % for 40, 1.8 %
    for 100. Longer runtimes that take over reduce it. So 3 % is about the cost of a ninth runtime with the 40 GPUs of
    the paper's Fig. 11, where 16 runtimes are no better than 8.
    """
    if not expected_us:
        raise ConfigError("there is nothing to choose from")
    for index, cost in enumerate(expected_us):
        later = expected_us[index + 1 :]
        if all(other > cost * (1 - least_saving) ** (more + 1) for more, other in enumerate(later)):
            return index + 1
    return len(expected_us)


def evaluate(lengths: Sequence[int], curve: CostCurve, counts: Counts) -> Evaluation:
    """The cost of these maximum lengths; counts as in `choose`. ConfigError if the longest served length has none."""
    counts = _checked(counts)
    levels = sorted(set(lengths))
    if not levels or levels[0] < 1 or levels[-1] < len(counts) - 1:
        raise ConfigError(f"maximum lengths {levels} do not take {len(counts) - 1} tokens, the longest served")
    cost_ns = _cost_ns(curve, levels, counts)
    requests = np.diff(_up_to(counts, levels), prepend=0)
    total = int(counts.sum())
    real = int(counts @ np.arange(len(counts)))
    computed = int(requests @ np.array(levels))
    return Evaluation(
        lengths=tuple(levels),
        expected_us=int(requests @ cost_ns) / total / 1000,
        padded_share=1 - real / computed,
        shares=tuple((requests / total).tolist()),
    )


def candidates(longest: int, *, multiple: int = KERNEL_MULTIPLE, also: Iterable[int] = ()) -> tuple[int, ...]:
    """Maximum lengths to consider: multiples, `also`, and the longest; ascending, none above the longest."""
    if longest < 1 or multiple < 1:
        raise ConfigError(f"the longest length and the multiple must be 1 or more, not {longest} and {multiple}")
    named = {length for length in also if 1 <= length < longest}
    while longest // multiple > _MOST_CANDIDATES:
        multiple *= 2
    return tuple(sorted({*range(multiple, longest, multiple), *named, longest}))


def uniform_step(longest: int, step: int) -> tuple[int, ...]:
    """Every `step` tokens, and the longest: the paper's rule, 64, 128, ..., 512."""
    return (*range(step, longest, step), longest)


def uniform_count(longest: int, count: int) -> tuple[int, ...]:
    """`count` lengths evenly spaced (as in the paper's Fig. 11); fewer if there are not so many tokens."""
    return tuple(sorted({max(1, round(longest * (index + 1) / count)) for index in range(count)}))


def _checked(counts: Counts) -> Counts:
    counts = np.asarray(counts)
    if counts.ndim != 1 or len(counts) < 2 or counts.dtype.kind not in "iu":
        raise ConfigError("a length histogram is a list of whole numbers: requests of 0, 1, 2, ... tokens")
    if int(counts.min()) < 0 or counts[0] != 0 or int(counts.sum()) == 0:
        raise ConfigError("a length histogram needs requests, none of them of 0 tokens, and no negative counts")
    return np.asarray(counts, np.int64)


def _cost_ns(curve: CostCurve, lengths: Sequence[int], counts: Counts) -> Counts:
    """Costs in whole nanoseconds, so that sums over all requests are exact."""
    cost_ns = np.maximum(1, np.rint(curve.cost_us(lengths) * 1000)).astype(np.int64)
    if int(cost_ns.max()) * int(counts.sum()) >= _MOST_TOTAL:
        raise ConfigError(f"{int(counts.sum())} requests are more than can be added up: divide the counts by 1,000")
    return np.asarray(cost_ns)


def _up_to(counts: Counts, lengths: Sequence[int]) -> Counts:
    """Requests up to each of these lengths."""
    reached = np.cumsum(counts)
    return np.asarray(reached[np.minimum(lengths, len(counts) - 1)])


def _best_sets(curve: CostCurve, counts: Counts, lengths: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """The best set of at most k of the candidate lengths for k = 1 .. most, all with the last; O(k C^2).

    best[j]: the least cost of the requests up to lengths[j] with at most k runtimes, the longest of them lengths[j].
    """
    cost, reached = _cost_ns(curve, lengths, counts), _up_to(counts, lengths)
    size = len(lengths)
    # own[i, j]: cost of runtime j when i is the next shorter one. Only i < j is possible.
    own = (reached[None, :] - reached[:, None]) * cost[None, :]
    possible = np.triu(np.ones((size, size), bool), 1)
    best = reached * cost
    steps: list[npt.NDArray[np.intp]] = []  # the next shorter runtime for k = 2, 3, ...; -1: as for k - 1
    sets = [_walk(lengths, steps)]
    for _ in range(1, min(most, size)):
        total = np.where(possible, best[:, None] + own, _MOST_TOTAL)
        # The last of equals: longer lengths are preferred.
        below = size - 1 - np.argmin(total[::-1], axis=0)
        split = total[below, np.arange(size)]
        steps.append(np.where(split < best, below, -1))
        best = np.minimum(best, split)
        sets.append(_walk(lengths, steps))
    return sets


def _walk(lengths: Sequence[int], steps: Sequence[npt.NDArray[np.intp]]) -> tuple[int, ...]:
    at, found = len(lengths) - 1, [lengths[-1]]
    for below in reversed(steps):
        if below[at] >= 0:
            at = int(below[at])
            found.append(lengths[at])
    return tuple(reversed(found))


def _bound_us(curve: CostCurve, counts: Counts) -> float:
    cost_ns = _cost_ns(curve, np.arange(1, len(counts)).tolist(), counts)
    cheapest = np.minimum.accumulate(cost_ns[::-1])[::-1]
    return int(counts[1:] @ cheapest) / int(counts.sum()) / 1000
