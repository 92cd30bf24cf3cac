"""Workers among the stages of a cascade."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from arlo.errors import ConfigError
from arlo.planning.stages import divide, proportional


def test_the_proportional_rule() -> None:
    assert proportional((1, 0.404, 0.353, 0.171), (3, 6, 10, 24), 16) == (4, 3, 4, 5)
    assert proportional((1, 0.001), (1, 1), 5) == (4, 1)
    assert proportional((1, 0.5), (1, 2), 6, span=(1, 2)) == (4, 1)  # one device is left, and one is too few for two
    with pytest.raises(ConfigError, match="too few"):
        proportional((1, 1), (1, 1), 1)


def test_division_is_brute_force() -> None:
    rng = random.Random(3)
    for _ in range(60):
        stages, workers = rng.randint(1, 4), rng.randint(4, 12)
        least = [rng.randint(0, 1) for _ in range(stages)]
        tables = [[rng.choice([rng.random(), math.inf]) for _ in range(workers + 1)] for _ in range(stages)]
        found = divide([table.__getitem__ for table in tables], workers, least)
        options = itertools.product(*(range(n, workers + 1) for n in least))
        best = min(
            sum(table[n] for table, n in zip(tables, each, strict=True)) for each in options if sum(each) == workers
        )
        assert found.objective == pytest.approx(best)
        assert sum(found.workers) == workers
        assert all(n >= low for n, low in zip(found.workers, least, strict=True))


def test_division_of_queues() -> None:
    """Each stage an M/M/n-like curve: more work, more workers."""

    def curve(work: float) -> object:
        return lambda n: work / (n - work) if n > work else math.inf

    found = divide([curve(2.0), curve(5.5)], 12)  # type: ignore[list-item]
    assert found.workers == (4, 8)
    assert divide([curve(2.0), curve(5.5)], 7).objective == math.inf  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="too few"):
        divide([curve(1.0), curve(1.0)], 1)  # type: ignore[list-item]
