"""The rows that a batch of each maximum length should hold: as many as still save time for each row. Pure.

A larger batch only makes its rows wait for each other, takes memory, and has to be built and measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from arlo.errors import ConfigError
from arlo.planning.lengths.choice import worthwhile

LEAST_SAVING = 0.03
"""Of the time of a row, that twice the rows must save. The scheduler fills a batch up to the rows from which more save
2 % (src/dispatch/cost_model.cc), and repeated measurements differ by about as much: 3 % is the least that is seen."""

MOST_ROWS = 64
"""On the published table of an A100 (BERT-base, FP16) 128 rows save 6 % over 64 at 32 tokens, and 2 % or less of more
tokens."""

_NOTHING = 0.0005

Points = Mapping[int, float]
"""Rows of a batch -> microseconds that it takes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a runtime in 10^6 bytes: its weights, and room for each token of a full batch."""

    weights_mb: float
    token_mb: float

    def of(self, length: int, rows: int) -> float:
        """Memory of a runtime with that maximum length and batch."""
        return self.weights_mb + self.token_mb * length * rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """The batch of one maximum length."""

    length: int
    rows: int
    why: str  # a sentence


def worthwhile_rows(points: Points, least_saving: float = LEAST_SAVING) -> int:
    """The rows of the smallest batch above which no larger one saves `least_saving` of a row's time for each doubling.

    points: batches of 1, 2, 4, ... rows; others are ignored. ConfigError without one of one row.
    """
    return 1 << worthwhile(_shares(points), least_saving) - 1


def measure_on(points: Sequence[tuple[int, float]], least_saving: float = LEAST_SAVING) -> bool:
    """Whether twice the rows are worth measuring, after batches of 1, 2, 4, ... as (rows, microseconds): no, if the
    last two doublings saved too little; a single one may be noise."""
    shares = [us / rows for rows, us in points]
    if points[-1][0] * 2 > MOST_ROWS:
        return False
    return len(shares) < 3 or min(shares[-2:]) < shares[-3] * (1 - least_saving)


def choose_batches(
    measured: Mapping[int, Points],
    *,
    least_saving: float = LEAST_SAVING,
    memory: Memory | None = None,
    limit_mb: float | None = None,
) -> tuple[BatchChoice, ...]:
    """The rows of the batch for each maximum length of `measured`, ascending, with the reason.

    limit_mb: for all runtimes together by `memory`, as on a worker that holds them all. If they take more, batches are
    halved one by one, always the one that loses the least time of a row for the memory that it frees.
    ConfigError if they do not fit with one row each.
    """
    best = {length: worthwhile_rows(points, least_saving) for length, points in sorted(measured.items())}
    fitting = dict(best)
    if limit_mb is not None:
        if memory is None:
            raise ConfigError(
                "the memory of a runtime is not known here, so it cannot be limited: leave --memory-mb out"
            )
        _fit(fitting, measured, memory, limit_mb)
    return tuple(
        BatchChoice(
            length=length,
            rows=rows,
            why=_why(measured[length], rows, least_saving)
            if rows == best[length]
            else _cut(rows, best[length], limit_mb),
        )
        for length, rows in fitting.items()
    )


def _fit(rows: dict[int, int], measured: Mapping[int, Points], memory: Memory, limit_mb: float) -> None:
    def lost(length: int) -> float:
        """Share of a row's time that is lost for each freed token of room."""
        now, points = rows[length], measured[length]
        return (2 * points[now // 2] / points[now] - 1) / (length * now / 2)

    while (taken := sum(memory.of(length, count) for length, count in rows.items())) > limit_mb:
        larger = [length for length, count in rows.items() if count > 1]
        if not larger:
            raise ConfigError(
                f"{len(rows)} lengths of one row take about {taken:.0f} MB, more than the {limit_mb:g} of --memory-mb: "
                "name fewer lengths, or build for workers that hold some of them"
            )
        rows[min(larger, key=lambda length: (lost(length), -length))] //= 2


def _shares(points: Points) -> list[float]:
    shares: list[float] = []
    while (rows := 1 << len(shares)) in points:
        shares.append(points[rows] / rows)
    if not shares:
        raise ConfigError("no batch of one row was measured")
    return shares


def _why(points: Points, rows: int, least_saving: float) -> str:
    shares = _shares(points)
    count = rows.bit_length()
    saved = f"a row takes {1 - shares[count - 1] / shares[0]:.0%} less than alone" if rows > 1 else ""
    if count == len(shares):
        return f"{saved or 'one row'}; more were not tried"
    more = 1 - shares[count] / shares[count - 1]
    if abs(more) < _NOTHING:
        then = f"{2 * rows} would save nothing"
    else:
        then = f"{2 * rows} would save {more:.1%}" if more > 0 else f"with {2 * rows} it takes {-more:.1%} longer"
    return f"{saved + '; ' if saved else ''}{then}, and {least_saving:.0%} is the least that pays"


def _cut(rows: int, best: int, limit_mb: float | None) -> str:
    return f"{best} would save more, and do not fit into {limit_mb:g} MB with the other lengths"
