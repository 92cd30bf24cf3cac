"""arlo.profiler.staircase: the steps of latency over length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

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


def uneven(length: int) -> float:
    return 1.0 if length <= 64 else 2.0 if length <= 256 else 4.0


@pytest.mark.parametrize(
    ("measured", "edges", "step", "says"),
    [
        (points(steps(64)), range(64, 513, 64), 64, "steps of 64 tokens"),  # the paper's
        (points(steps(64), noise=0.01), range(64, 513, 64), 64, "compile for multiples of 64"),
        (points(steps(64), spacing=32), range(64, 513, 64), 64, ""),  # two lengths in a step
        (points(lambda n: steps(64)(n) * (1 + 0.03 * ((n - 1) % 64) / 64)), range(64, 513, 64), 64, ""),  # small rises
        (points(steps(128), longest=288), (128, 256, 288), 128, ""),  # the last step is cut off
        (points(uneven), (64, 256, 512), None, "compile for these lengths"),
    ],
)
def test_steps(measured: list[tuple[int, float]], edges: Sequence[int], step: int | None, says: str) -> None:
    found = staircase(measured)
    assert (found.shape, found.edges, found.uniform) == ("steps", tuple(edges), step is not None)
    assert step in (found.step, None)
    assert says in found.text


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("spacing", [4, 16, 32, 64])
@pytest.mark.parametrize("offset", [0.0, 0.5, 5.0])
def test_a_straight_line_has_no_steps(offset: float, spacing: int, noise: float) -> None:
    found = staircase(points(lambda length: offset + 0.01 * length, spacing=spacing, noise=noise))
    assert (found.shape, found.edges, found.step) == ("linear", (), None)
    assert "linear" in found.text


def test_a_floor_and_then_a_line_has_no_steps_and_a_floor_is_flat() -> None:
    assert staircase(points(lambda length: max(2.0, 0.01 * length))).shape == "linear"
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
