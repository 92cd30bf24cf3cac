"""From records to numbers: outcomes, summary, rows. No server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arlo.replay import OUTCOMES, Summary
from arlo.replay.outcomes import CODE_OF, outcome_of_error
from arlo.replay.records import SENT, Records, complete
from arlo.replay.rows import MAX_ROWS, make_rows
from arlo.replay.summary import summarize
from arlo.traces import Trace, parse_lengths, poisson

QUEUE_FULL = "[request id: 3] Exceeds maximum queue size"
QUEUE_TIMEOUT = "Request timeout expired"


@pytest.mark.parametrize(
    ("code", "message", "outcome"),
    [
        ("RESOURCE_EXHAUSTED", "queue full", "rejected"),
        ("INVALID_ARGUMENT", "600 tokens, the longest runtime takes 512", "rejected"),
        ("DEADLINE_EXCEEDED", "", "expired"),
        ("CANCELLED", "", "cancelled"),
        ("UNAVAILABLE", "connection refused", "failed"),
        ("UNAVAILABLE", QUEUE_FULL, "rejected"),
        ("UNAVAILABLE", QUEUE_TIMEOUT, "expired"),
        ("NOT_FOUND", "unknown model", "failed"),
        ("UNAUTHENTICATED", "", "failed"),
        ("INTERNAL", "", "failed"),
        ("UNKNOWN", "", "failed"),
    ],
)
def test_outcome_of_an_error(code: str, message: str, outcome: str) -> None:
    assert outcome_of_error(CODE_OF[code], message) == outcome


def test_every_grpc_code_has_an_outcome() -> None:
    outcomes = {name: outcome_of_error(number, "") for name, number in CODE_OF.items() if number != 0}
    assert len(outcomes) == 16
    assert set(outcomes.values()) <= set(OUTCOMES) - {"on_time", "late"}


def sent(*rows: dict[str, Any]) -> Any:
    """SENT records, one per dict; scheduled every 10 ms and sent at once unless told otherwise."""
    records = np.zeros(len(rows), SENT)
    for column in ("level", "demoted", "queue_us", "execute_us", "total_us", "computed_tokens"):
        records[column] = -1
    for i, row in enumerate(rows):
        at = row.get("scheduled_us", i * 10_000)
        records[i]["index"] = i
        records[i]["scheduled_us"] = at
        records[i]["sent_us"] = at + row.get("delay_us", 0)
        records[i]["done_us"] = at + row.get("latency_us", 1000)
        for column in set(row) & set(SENT.names or ()):
            records[i][column] = row[column]
    return records


def build(*rows: dict[str, Any], messages: dict[int, str] | None = None, slo_us: float = 50_000) -> Records:
    lengths = np.array([row.get("length", 10) for row in rows], np.int32)
    return complete(sent(*rows), lengths, lengths, messages or {}, slo_us)


def total(records: Records, **options: Any) -> Summary:
    options = {"planned": len(records), "longest": 512, "slo_ms": 50.0, "late_ms": 1.0, **options}
    return summarize(records, **options)


def test_outcomes_come_from_code_message_and_latency() -> None:
    records = build(
        {"latency_us": 50_000},
        {"latency_us": 50_001},
        {"code": 14, "error": 1},
        {"code": 14, "error": 2},
        {"code": 4},
        {"code": 1},
        {"code": 13},
        messages={1: QUEUE_FULL, 2: "connection reset"},
    )
    names = [OUTCOMES[i] for i in records["outcome"]]
    assert names == ["on_time", "late", "rejected", "failed", "expired", "cancelled", "failed"]
    s = total(records)
    assert s.outcomes == {"on_time": 1, "late": 1, "rejected": 1, "failed": 2, "expired": 1, "cancelled": 1}
    assert s.answered == 2
    assert s.slo_attainment == pytest.approx(1 / 7)  # of all arrivals


def test_percentiles_are_over_all_answered_late_ones_too() -> None:
    records = build(
        *[{"latency_us": 1000} for _ in range(98)],
        {"latency_us": 400_000},
        {"latency_us": 600_000},
        {"code": 4, "latency_us": 10_000_000},  # not an answer
    )
    latency = total(records).latency
    assert latency is not None
    assert latency.p50_ms == pytest.approx(1.0)
    assert latency.max_ms == pytest.approx(600.0)
    assert latency.mean_ms == pytest.approx((98 + 400 + 600) / 100)
    assert latency.p99_ms > 400


def test_latency_counts_from_the_scheduled_instant_and_late_sends_are_counted() -> None:
    s = total(build({"delay_us": 900}, {"delay_us": 30_000, "latency_us": 31_000}, {"delay_us": 1001}))
    assert (s.sends.late, s.sends.threshold_ms, s.sends.max_delay_ms) == (2, 1.0, 30.0)
    assert s.latency is not None
    assert s.latency.max_ms == 31.0


def test_rates() -> None:
    quick = [{"scheduled_us": at, "latency_us": 10_000} for at in (0, 500_000, 1_000_000, 1_500_000, 1_990_000)]
    s = total(build(*quick, {"scheduled_us": 1_000_000, "latency_us": 1_000_000}), cpu_s=0.003)
    assert s.duration_s == pytest.approx(2.0)  # the last answer
    assert s.arrival_rps == pytest.approx(3.0)
    assert s.goodput_rps == pytest.approx(2.5)
    assert s.sends.cpu_us_per_request == pytest.approx(500)


def test_levels_and_padding_as_the_target_tells_them() -> None:
    s = total(
        build(
            {"length": 10, "level": 0, "demoted": 0, "computed_tokens": 64},
            {"length": 60, "level": 0, "demoted": 0, "computed_tokens": 64},
            {"length": 20, "level": 2, "demoted": 1, "computed_tokens": 512},
            {"length": 500, "level": 2, "demoted": 0, "computed_tokens": 512},
            {"length": 500, "level": 2, "code": 4},  # not answered, so not counted
        )
    )
    assert [(v.level, v.max_length, v.requests, v.demoted) for v in s.levels] == [(0, 64, 2, 0), (2, 512, 2, 1)]
    p = s.padding
    assert p is not None
    assert (p.tokens, p.computed_tokens, p.longest, p.told_by) == (590, 1152, 512, "response")
    assert p.share == pytest.approx(1 - 590 / 1152)
    assert p.share_if_longest == pytest.approx(1 - 590 / 2048)
    assert p.computed_saved == pytest.approx(1 - 1152 / 2048)


def test_levels_of_two_plans_are_told_apart_by_their_lengths() -> None:
    records = build(
        {"length": 60, "level": 1, "max_length": 64, "computed_tokens": 64},
        {"length": 500, "level": 1, "max_length": 512, "computed_tokens": 500, "demoted": 1},
        {"length": 50, "level": 0, "max_length": 64, "computed_tokens": 64},
        {"level": 1, "computed_tokens": 30},
        {"level": 7},
    )
    levels = [(v.level, v.max_length, v.requests, v.demoted) for v in total(records).levels]
    assert levels == [(1, 30, 1, 0), (7, None, 1, 0), (0, 64, 2, 0), (1, 512, 1, 1)]


def test_a_target_that_tells_nothing() -> None:
    lengths = np.array([10, 20], np.int32)
    records = complete(sent({}, {}), lengths, np.full(2, 128, np.int32), {}, 1e6)
    s = total(records)
    assert s.levels == ()
    assert s.server.queue_ms is None
    assert s.padding is not None
    assert (s.padding.computed_tokens, s.padding.told_by) == (256, "request")  # the width that was sent


def test_nothing_answered_and_nothing_sent() -> None:
    s = total(build({"code": 14}, {"code": 14}))
    assert (s.latency, s.padding, s.slo_attainment, s.goodput_rps) == (None, None, 0.0, 0.0)
    empty = total(build(), planned=5, interrupted=True)
    assert (empty.requests, empty.planned, empty.slo_attainment) == (0, 5, 0.0)


# What the requests carry ---------------------------------------------------------------------------------------------


def test_random_rows_have_the_lengths_of_the_trace() -> None:
    trace = poisson(50, 5, parse_lengths("uniform:1:40"), 1)
    rows = make_rows(trace, None, vocabulary=2000, seed=1)
    for index, length in enumerate(trace.length.tolist()):
        ids = rows.of(index).ids
        assert len(ids) == length
        assert ids.max() < 2000
    assert len(rows.rows) == len(trace)  # each its own text_id
    again = make_rows(trace, None, vocabulary=2000, seed=1)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(rows.rows, again.rows, strict=True))
    assert not np.array_equal(make_rows(trace, None, seed=2).of(0).ids[1:-1], rows.of(0).ids[1:-1])


def test_equal_length_and_text_id_share_a_row() -> None:
    trace = Trace(arrived_at_s=np.arange(4.0), length=np.array([5, 5, 5, 6]), text_id=np.array([1, 1, 2, 1]))
    rows = make_rows(trace, None)
    assert len(rows.rows) == 3
    assert rows.which[0] == rows.which[1]


def test_there_are_not_more_rows_than_needed() -> None:
    n = 3 * MAX_ROWS
    trace = Trace(arrived_at_s=np.arange(float(n)), length=np.tile([3, 4, 5], MAX_ROWS), text_id=np.arange(n))
    rows = make_rows(trace, None)
    assert len(rows.rows) <= MAX_ROWS
    assert [len(rows.of(i).ids) for i in (0, 1, 2, n - 1)] == [3, 4, 5, 5]


def test_a_tiny_vocabulary_is_kept_to() -> None:
    trace = Trace(arrived_at_s=np.zeros(1), length=np.array([8]))
    assert make_rows(trace, None, vocabulary=2).of(0).ids.max() <= 1
