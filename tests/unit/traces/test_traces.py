"""Traces: format, generators, histograms."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arlo.errors import ConfigError
from arlo.traces import (
    LengthHistogram,
    Trace,
    arrivals,
    parse_lengths,
    poisson,
    read_csv,
    rescale,
    tweet_lengths,
    write_csv,
)
from tests.fakes.development_data import development_file


def trace(at: list[float], length: list[int], text_id: list[int] | None = None) -> Trace:
    return Trace(
        arrived_at_s=np.array(at),
        length=np.array(length, np.int32),
        text_id=None if text_id is None else np.array(text_id),
    )


@pytest.mark.parametrize("text_id", [None, [7, 8, 7]])
def test_csv_there_and_back(tmp_path: Path, text_id: list[int] | None) -> None:
    before = trace([0.0, 0.25, 1.000001], [1, 512, 33], text_id)
    write_csv(before, tmp_path / "t.csv")
    after = read_csv(tmp_path / "t.csv")
    assert after.arrived_at_s.tolist() == before.arrived_at_s.tolist()
    assert (after.length.tolist(), after.length.dtype) == ([1, 512, 33], np.int32)
    assert (None if after.text_id is None else after.text_id.tolist()) == text_id


def test_other_columns_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,length,arrived_at_s\nx,5,0.5\n")
    assert read_csv(tmp_path / "t.csv").length.tolist() == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("arrived_at_s\n1\n", "no column length"),
        ("arrived_at_s,length\n0,5\n1,five\n", "line 3"),
        ("arrived_at_s,length\n0\n", "line 2"),
        ("arrived_at_s,length\n2,5\n1,5\n", "must not go back"),
        ("arrived_at_s,length\n-1,5\n", "not negative"),
        ("arrived_at_s,length\nnan,5\n", "finite"),
        ("arrived_at_s,length\n1,0\n", "1 or more"),
    ],
)
def test_bad_files_are_refused_with_the_reason(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_csv(tmp_path / "t.csv")


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="one length"):
        trace([0.0, 1.0], [5])


def test_faster_keeps_the_requests() -> None:
    fast = trace([0.0, 1.0, 3.0], [1, 2, 3], [4, 5, 6]).faster(2.0)
    assert (fast.arrived_at_s.tolist(), fast.length.tolist()) == ([0.0, 0.5, 1.5], [1, 2, 3])
    assert fast.rate == pytest.approx(2 / 1.5)
    for speed in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="speed"):
            fast.faster(speed)


# Generators ----------------------------------------------------------------------------------------------------------


def test_other_lengths_leave_the_arrivals_as_they_are() -> None:
    tweets, fixed = (poisson(50, 20, parse_lengths(spec), 3) for spec in ("tweets", "fixed:9"))
    assert tweets.arrived_at_s.tolist() == fixed.arrived_at_s.tolist()


def test_arrivals_are_poisson() -> None:
    at = arrivals(200.0, 500.0, seed=1)
    gaps = np.diff(at)
    per_second = np.bincount(at.astype(int), minlength=500)
    assert at[0] >= 0
    assert at[-1] < 500
    assert gaps.min() >= 0
    assert len(at) == pytest.approx(100_000, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # exponential
    assert per_second.var() == pytest.approx(per_second.mean(), rel=0.2)  # Poisson counts
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.02  # no memory


@pytest.mark.parametrize(("rate", "duration"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("inf"))])
def test_arrivals_need_a_rate_and_a_duration(rate: float, duration: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        arrivals(rate, duration, 0)


def test_length_specs() -> None:
    rng = np.random.default_rng(0)
    assert set(parse_lengths("fixed:100")(50, rng).tolist()) == {100}
    uniform = parse_lengths("uniform:1:512")(200_000, rng)
    assert (uniform.min(), uniform.max(), uniform.dtype) == (1, 512, np.int32)
    assert uniform.mean() == pytest.approx(256.5, rel=0.01)
    assert parse_lengths("uniform:3:3")(4, rng).tolist() == [3] * 4


@pytest.mark.parametrize(
    "spec",
    ["", "tweet", "tweets:1", "fixed", "fixed:0", "fixed:x", "fixed:1:2", "uniform:1", "uniform:5:4", "uniform:0:4"],
)
def test_bad_length_specs_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="lengths are"):
        parse_lengths(spec)


@given(st.lists(st.integers(1, 2000), min_size=1), st.integers(1, 1024))
def test_rescale_stays_in_range_and_in_order(lengths: list[int], max_length: int) -> None:
    scaled = rescale(np.array(sorted(lengths), np.int32), max_length)
    assert scaled.min() >= 1
    assert scaled.max() <= max_length
    assert (np.diff(scaled) >= 0).all()


def test_rescale_as_the_paper_does() -> None:
    assert rescale(np.array([1, 21, 72, 125, 291], np.int32)).tolist() == [4, 86, 295, 512, 512]


# Histograms ----------------------------------------------------------------------------------------------------------


def test_tweets_have_the_documented_lengths() -> None:
    histogram = tweet_lengths()
    assert histogram.count.sum() == 1640
    assert [histogram.percentile(q) for q in (50, 98, 100)] == [36, 93, 291]
    assert "archive.org" in histogram.source


@pytest.mark.parametrize("counts", [{}, {3: 0}, {0: 1}, {4: -1, 5: 2}])
def test_bad_histograms_are_refused(counts: dict[int, int]) -> None:
    with pytest.raises(ConfigError, match="histogram"):
        LengthHistogram.of(counts, "test")


def test_the_shipped_histogram_is_derived_from_its_source() -> None:
    with development_file("twitter-lengths/tweets_2018-04-25.csv").open(newline="") as file:
        counts = Counter(int(row["bert_tokens_full"]) for row in csv.DictReader(file) if row["lang"] == "en")
    histogram = tweet_lengths()
    assert dict(zip(histogram.length.tolist(), histogram.count.tolist(), strict=True)) == dict(sorted(counts.items()))
