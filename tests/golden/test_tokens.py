"""OTAS's algorithms on queues small enough to follow by hand: what is printed, what it misses, what is best."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from arlo import _core

MS = 1_000_000
NEVER = 1 << 60


def batch(deadline_s: float, times_s: Sequence[float], utilities: Sequence[float], mean: float = 0.0) -> object:
    """One batch as the planners take it."""
    deadline = round(deadline_s * 1000) * MS
    return (
        [(round(time * 1000) * MS, utility, deadline) for time, utility in zip(times_s, utilities, strict=True)],
        mean,
    )


def counts(plan: tuple[list[int], float, float, int], tokens: Sequence[int]) -> list[int | None]:
    """The token count of each batch; None: evicted."""
    return [None if choice < 0 else tokens[choice] for choice in plan[0]]


def test_batching() -> None:
    """Algorithm 1 on the three tasks of Table II."""
    rows = [(0, 600, 0.3), (110, 1000, 0.01), (150, 600, 1), (200, 1000, 0.2), (300, 600, 0.3), (450, 1000, 0.01)]
    rows += [(550, 600, 1), (700, 1000, 0.2)]

    def made(rows: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, float, int]]:
        queries = [(at * MS, (at + slo) * MS, utility) for at, slo, utility in rows]
        found = _core.tokens_batch(queries, 500 * MS, 64, 500 * MS, 0.8)
        return [
            (rows[each[0]][0], min(rows[i][0] + rows[i][1] for i in each), rows[each[0]][2], len(each))
            for each in found
        ]

    assert made(rows) == [(0, 600, 0.3, 2), (110, 900, 0.01, 3), (450, 1450, 0.01, 2), (550, 1150, 1, 1)]
    rows[1] = (100, 1000, 0.01)  # due 500 ms after the first, which is near enough
    assert made(rows)[0][3] >= 2
    assert made(rows[:2]) == [(0, 600, 0.3, 2)]


def test_allocation() -> None:
    """Algorithm 2 where it finds the best."""
    queue = [batch(1.0, (0.2, 0.4, 0.6), (8, 9, 10)), batch(1.1, (0.2, 0.4, 0.6), (4, 4.5, 5))]
    for plan in (_core.tokens_printed(0, queue), _core.tokens_exact(0, queue)):
        assert counts(plan, (-15, 0, 8)) == [8, 0]
        assert plan[1] == 14.5
        assert plan[3] == 1000 * MS


def test_printed_keeps_one_clock() -> None:
    """A state remembers the predecessor of the most utility, and loses the one that would have been through in time."""
    queue = [
        batch(0.90, (0.2, 0.6), (9, 10)),
        batch(0.92, (0.2, 0.25), (1, 1)),
        batch(0.95, (0.4, 0.5), (10, 10.5)),
    ]
    printed, exact = _core.tokens_printed(0, queue), _core.tokens_exact(0, queue)
    assert (printed[1], counts(printed, (-15, 8))) == (11, [8, -15, None])
    assert (exact[1], exact[2], counts(exact, (-15, 8))) == (20.5, 20.5, [-15, -15, 8])


def test_what_is_too_late_is_evicted() -> None:
    """Two batches that cannot be in time; as the paper prints the first states, the first would be run all the same."""
    queue = [batch(0.10, (0.2, 0.6), (1, 1)), batch(0.12, (0.2, 0.6), (1, 1)), batch(0.92, (0.2, 0.25), (1, 1.2))]
    plan = _core.tokens_printed(0, queue)
    assert (plan[1], counts(plan, (-15, 8))) == (1.2, [None, None, 8])


def test_partial_eviction() -> None:
    """Without its most urgent rows a batch may still be in time: an option with a later deadline."""
    late = [(300 * MS, 10.0, 200 * MS), (250 * MS, 7.0, 900 * MS)]
    assert _core.tokens_exact(0, [(late, 0.0)])[:2] == ([1], 7.0)


def test_arguments() -> None:
    """What cannot be a queue is refused."""
    with pytest.raises(ValueError, match="equally many"):
        _core.tokens_printed(0, [batch(1, (0.1,), (1,)), batch(1, (0.1, 0.2), (1, 1))])
    with pytest.raises(ValueError, match="ascend"):
        _core.tokens_batch([(2, 3, 1.0), (1, 3, 1.0)], 1, 1, 1, 1.0)
    assert _core.tokens_exact(0, []) == ([], 0.0, 0.0, 0)
