"""Which lengths are measured, and in what time; what requests a specification means; how curves are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime
from arlo.compile.lengths.curve import ASSUMED_OVERHEAD_TOKENS, assumed, from_manifest
from arlo.compile.lengths.measure import refined
from arlo.errors import ConfigError
from arlo.traces import LengthHistogram, tweet_lengths
from arlo.traces.traffic import traffic


class Device:
    """Takes as long as `cost_us` says, by its own clock, and remembers what was asked."""

    def __init__(self, cost_us: Callable[[int], float]) -> None:
        self.cost_us = cost_us
        self.now_s = 0.0
        self.asked: list[int] = []

    def measure(self, length: int) -> float:
        self.asked.append(length)
        self.now_s += self.cost_us(length) / 1e6
        return self.cost_us(length)

    def points(self, longest: int, budget_s: float) -> dict[int, float]:
        return dict(refined(self.measure, longest, budget_s=budget_s, clock=lambda: self.now_s))


def test_with_time_enough_every_multiple_is_measured_once() -> None:
    device = Device(lambda length: 10.0 * length)
    assert sorted(device.points(500, 60)) == [*range(16, 500, 16), 500]
    assert len(device.asked) == len(set(device.asked)) == 32


def test_with_no_time_only_the_coarse_grid() -> None:
    device = Device(lambda length: 10_000.0 * length)
    assert sorted(device.points(512, 1.0)) == [16, 32, 64, 128, 256, 512]


def test_the_budget_is_kept_but_for_the_coarse_grid() -> None:
    device = Device(lambda length: 2_000.0 * length)
    coarse_s = sum((16, 32, 64, 128, 256, 512)) * 2_000 / 1e6
    points = device.points(512, 6.0)
    assert coarse_s < device.now_s <= 6.0
    assert len(points) > 6


def test_the_ends_of_steps_are_found_and_flats_left_alone() -> None:
    device = Device(lambda length: 100.0 * -(-length // 128))
    points = device.points(512, 60)
    for edge in (128, 256, 384):
        assert points[edge] < points[edge + 16]  # both sides of each edge are known
    assert len(points) < 20


def test_short_models() -> None:
    assert sorted(Device(float).points(7, 1)) == [7]
    assert sorted(Device(float).points(16, 1)) == [16]
    assert sorted(Device(float).points(17, 1)) == [16, 17]


def test_a_time_that_something_else_spoiled_is_measured_again() -> None:
    seen: list[int] = []

    def cost_us(length: int) -> float:
        seen.append(length)
        return 10.0 * length * (9 if length == 64 and seen.count(64) == 1 else 1)

    assert Device(cost_us).points(128, 60)[64] == 640.0
    assert seen.count(64) == 2


def test_a_length_that_is_slower_for_good_is_believed_the_second_time() -> None:
    device = Device(lambda length: 10.0 * length * (3 if length == 64 else 1))
    assert device.points(128, 60)[64] == 1920.0
    assert device.asked.count(64) == 2


def test_tweets_are_stretched_to_the_longest_and_the_same_each_time() -> None:
    found = traffic("tweets", 512)
    assert np.array_equal(found.counts, traffic("tweets", 512).counts)
    assert found.counts.sum() == 65_536
    # Each tweet of n tokens is one of 512/125 n.
    whole = tweet_lengths()
    share = whole.count[whole.length == 20][0] / whole.count.sum()
    assert found.counts[round(20 * 512 / 125)] / 65_536 == pytest.approx(share, abs=2e-5)
    assert found.cut_share == 0
    assert found.text == "tweets, 125 tokens stretched to 512"
    assert found.longest == 512
    assert sum(found.by_length.values()) == 65_536


def test_other_specifications_are_in_tokens() -> None:
    found = traffic("uniform:1:4", 3)
    assert found.by_length == {1: 16_384, 2: 16_384, 3: 32_768}
    assert found.cut_share == 0.25
    plain = traffic("mixture:1*tweets", 512)
    assert plain.percentile(50) == tweet_lengths().percentile(50)
    assert traffic("fixed:9", 16).percentile(98) == 9
    with pytest.raises(ConfigError, match="the longest length"):
        traffic("tweets", 0)


def test_a_file_with_or_without_its_prefix(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"source": "here", "counts": {"5": 3, "9": 1}}))
    for spec in (str(path), f"file:{path}"):
        assert traffic(spec, 16).by_length == {5: 49_152, 9: 16_384}
        assert traffic(spec, 16).text == "mine.json"
    assert LengthHistogram.load(path).source == "here"


def test_the_assumed_curve_rises_in_steps_of_64() -> None:
    found = assumed(100, "no GPU")
    assert found.curve.points[-1] == (128, 1e6)
    short, long = found.curve.cost_us([64, 65])
    assert short / long == pytest.approx((ASSUMED_OVERHEAD_TOKENS + 64) / (ASSUMED_OVERHEAD_TOKENS + 128))
    assert found.relative


def test_a_repositorys_own_latencies() -> None:
    def runtime(length: int, points: Sequence[tuple[int, int]], *, dynamic: bool = False) -> Runtime:
        return Runtime(
            name=f"m{length}{dynamic}",
            max_length=length,
            max_batch=2,
            dynamic=dynamic,
            engine="emulated",
            precision="fp32",
            device="gpu: x",
            latency=tuple(LatencyPoint(length=n, batch=b, latency_us=100 * n * b) for n, b in points),
        )

    static = [runtime(n, [(n, 1), (n, 2)]) for n in (16, 32, 48, 64)]
    lines = [runtime(64, [(n, 1) for n in range(4, 65, 4)], dynamic=True)]

    def curve(*runtimes: Runtime) -> object:
        manifest = Manifest(
            model="m", task="emulated", source="", tokenizer=None, inputs=(), outputs=(), runtimes=runtimes
        )
        return from_manifest(manifest, 64)

    assert curve(*static, *lines).curve.points == tuple((n, 100.0 * n) for n in (16, 32, 48, 64))  # type: ignore[attr-defined]
    assert curve(static[-1], *lines).curve.reading == "line"  # type: ignore[attr-defined]
    assert curve(static[-1], *lines).about.startswith("gpu: x, the latencies of m")  # type: ignore[attr-defined]
