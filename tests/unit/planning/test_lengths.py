"""The choice of maximum lengths on curves and traffics that one can follow by hand, with the paper's rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from arlo.errors import ConfigError
from arlo.planning.lengths.choice import CostCurve, candidates, choose, evaluate, uniform_count, worthwhile
from arlo.simulator.profiles import load_profile
from arlo.traces.lengths import parse_length_spec

STEPS_64 = CostCurve(points=tuple((n, 110.0 + n) for n in range(64, 513, 64)), reading="steps")


def counts_of(requests: dict[int, int], longest: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    counts = np.zeros(longest + 1, np.int64)
    for tokens, count in requests.items():
        counts[tokens] = count
    return counts


def test_by_hand() -> None:
    """30 requests of 10 tokens, 10 of 100; 10 us a token. One runtime: all at 1000. Two: 16 or 104, so 16 and 104."""
    curve = CostCurve(points=((1, 10.0), (104, 1040.0)), reading="line")
    choice = choose(curve, counts_of({10: 30, 100: 10}, 104))
    assert [row.lengths for row in choice.rows] == [(104,), (16, 104)]
    one, two = choice.rows
    assert one.expected_us == 1040.0
    assert two.expected_us == (30 * 160 + 10 * 1040) / 40
    assert two.shares == (0.75, 0.25)
    assert two.padded_share == pytest.approx(1 - (30 * 10 + 10 * 100) / (30 * 16 + 10 * 104))
    assert choice.saving(two) == pytest.approx(1 - 380 / 1040)
    assert choice.marginal(1) == choice.saving(two)
    assert choice.marginal(0) == 0
    assert choice.bound_us == (30 * 100 + 10 * 1000) / 40
    assert choice.chosen is two
    assert choice.why == "2 runtimes: a further one would save nothing"


def test_the_papers_rule_is_what_its_staircase_gives_when_runtimes_are_free() -> None:
    """Steps of 64, every length equally likely: all eight steps, and a ninth runtime saves nothing (Fig. 11)."""
    uniform = np.ones(513, np.int64)
    uniform[0] = 0
    choice = choose(STEPS_64, uniform, max_runtimes=16, least_saving=0)
    assert len(choice.rows) == 8
    assert choice.chosen.lengths == tuple(range(64, 513, 64)) == choice.paper.lengths
    assert choice.chosen.expected_us == choice.bound_us == choice.paper.expected_us


def test_a_staircase_with_other_steps_gets_its_own_lengths() -> None:
    curve = CostCurve(points=((48, 1.0), (200, 3.0), (304, 6.0)), reading="steps")
    counts = np.ones(305, np.int64)
    counts[0] = 0
    assert choose(curve, counts).chosen.lengths == (48, 200, 304)


def test_between_points_steps_promise_nothing_and_a_line_what_it_says() -> None:
    points = ((64, 100.0), (128, 200.0))
    assert CostCurve(points=points, reading="steps").cost_us([1, 64, 65, 96, 128]).tolist() == [100, 100, 200, 200, 200]
    assert CostCurve(points=points, reading="line").cost_us([1, 64, 96, 128]).tolist() == [100, 100, 150, 200]
    with pytest.raises(ConfigError, match=r"known up to 128 tokens only, and 129 are asked for"):
        CostCurve(points=points, reading="line").cost_us([129])


def test_of_equal_sets_the_longer_lengths_are_taken() -> None:
    """Only 10-token requests: any multiple of 8 in the first step costs the same, so the end of the step is built."""
    choice = choose(STEPS_64, counts_of({10: 5}, 512))
    assert choice.chosen.lengths == (64, 512)


def test_a_curve_that_falls_is_used_as_it_was_measured() -> None:
    """A runtime that is slower than a longer one is never built."""
    curve = CostCurve(points=((64, 300.0), (128, 200.0), (256, 400.0)), reading="steps")
    choice = choose(curve, counts_of({60: 10, 120: 10, 250: 1}, 256), max_runtimes=3)
    assert [row.lengths for row in choice.rows] == [(256,), (128, 256)]
    assert choice.bound_us == choice.chosen.expected_us


def test_the_number_of_runtimes() -> None:
    assert worthwhile([100.0]) == 1
    assert worthwhile([100.0, 97.1, 50.0]) == 3  # the second alone saves too little; the two together do not
    assert worthwhile([100.0, 97.1, 95.0]) == 1
    assert worthwhile([100.0, 60.0, 58.3, 58.0]) == 2
    assert worthwhile([100.0, 60.0, 58.3, 58.0], 0.0) == 4
    with pytest.raises(ConfigError, match="nothing to choose"):
        worthwhile([])


def test_why_says_which_limit_ended_it() -> None:
    counts = np.ones(513, np.int64)
    counts[0] = 0
    curve = CostCurve(points=((8, 8.0), (512, 512.0)), reading="line")
    capped = choose(curve, counts, max_runtimes=3)
    assert capped.runtimes == 3
    assert capped.further is not None
    saved = 1 - capped.further.expected_us / capped.chosen.expected_us
    assert capped.why == f"3 runtimes, as many as allowed: a further one would save {100 * saved:.1f} %"
    free = choose(curve, counts, max_runtimes=20)
    assert 3 < free.runtimes < 20
    assert free.why.endswith("less than 3 %")
    # Exactly as many as allowed, and a further one would not pay.
    just = choose(curve, counts, max_runtimes=free.runtimes)
    assert (just.chosen, just.why) == (free.chosen, free.why)
    assert choose(curve, counts, max_runtimes=1).why.startswith("1 runtime, as many as allowed: ")


def test_named_lengths_are_evaluated_beside() -> None:
    counts = counts_of({30: 3, 300: 1}, 512)
    choice = choose(STEPS_64, counts, given=(128, 512))
    assert choice.given == evaluate((128, 512), STEPS_64, counts)
    assert choice.given.expected_us == (3 * 238 + 622) / 4
    with pytest.raises(ConfigError, match=r"\[128, 256\] do not take 512 tokens"):
        choose(STEPS_64, counts, given=(128, 256))


def test_candidates() -> None:
    assert candidates(20, multiple=8, also=(5, 20, 30)) == (5, 8, 16, 20)
    assert candidates(3) == (3,)
    assert len(candidates(100_000)) <= 1025
    assert {length % 8 for length in candidates(100_000)[:-1]} == {0}
    assert uniform_count(512, 4) == (128, 256, 384, 512)
    assert uniform_count(2, 4) == (1, 2)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([0], "whole numbers"),
        ([[0, 1]], "whole numbers"),
        ([0.0, 1.5], "whole numbers"),
        ([0, 0], "needs requests"),
        ([1, 1], "none of them of 0 tokens"),
        ([0, 2, -1], "no negative counts"),
        ([0, 2**56], "divide the counts"),
    ],
)
def test_wrong_histograms_are_refused(counts: list[object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        choose(STEPS_64, np.array(counts))


@pytest.mark.parametrize(
    "points", [(), ((64, 0.0),), ((0, 1.0),), ((64, math.nan),), ((64, 1.0), (64, 2.0)), ((64, 1.0), (32, 2.0))]
)
def test_wrong_curves_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ConfigError):
        CostCurve(points=points, reading="line")


def test_wrong_limits_are_refused() -> None:
    counts = counts_of({30: 3}, 512)
    with pytest.raises(ConfigError, match="max_runtimes"):
        choose(STEPS_64, counts, max_runtimes=0)
    with pytest.raises(ConfigError, match="least_saving"):
        choose(STEPS_64, counts, least_saving=1.0)


def test_the_papers_figure_11_by_cost() -> None:
    """Equal steps on the estimate of its BERT-base: 8 runtimes save a lot over 4, and 16 next to nothing over 8."""
    base = load_profile("bert-base")
    curve = CostCurve(points=tuple((n, 1000 * base.static_ms(n)) for n in range(8, 513, 8)), reading="line")
    counts = np.bincount(parse_length_spec("paper", 512).tokens, minlength=513)
    cost = {n: evaluate(uniform_count(512, n), curve, counts).expected_us for n in (2, 4, 8, 16)}
    assert cost[8] < 0.9 * cost[4] < 0.7 * cost[2]
    assert 0.99 * cost[8] < cost[16] < cost[8]
    choice = choose(curve, counts)
    assert set(choice.chosen.lengths) < set(choice.paper.lengths)
    assert choice.chosen.expected_us < 1.03 * choice.paper.expected_us
