"""Token counts of batches: the exact planner against all plans, the printed one below it, Algorithm 1's conditions."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from arlo import _core

Options = list[tuple[int, float, int]]
Queue = list[tuple[Options, float]]


@st.composite
def queues(draw: st.DrawFn, most: int, counts: int) -> Queue:
    """Batches by deadline; times and utilities rise with the token count, as they do."""
    n = draw(st.integers(1, most))
    width = draw(st.integers(1, counts))
    due = sorted(draw(st.lists(st.integers(1, 60), min_size=n, max_size=n)))
    found: Queue = []
    for deadline in due:
        times = sorted(draw(st.lists(st.integers(1, 25), min_size=width, max_size=width)))
        utilities = sorted(draw(st.lists(st.integers(0, 40), min_size=width, max_size=width)))
        found.append(([(t, u / 4, deadline) for t, u in zip(times, utilities, strict=True)], 0.0))
    return found


def worth(queue: Queue, choice: tuple[int, ...] | list[int]) -> float | None:
    """Utility of a plan; None when a batch would be late."""
    clock, total = 0, 0.0
    for (options, _), chosen in zip(queue, choice, strict=True):
        if chosen < 0:
            continue
        clock += options[chosen][0]
        total += options[chosen][1]
        if clock >= options[chosen][2]:
            return None
    return total


@given(queues(6, 4))
def test_exact_is_best(queue: Queue) -> None:
    """No plan of all has more, and what is said of the plan is true."""
    choice, utility, bound, _ = _core.tokens_exact(0, queue)
    width = len(queue[0][0])
    best = max(worth(queue, each) or 0.0 for each in itertools.product(range(-1, width), repeat=len(queue)))
    assert utility == bound == best == worth(queue, choice)


@given(queues(12, 8))
@example([([(5, 2.0, 20), (25, 10.0, 20)], 0.0)])
def test_printed_is_feasible_and_no_better(queue: Queue) -> None:
    """Printed is at most exact, and so is every single token count; scaled utilities scale the result."""
    choice, utility, _, _ = _core.tokens_exact(0, queue)
    printed = _core.tokens_printed(0, queue)
    assert worth(queue, printed[0]) == printed[1] <= utility == worth(queue, choice)
    for count in range(len(queue[0][0])):
        clock, total = 0, 0.0
        for options, _mean in queue:
            time, worth_of_it, deadline = options[count]
            if clock + time < deadline:
                clock, total = clock + time, total + worth_of_it
        assert total <= utility
    scaled = [([(t, 8 * u, d) for t, u, d in options], m) for options, m in queue]
    assert _core.tokens_exact(0, scaled)[1] == 8 * utility
    later = [([(t, u, d + 7) for t, u, d in options], m) for options, m in queue]
    assert _core.tokens_exact(0, later)[1] >= utility


@given(queues(12, 8), st.integers(2, 12))
def test_few_labels(queue: Queue, labels: int) -> None:
    """With few labels the plan is feasible, and the bound says what may be missing."""
    choice, utility, bound, _ = _core.tokens_exact(0, queue, labels)
    best = _core.tokens_exact(0, queue, 100_000)[1]
    assert worth(queue, choice) == utility
    assert utility <= best <= bound + 1e-9


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 120), st.sampled_from((0.01, 0.2, 0.3, 1.0))), max_size=60),
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(0, 60),
)
def test_batching(rows: list[tuple[int, int, float]], delta: int, most: int, eta: int) -> None:
    """Each query is in one batch, and was near enough to it as the batch was then."""
    at = list(itertools.accumulate(gap for gap, _, _ in rows))
    queries = [(arrived, arrived + slo, utility) for arrived, (_, slo, utility) in zip(at, rows, strict=True)]
    made = _core.tokens_batch(queries, delta, most, eta, 0.8)
    assert sorted(itertools.chain.from_iterable(made)) == list(range(len(queries)))
    for each in made:
        assert len(each) <= most
        due = queries[each[0]][1]
        for number in each[1:]:
            arrived, deadline, utility = queries[number]
            assert arrived <= queries[each[0]][0] + delta
            assert abs(due - deadline) <= eta
            assert abs(queries[each[0]][2] - utility) <= 0.8
            due = min(due, deadline)
