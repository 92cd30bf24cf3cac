"""The batching rule of packed_fifo, which Arlo is compared with: that of text-embeddings-inference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.peers.servers.packed_rule import PackedFifo, Refusal, Row


def row(number: int, tokens: int, front: int = 0) -> Row:
    return Row((front, number), np.full(tokens, number, np.int64), arrived_s=0.0)


def rule(*lengths: int, budget: int = 100, most_rows: int = 8, bound: int = 100) -> PackedFifo:
    """A queue with rows 0, 1, ... of these lengths."""
    queue = PackedFifo(budget=budget, most_rows=most_rows, bound=bound)
    for number, tokens in enumerate(lengths):
        assert queue.add(row(number, tokens)) is None
    return queue


def numbers(batch: Sequence[Row]) -> list[int]:
    return [each.key[1] for each in batch]


def test_rows_leave_in_order_while_the_budget_holds() -> None:
    queue = rule(60, 40, 1, 99, 1, 50)
    assert [numbers(queue.take()) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], []]


def test_a_short_row_does_not_overtake_a_long_one() -> None:
    queue = rule(60, 90, 10)
    assert [numbers(queue.take()) for _ in range(2)] == [[0], [1, 2]]


def test_a_batch_has_no_more_rows_than_it_may() -> None:
    queue = rule(*[1] * 7, most_rows=3)
    assert [numbers(queue.take()) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_row_as_long_as_the_budget_goes_alone_and_a_longer_one_is_refused() -> None:
    queue = rule(1, 100, 1)
    refusal = queue.add(row(3, 101))
    assert refusal is not None
    assert refusal == (Refusal.INVALID, "the row has 101 tokens, a batch takes 100")
    assert [numbers(queue.take()) for _ in range(4)] == [[0], [1], [2], []]
    assert queue.refused == 1


def test_rows_of_clients_that_left_are_dropped_when_their_turn_comes() -> None:
    queue = rule(50, 50, 50, 50)
    queue.leave((0, 0))
    queue.leave((0, 2))
    queue.leave((1, 1))  # another front's
    assert queue.dropped == 0
    assert numbers(queue.take()) == [1, 3]
    assert queue.dropped == 2


def test_all_clients_may_have_left() -> None:
    queue = rule(50, 50)
    queue.leave((0, 0))
    queue.leave((0, 1))
    assert queue.take() == []


def test_no_more_rows_wait_or_are_computed_than_the_bound() -> None:
    queue = rule(1, 1, 1, bound=3, most_rows=2)
    refusal = queue.add(row(3, 1))
    assert refusal is not None
    assert refusal[0] is Refusal.FULL
    batch = queue.take()
    assert queue.add(row(4, 1)) is not None  # computed rows count
    queue.finish(batch)
    assert [queue.add(row(number, 1)) is None for number in (5, 6, 7)] == [True, True, False]
    queue.leave((0, 2))  # the place of a client that left is free at once
    assert queue.add(row(8, 1)) is None
    assert numbers(queue.take()) == [5, 6]
