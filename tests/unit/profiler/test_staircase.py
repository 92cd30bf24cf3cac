"""arlo.profiler.staircase: the steps of latency over length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from arlo.errors import ConfigError
from arlo.profiler.staircase import staircase


def points(
    latency: Callable[[int], float], *, longest: int = 512, spacing: int = 16, noise: float = 0.0
) -> list[tuple[int, float]]:
    rng = random.Random(3)
    return [
        (length, latency(length) * rng.uniform(1 - noise, 1 + noise)) for length in range(spacing, longest + 1, spacing)
    ]


def steps(width: int) -> Callable[[int], float]:
    return lambda length: 0.5 + 0.6 * math.ceil(length / width)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_papers_step_of_64(noise: float) -> None:
    found = staircase(points(steps(64), noise=noise))
    assert (found.shape, found.step, found.uniform) == ("steps", 64, True)
    assert found.edges == tuple(range(64, 513, 64))
    assert "steps of 64 tokens" in found.text
    assert "compile for multiples of 64" in found.text


def test_two_lengths_in_a_step_are_enough() -> None:
    found = staircase(points(steps(64), spacing=32))
    assert (found.shape, found.step, found.uniform) == ("steps", 64, True)


def test_a_small_rise_inside_the_steps_is_still_a_staircase() -> None:
    found = staircase(points(lambda length: steps(64)(length) * (1 + 0.03 * ((length - 1) % 64) / 64)))
    assert (found.shape, found.step) == ("steps", 64)


def test_a_last_step_that_is_cut_off_does_not_change_the_step_size() -> None:
    found = staircase(points(steps(128), longest=288))
    assert found.edges == (128, 256, 288)
    assert (found.step, found.uniform) == (128, True)


def test_steps_of_different_widths() -> None:
    def uneven(length: int) -> float:
        return 1.0 if length <= 64 else 2.0 if length <= 256 else 4.0

    found = staircase(points(uneven))
    assert (found.shape, found.edges, found.uniform) == ("steps", (64, 256, 512), False)
    assert "compile for these lengths" in found.text


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("spacing", [4, 16, 32, 64])
@pytest.mark.parametrize("offset", [0.0, 0.5, 5.0])
def test_a_straight_line_has_no_steps(offset: float, spacing: int, noise: float) -> None:
    found = staircase(points(lambda length: offset + 0.01 * length, spacing=spacing, noise=noise))
    assert (found.shape, found.edges, found.step) == ("linear", (), None)
    assert "linear" in found.text


def test_a_floor_and_then_a_line_has_no_steps() -> None:
    assert staircase(points(lambda length: max(2.0, 0.01 * length))).shape == "linear"


def test_flat() -> None:
    assert staircase(points(lambda _: 1.0, noise=0.02)).shape == "flat"


def test_a_wider_tolerance_sees_fewer_steps() -> None:
    measured = [(length, latency) for length, latency in points(steps(64)) if length <= 128]
    assert staircase(measured, tolerance=0.05).shape == "steps"
    assert staircase(measured, tolerance=0.9).shape == "flat"


def test_too_few_points_and_points_in_any_order() -> None:
    assert staircase([(64, 1.0), (128, 2.0)]).shape == "unknown"
    assert staircase([(64, 1.0), (64, 1.0), (128, 2.0)]).shape == "unknown"
    shuffled = points(steps(64))
    random.Random(1).shuffle(shuffled)
    assert staircase(shuffled) == staircase(points(steps(64)))


def test_a_tolerance_that_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        staircase([], tolerance=0.0)
