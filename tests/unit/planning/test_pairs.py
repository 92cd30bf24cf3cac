"""Lengths and token counts chosen together: the best of all sets, what is dominated, and what a point is worth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from arlo.errors import ConfigError
from arlo.planning.lengths.pairs import MOST, POINT, Engine, choose_pairs


def engine(length: int, tokens: int, time_us: float, *right: float) -> Engine:
    """Accuracy of short rows and of full ones."""
    bins = tuple(zip((length // 2, length), right if len(right) == 2 else right * 2, strict=True))
    return Engine(length=length, tokens=tokens, time_us=time_us, accuracy=bins, name=f"{length}{tokens:+d}")


def cost(kept: tuple[Engine, ...], all_of: list[Engine], counts: dict[int, float], worth_us: float) -> float:
    """The definition, row by row."""
    total = 0.0
    for row, count in counts.items():
        top = max(one.right(row) for one in all_of if row <= one.length)
        each = [one.time_us + worth_us / POINT * (top - one.right(row)) for one in kept if row <= one.length]
        total += count * min(each, default=np.inf)
    return total / sum(counts.values())


@pytest.mark.parametrize("seed", range(20))
def test_best_of_all_sets(seed: int) -> None:
    draws = np.random.default_rng(seed)
    engines = [
        engine(length, tokens, float(length * 10 + tokens * draws.uniform(1, 20)), *sorted(draws.uniform(0.5, 0.9, 2)))
        for length in (16, 32, 64)
        for tokens in (0, -2, -4)
    ]
    counts = {int(row): float(draws.integers(1, 9)) for row in draws.integers(1, 65, 30)}
    worth_us = float(draws.uniform(0, 40))
    found = choose_pairs(engines, counts, worth_us=worth_us, least_saving=0.0)
    beaten = {one.name for one, _ in found.dominated}
    left = [one for one in engines if one.name not in beaten]
    for each in found.best:
        sets = itertools.combinations(left, len(each.engines))
        assert each.cost_us == pytest.approx(min(cost(one, left, counts, worth_us) for one in sets))
        assert each.cost_us == pytest.approx(cost(each.engines, left, counts, worth_us))
    assert all(b.cost_us <= a.cost_us + 1e-9 for a, b in itertools.pairwise(found.best))


def test_dominated_are_left_out() -> None:
    good, slow, poor = engine(64, 0, 100, 0.9), engine(64, 2, 120, 0.9, 0.85), engine(64, -4, 60, 0.7)
    found = choose_pairs([slow, good, poor], {64: 1.0}, worth_us=1.0)
    assert [(one.tokens, other.tokens) for one, other in found.dominated] == [(2, 0)]
    assert all(slow not in each.engines for each in found.best)


def test_two_that_are_alike_keep_one() -> None:
    one, other = engine(64, 0, 100, 0.9), engine(64, -4, 100, 0.9)
    found = choose_pairs([one, other], {64: 1.0}, worth_us=1.0)
    assert len(found.dominated) == 1
    assert len(found.chosen.engines) == 1


def test_worth_decides() -> None:
    """20 points for 40 us: merged where a point is worth less than 2 us."""
    engines = [engine(64, 0, 100, 0.9), engine(64, -4, 60, 0.7)]
    for worth_us, tokens in ((1.9, -4), (2.1, 0)):
        found = choose_pairs(engines, {64: 1.0}, worth_us=worth_us, most=1)
        assert [one.tokens for one in found.chosen.engines] == [tokens]


def test_too_many() -> None:
    engines = [engine(64, -number, 100 - number, 0.9 - number / 100) for number in range(MOST + 1)]
    with pytest.raises(ConfigError, match="too many to choose among"):
        choose_pairs(engines, {64: 1.0}, worth_us=1.0)
