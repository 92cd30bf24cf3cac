"""Token schedules chosen layer by layer: no more multiplications than a constant schedule has, at the least loss.

OTAS (arXiv 2401.05031, section III-B) lets every layer lose as many tokens. Here layers may differ: what is known is
the loss of each layer by the tokens that come to it and the tokens that it merges, and the sum of the layers' losses
is the least that a budget of multiplications allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.schedule import merged_multiplications

Losses = NDArray[np.float64]
_PRICES = 60  # halvings of the price of a multiplication
_EQUAL = 1e-12  # of the loss: less is rounding


class Chosen(NamedTuple):
    """A schedule [layers], and the sum of its layers' losses."""

    schedule: tuple[int, ...]
    loss: float


class _Labels(NamedTuple):
    """Ways to the end of a layer, [labels] each: tokens left, multiplications, loss; whence, and what was merged."""

    tokens: NDArray[np.int64]
    work: NDArray[np.float64]
    loss: Losses
    parent: NDArray[np.int64]
    merged: NDArray[np.int64]


def loss_of(losses: Losses, schedule: Sequence[int]) -> float:
    """The sum of the layers' losses; losses as of `best_schedule`."""
    tokens, total = losses.shape[1] - 1, 0.0
    for layer, merged in enumerate(schedule):
        total += float(losses[layer, tokens, merged])
        tokens -= merged
    return total


def best_schedule(losses: Losses, constant: Sequence[int], *, width: int, protected: int) -> Chosen:
    """The schedule of least loss with at most the multiplications of `constant`, which is kept where none is better.

    losses: [layers, tokens + 1, most + 1], of each layer by the tokens that come to it and those that it merges.
    constant: [layers], feasible. A layer merges at most half of the tokens that are not protected.

    Exact: labels (tokens left, multiplications, loss), without those that another one dominates, and without those
    that a price of multiplications shows to end no better than what is known already.
    """
    problem = _Problem(losses, constant, width, protected)
    best, bound = problem.priced(Chosen(tuple(constant), loss_of(losses, constant)))
    return problem.searched(best, *bound)


class _Problem:
    def __init__(self, losses: Losses, constant: Sequence[int], width: int, protected: int) -> None:
        self.losses, (self.layers, count, most) = losses, losses.shape
        before, merged = np.arange(count)[:, None], np.arange(most)[None, :]
        allowed = merged <= np.maximum(0, (before - protected) // 2)
        self.after = np.maximum(0, before - merged)
        work = 4.0 * before * width**2 + 2.0 * before**2 * width + 8.0 * self.after * width**2
        self.work = np.where(allowed, work, np.inf)
        self.tokens = count - 1
        self.budget = merged_multiplications(self.tokens, constant, width=width)

    def rest(self, price: float, *, loss: float = 1.0) -> list[Losses]:
        """The least loss (times `loss`) plus price of multiplications from each layer on, by the tokens that come to
        it, [layers + 1][tokens + 1]."""
        found = [np.zeros(self.tokens + 1)]
        for layer in reversed(range(self.layers)):
            found.append((loss * self.losses[layer] + price * self.work + found[-1][self.after]).min(1))
        return found[::-1]

    def priced(self, best: Chosen) -> tuple[Chosen, tuple[float, list[Losses]]]:
        """The best schedule that a price of multiplications leads to, or `best`; and the price, with `rest` at it, that
        bounds the loss the most."""
        low, high = 0.0, 1.0 / self.budget * max(1e-9, float(self.losses.max()))
        bound, bounded, doubling = (0.0, self.rest(1e-300)), -np.inf, True
        for _ in range(_PRICES):
            price = high if doubling else (low + high) / 2
            rest = self.rest(price)
            if (said := rest[0][self.tokens] - price * self.budget) > bounded:
                bounded, bound = said, (price, rest)
            found, work = self._way(price, rest)
            fits = work <= self.budget
            if fits and found.loss < best.loss:
                best = found
            doubling = doubling and not fits
            low, high = (price, 2 * high if doubling else high) if not fits else (low, price)
        return best, bound

    def _way(self, price: float, rest: list[Losses]) -> tuple[Chosen, float]:
        tokens, schedule, work = self.tokens, [], 0.0
        for layer in range(self.layers):
            row = self.losses[layer, tokens] + price * self.work[tokens] + rest[layer + 1][self.after[tokens]]
            schedule.append(int(row.argmin()))
            work += float(self.work[tokens, schedule[-1]])
            tokens -= schedule[-1]
        return Chosen(tuple(schedule), loss_of(self.losses, schedule)), work

    def searched(self, best: Chosen, price: float, rest: list[Losses]) -> Chosen:
        """The best of all schedules, or `best` where none is better."""
        least = self.rest(1.0, loss=0.0)  # multiplications
        zero = np.zeros(1, np.int64)
        steps = [_Labels(zero + self.tokens, np.zeros(1), np.zeros(1), zero, zero)]
        bar = best.loss - _EQUAL * max(1.0, abs(best.loss))
        for layer in range(self.layers):
            parts = []
            for tokens in np.unique(steps[-1].tokens):
                mine = np.flatnonzero(steps[-1].tokens == tokens)
                after = self.after[tokens]
                work = steps[-1].work[mine, None] + self.work[tokens]
                loss = steps[-1].loss[mine, None] + self.losses[layer, tokens]
                at_least = loss + price * (work - self.budget) + rest[layer + 1][after]
                good = (work + least[layer + 1][after] <= self.budget) & (at_least < bar)
                label, merged = np.nonzero(good)
                parts.append(_Labels(after[merged], work[good], loss[good], mine[label], merged))
            steps.append(_undominated(_Labels(*map(np.concatenate, zip(*parts, strict=True)))))
            if not steps[-1].tokens.size:
                return best
        at = int(steps[-1].loss.argmin())
        if steps[-1].loss[at] >= bar:
            return best
        loss, schedule = float(steps[-1].loss[at]), []
        for step in reversed(steps[1:]):
            schedule.append(int(step.merged[at]))
            at = int(step.parent[at])
        return Chosen(tuple(schedule[::-1]), loss)


def _undominated(labels: _Labels) -> _Labels:
    """Those with less loss than all others of as many tokens with no more multiplications."""
    order = np.lexsort((labels.loss, labels.work, labels.tokens))
    tokens, loss = labels.tokens[order], labels.loss[order]
    kept = np.ones(len(order), bool)
    ends = np.flatnonzero(np.r_[tokens[1:] != tokens[:-1], True][: len(order)]) + 1
    for start, end in itertools.pairwise([0, *ends]):
        kept[start + 1 : end] = loss[start + 1 : end] < np.minimum.accumulate(loss[start:end])[:-1]
    return _Labels(*(each[order[kept]] for each in labels))
