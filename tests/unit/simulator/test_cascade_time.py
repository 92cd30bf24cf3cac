"""Simulated cascades whose rows have no time for the stage that they should go to."""

from __future__ import annotations

import numpy as np

from arlo.cascade.spec import Rules, hard
from arlo.simulator.cascade.served import Journeys, scenario_of
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Dispatch, Listed, RuntimeModel

ROWS = 200


def played(ms: tuple[float, float, float], *, timeout_ms: float, workers: tuple[int, ...] = (2, 2, 2)) -> Result:
    """Rows, one after the other, that the first stage would send to the last one, past the second, which is sure."""
    stages = [
        [RuntimeModel(name=f"s{i}", max_length=64, points=((64, 1, each),), max_batch=1)] for i, each in enumerate(ms)
    ]
    confidence = np.tile([0.1, 0.9, 1.0], (10, 1))
    return run(
        scenario_of(
            stages,
            Rules(prices=((hard(0.5), hard(0.5)),), skip=((0.3,), ())),
            Journeys(confidence=confidence, correct=np.ones((10, 3), np.bool_)),
            Listed(np.arange(ROWS) * 50_000_000, np.full(ROWS, 30, np.int32)),
            workers=workers,
            slo_ms=timeout_ms,
            timeout_ms=timeout_ms,
            dispatch=Dispatch(batching="one"),
        )
    )


def test_there_is_time() -> None:
    result = played((2, 4, 20), timeout_ms=40)
    assert result.figures.more["exits"] == [0, 0, 1]
    assert result.figures.degraded == 0


def test_a_stage_before_the_one_that_takes_too_long() -> None:
    result = played((2, 4, 20), timeout_ms=15)
    assert result.figures.more["exits"] == [0, 1, 0]
    assert result.slo_attainment == 1
    assert result.requests == ROWS


def test_none_before_it_either() -> None:
    result = played((2, 19, 20), timeout_ms=15)
    assert result.figures.more["exits"] == [1, 0, 0]
    assert result.figures.more["reasons"] == {"deadline": ROWS}
