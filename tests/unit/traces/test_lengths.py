"""Distributions of lengths, their quantiles, and how they drift."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from arlo.errors import ConfigError
from arlo.traces import make_workload, materialise, tweet_lengths
from arlo.traces.drift import NAMED, Drift
from arlo.traces.lengths import POINTS, lognormal, paper_lengths, parse_length_spec
from arlo.traces.measure import summarise


def drawn(spec: str, n: int = 200_000) -> np.ndarray:
    return parse_length_spec(spec).draw(n, np.random.default_rng(1))


def test_lengths_of_the_paper() -> None:
    lengths = paper_lengths()
    assert [lengths.percentile(q) for q in (50, 98, 100)] == [21, 72, 125]
    stretched = parse_length_spec("paper")
    assert [stretched.percentile(q) for q in (50, 98)] == [86, 295]  # times 512 / 125
    assert stretched.percentile(100) == 512
    assert drawn("paper").max() <= 512
    assert np.percentile(drawn("paper"), 98) == pytest.approx(295, abs=5)
    assert parse_length_spec("paper", 125).percentile(98) == 72


@pytest.mark.parametrize(("median", "p98", "longest"), [(21, 72, 125), (21, 72, 80), (100, 101, 5000), (5, 400, 512)])
def test_lognormal_has_the_quantiles_asked_for(median: float, p98: float, longest: float) -> None:
    quantile = lognormal(median, p98, longest).quantile
    assert np.interp(0.5, (np.arange(POINTS) + 0.5) / POINTS, quantile) == pytest.approx(median, rel=1e-3)
    assert np.interp(0.98, (np.arange(POINTS) + 0.5) / POINTS, quantile) == pytest.approx(p98, rel=1e-3)
    assert quantile[-1] <= longest
    assert (np.diff(quantile) >= 0).all()


def test_other_distributions() -> None:
    assert set(drawn("fixed:100").tolist()) == {100}
    uniform = drawn("uniform:1:512")
    assert (uniform.min(), uniform.max()) == (1, 512)
    assert uniform.mean() == pytest.approx(256.5, abs=4 * 148 / 200_000**0.5)
    two = drawn("bimodal:30:400:0.1")
    assert set(two.tolist()) == {30, 400}
    assert (two == 400).mean() == pytest.approx(0.1, abs=4 * (0.09 / 200_000) ** 0.5)
    assert set(drawn("bimodal:400:30:0.5").tolist()) == {30, 400}
    mixed = drawn("mixture:3*fixed:10+1*uniform:100:200")
    assert (mixed == 10).mean() == pytest.approx(0.75, abs=4 * (0.1875 / 200_000) ** 0.5)
    assert mixed[mixed != 10].mean() == pytest.approx(150, abs=1)
    tweets = parse_length_spec("tweets")
    assert [tweets.percentile(q) for q in (50, 98, 100)] == [tweet_lengths().percentile(q) for q in (50, 98, 100)]
    assert parse_length_spec("tweets", 512).percentile(98) == round(93 * 512 / 125)


def test_lengths_of_files(tmp_path: Path) -> None:
    (tmp_path / "h.json").write_text(json.dumps({"source": "test", "counts": {"8": 3, "16": 1}}))
    (tmp_path / "t.csv").write_text("arrived_at_s,length\n0,8\n1,16\n2,8\n3,8\n")
    for name in ("h.json", "t.csv"):
        lengths = parse_length_spec(f"file:{tmp_path / name}")
        assert [lengths.percentile(q) for q in (75, 76)] == [8, 16]


@pytest.mark.parametrize(
    "spec",
    ["", "tweet", "paper:1", "fixed:0", "uniform:5:4", "lognormal:1:2", "lognormal:9:5:20", "lognormal:21:72:72",
     "bimodal:1:2:3", "bimodal:0:5:0.5", "mixture:", "mixture:fixed:5", "mixture:0*fixed:5", "mixture:1*nothing",
     "file:", "file:/does/not/exist.csv"],
)  # fmt: skip
def test_bad_specs_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        parse_length_spec(spec)


# Drift ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", [Drift(), Drift(spread=0.4), Drift(spread=0.1, median=0.1)])
def test_drift_keeps_the_quantiles_of_the_long_run(drift: Drift) -> None:
    lengths = paper_lengths()
    random = np.random.default_rng(2)
    n = 400_000
    spread = (drift.correction(lengths) * np.exp(drift.spread * random.standard_normal(n))).astype(np.float32)
    shift = (drift.median * random.standard_normal(n)).astype(np.float32)
    found = lengths.draw_drifted(n, random, spread, shift)
    assert np.percentile(found, 50) == pytest.approx(21, abs=1)
    assert np.percentile(found, 98) == pytest.approx(72, abs=1.5)
    assert found.max() <= 125


def test_the_path_is_an_ornstein_uhlenbeck_process() -> None:
    spread, median = Drift(spread=0.21, tau_s=10, median=0.1).path(200_000, seed=1)
    for path, sd in ((np.log(spread), 0.21), (median, 0.1)):
        # 200,000 s at a correlation time of 10 s are 10,000 independent values.
        assert path.std() == pytest.approx(sd, rel=0.05)
        assert abs(path.mean()) < 4 * sd / 10_000**0.5
        for lag in (1, 10, 20):
            assert np.corrcoef(path[:-lag], path[lag:])[0, 1] == pytest.approx(np.exp(-lag / 10), abs=0.05)
    assert np.array_equal(Drift().path(50, 3), Drift().path(80, 3)[:, :50])


def test_ten_second_clips_deviate_as_the_clip_of_the_paper_does() -> None:
    """ln(58/21) / ln(71/21) - 1 is the deviation of the log-spread in the paper; ours, over ten-second means."""
    spread = np.log(Drift().path(100_000, seed=4)[0]).reshape(-1, 10).mean(axis=1)
    assert spread.std() == pytest.approx(-np.log(np.log(58 / 21) / np.log(71 / 21)), rel=0.06)


def test_drift_shows_in_clips_and_only_where_it_is_asked_for() -> None:
    found = {}
    for drift in NAMED:
        trace = materialise(make_workload(arrivals="twitter-stable", rate=500, duration_s=400, drift=drift, seed=2))
        clips = summarise(trace).clips
        assert clips is not None
        assert clips.median[0] >= 80
        assert clips.median[1] <= 92
        found[drift] = clips.drift_log_p98
    assert found["none"] < 0.03
    assert 0.03 < found["weak"] < 0.1
    assert 0.15 < found["paper"] < 0.35


def test_seconds_that_are_drawn_from_few_lengths() -> None:
    settings = {"arrivals": "twitter-stable", "rate": 2000, "duration_s": 300, "seed": 2, "rescale": 125}
    trace = materialise(make_workload(drift="sample:50", **settings))  # type: ignore[arg-type]
    second = trace.arrived_at_s.astype(int)
    assert max(len(np.unique(trace.length[second == s])) for s in range(300)) <= 50
    # The long run is that of 15,000 lengths: the error of its p98 is sqrt(0.98 * 0.02 / 15000) / density.
    assert np.percentile(trace.length, [50, 98]) == pytest.approx([21, 72], abs=4)
    by_chance = np.log([np.percentile(trace.length[second == s], 98) for s in range(300)]).std()
    assert 0.15 < by_chance < 0.35  # of 50 lognormal lengths
