"""Simulated cascades whose rows have no time for the stage that they should go to."""

from __future__ import annotations

import numpy as np

from arlo.cascade.spec import Rules, hard
from arlo.simulator.cascade.engine import CascadeResult, CascadeRun, Journeys, run
from arlo.simulator.scenario.scenario import RuntimeModel

ROWS = 200


def played(ms: tuple[float, float, float], *, timeout_ms: float, workers: tuple[int, ...] = (2, 2, 2)) -> CascadeResult:
    """Rows, one after the other, that the first stage would send to the last one, past the second, which is sure."""
    stages = [
        [RuntimeModel(name=f"s{i}", max_length=64, points=((64, 1, each),), max_batch=1)] for i, each in enumerate(ms)
    ]
    confidence = np.tile([0.1, 0.9, 1.0], (10, 1))
    return run(
        CascadeRun(
            stages=stages,
            workers=workers,
            rules=Rules(prices=((hard(0.5), hard(0.5)),), skip=((0.3,), ())),
            journeys=Journeys(confidence=confidence, correct=np.ones((10, 3), np.bool_)),
            arrived_ns=np.arange(ROWS) * 50_000_000,
            lengths=np.full(ROWS, 30, np.int32),
            slo_ms=timeout_ms,
            timeout_ms=timeout_ms,
            batching="one",
        )
    )


def test_there_is_time() -> None:
    result = played((2, 4, 20), timeout_ms=40)
    assert result.exits == (0, 0, 1)
    assert result.degraded == 0


def test_a_stage_before_the_one_that_takes_too_long() -> None:
    result = played((2, 4, 20), timeout_ms=15)
    assert result.exits == (0, 1, 0)
    assert result.on_time == 1
    assert result.rows == ROWS


def test_none_before_it_either() -> None:
    result = played((2, 19, 20), timeout_ms=15)
    assert result.exits == (1, 0, 0)
    assert result.reasons == {"deadline": ROWS}
