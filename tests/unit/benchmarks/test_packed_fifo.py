"""The batching rule of packed_fifo, which Arlo is compared with: that of text-embeddings-inference."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers.servers.packed_rule import PackedFifo, Refusal, Row


def row(number: int, tokens: int) -> Row:
    return Row((0, number), np.full(tokens, number, np.int64), arrived_s=0.0)


def rule(*lengths: int, most_rows: int = 8, bound: int = 100) -> PackedFifo:
    """A queue with rows 0, 1, ... of these lengths, and batches of at most 100 tokens."""
    queue = PackedFifo(budget=100, most_rows=most_rows, bound=bound)
    for number, tokens in enumerate(lengths):
        assert queue.add(row(number, tokens)) is None
    return queue


def taken(queue: PackedFifo) -> list[int]:
    return [each.key[1] for each in queue.take()]


@pytest.mark.parametrize(
    ("lengths", "left", "most_rows", "batches"),
    [
        ((60, 40, 1, 99, 1, 50), (), 8, [[0, 1], [2, 3], [4, 5], []]),  # in order while the budget holds
        ((60, 90, 10), (), 8, [[0], [1, 2], []]),  # a short row does not overtake a long one
        ([1] * 7, (), 3, [[0, 1, 2], [3, 4, 5], [6], []]),
        ((1, 100, 1), (), 8, [[0], [1], [2], []]),  # one as long as the budget goes alone
        ((50, 50, 50, 50), ((0, 0), (0, 2), (1, 1)), 8, [[1, 3], []]),  # (1, 1): another front's
        ((50, 50), ((0, 0), (0, 1)), 8, [[]]),
    ],
)
def test_batches(lengths: list[int], left: list[tuple[int, int]], most_rows: int, batches: list[list[int]]) -> None:
    """Rows whose clients have left are dropped when their turn comes."""
    queue = rule(*lengths, most_rows=most_rows)
    for key in left:
        queue.leave(key)
    assert queue.dropped == 0
    assert [taken(queue) for _ in batches] == batches
    assert queue.dropped == sum(key[0] == 0 for key in left)


def test_refusals() -> None:
    queue = rule(1, 1, 1, bound=3, most_rows=2)
    assert queue.add(row(3, 101)) == (Refusal.INVALID, "the row has 101 tokens, a batch takes 100")
    refusal = queue.add(row(3, 1))
    assert refusal is not None
    assert refusal[0] is Refusal.FULL
    batch = queue.take()
    assert queue.add(row(4, 1)) is not None, "rows that are computed count"
    queue.finish(batch)
    assert [queue.add(row(number, 1)) is None for number in (5, 6, 7)] == [True, True, False]
    queue.leave((0, 2))  # the place of a client that left is free at once
    assert queue.add(row(8, 1)) is None
    assert taken(queue) == [5, 6]
