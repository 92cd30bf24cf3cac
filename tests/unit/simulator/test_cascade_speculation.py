"""Speculation, simulated: what it saves at low load, and that it gives way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arlo.cascade.spec import Rules, hard
from arlo.simulator.cascade.engine import CascadeResult, CascadeRun, Journeys, run
from arlo.simulator.scenario.scenario import RuntimeModel

SMALL = RuntimeModel(name="small", max_length=64, points=((64, 1, 3.0),))
LARGE = RuntimeModel(name="large", max_length=64, points=((64, 1, 4.0),))


def played(
    rate: float, *, goes_on: float = 0.7, rows: int = 4000, workers: tuple[int, ...] = (2, 4), **how: Any
) -> CascadeResult:
    random = np.random.default_rng(1)
    confidence = np.stack([(random.random(500) >= goes_on).astype(float), np.ones(500)], axis=1)
    return run(
        CascadeRun(
            stages=[[SMALL], [LARGE]],
            workers=workers,
            rules=Rules(prices=((hard(0.5),),)),
            journeys=Journeys(confidence=confidence, correct=np.ones((500, 2), np.bool_)),
            arrived_ns=random.exponential(1e9 / rate, rows).cumsum().astype(np.int64),
            lengths=np.full(rows, 30, np.int32),
            slo_ms=50,
            batching="one",
            **how,
        )
    )


def test_rows_that_go_on_take_as_long_as_the_last_stage_alone() -> None:
    apart, beside = played(20), played(20, speculate=True)
    assert (apart.rows, beside.rows) == (4000, 4000)
    assert apart.speculated == 0
    assert beside.speculated > 0.9 * 4000
    assert beside.exits == apart.exits  # the first stage is the quicker one, and decides first where it is sure
    assert apart.p98_ms == pytest.approx(7, rel=0.1)
    assert beside.p98_ms == pytest.approx(4, rel=0.2)
    assert beside.mean_ms < 0.8 * apart.mean_ms
    assert beside.reasons == apart.reasons


def test_it_gives_way_to_work_that_is_sure() -> None:
    """At nine tenths of what the last stage carries: hardly a row, and no harm."""
    apart, beside = played(1200, workers=(8, 4)), played(1200, workers=(8, 4), speculate=True)
    assert beside.speculated < 0.1 * 4000
    assert beside.mean_ms < 1.05 * apart.mean_ms
    assert beside.on_time >= apart.on_time - 0.01


@pytest.mark.parametrize(("goes_on", "workers"), [(0.4, (2, 4)), (0.7, (2, 1))])
def test_not_where_most_rows_end_early_or_one_instance_is_all(goes_on: float, workers: tuple[int, int]) -> None:
    assert played(20, goes_on=goes_on, workers=workers, speculate=True).speculated == 0


def test_whichever_decides_first_ends_the_row() -> None:
    """The first stage is overloaded: rows that wait for it end by the last one, each once."""
    crowded = {"workers": (1, 8), "rate": 360.0, "goes_on": 0.9}
    apart, beside = played(**crowded), played(**crowded, speculate=True)
    assert beside.rows == apart.rows == 4000
    assert sum(beside.reasons.values()) == 4000
    assert beside.exits[1] > apart.exits[1]
    assert beside.mean_ms < apart.mean_ms


@pytest.mark.parametrize("seed", range(3))
def test_time_limits_and_prices_go_with_it(seed: int) -> None:
    how = {
        "timeout_ms": 60.0,
        "auto_price": True,
        "seed": seed,
        "workers": (2, 4),
        "hop_out_ms": 0.2,
        "hop_back_ms": 0.2,
    }
    found = played(700, speculate=True, **how)
    assert repr(found) == repr(played(700, speculate=True, **how))  # the same each time; what is not known is nan
    assert sum(found.reasons.values()) <= 4000
    assert found.on_time > 0.95
