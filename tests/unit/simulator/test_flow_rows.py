"""Simulated rows are recorded ones: variants are right and wrong, sure and unsure on the same rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.catalog.flow import Flow
from arlo.catalog.flow_file import parse_flow
from arlo.catalog.flow_outcomes import Outcomes, RowOutcomes
from arlo.errors import ConfigError
from arlo.simulator.flows import scenario_of
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Listed
from tests.fakes.flow_outcomes import EXIT, FLOW, ONWARD, outcomes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    outcomes().save(tmp_path / "records")
    return tmp_path


def flow_of(folder: Path, edges: str) -> tuple[Flow, RowOutcomes]:
    flow = parse_flow(FLOW.format(edges=edges), base=folder)
    return flow, Outcomes.load(folder / "records").of(flow)


def arrivals(rate: float, seconds: float) -> NDArray[np.int64]:
    gaps = np.random.default_rng(5).exponential(1e9 / rate, round(rate * seconds))
    return np.cumsum(gaps).astype(np.int64)


def simulated(flow: Flow, records: RowOutcomes | None, rate: float, seconds: float = 60) -> Result:
    return run(scenario_of(flow, Listed(arrivals(rate, seconds)), outcomes=records, workers=2, bundle="all"))


def test_fixed_exits_and_what_is_right(folder: Path) -> None:
    """At a light load the shares and accuracies are those of the rows that were recorded, within chance."""
    edges = EXIT.format(when='{score = "calibrated_max", at_least = 0.8}') + ONWARD.format(answer='{ensemble = "last"}')
    flow, records = flow_of(folder, edges)
    found = simulated(flow, records, 60, 120)
    sure = records.score["first", "small"] >= 0.8
    right = np.where(sure, records.correct["first", "small"], records.correct["second", "large"])
    assert found.requests == 7200
    assert found.figures.more["visits"]["second:large"] / found.requests == pytest.approx(1 - sure.mean(), abs=0.02)
    assert found.figures.accuracy == pytest.approx(right.mean(), abs=0.015)
    assert found.kept == 1
    expected = simulated(flow, None, 60, 120)
    assert expected.figures.accuracy < found.figures.accuracy - 0.02, "means of variants know nothing of who ends where"


def test_both_must_be_right_on_one_row(folder: Path) -> None:
    """A product of two stages is counted on the rows: the same model twice is right as often as once."""
    stored = Outcomes.load(folder / "records")
    twice = dataclasses.replace(stored, variants={**stored.variants, "large": stored.variants["small"]})
    twice.save(folder / "records")
    flow, records = flow_of(folder, ONWARD.format(answer='{ensemble = "product"}').replace("answer", "#"))
    found = simulated(flow, records, 60)
    assert found.figures.accuracy == pytest.approx(records.correct["first", "small"].mean(), abs=0.02)


def test_the_more_waits_the_fewer_go_on(folder: Path) -> None:
    edges = ONWARD.format(answer='{ensemble = "weighted", weights = [0.7, 0.9]}')
    edges += 'when = {score = "calibrated_max", below = "price"}\n'
    flow, records = flow_of(folder, edges)
    shares, accuracies = [], []
    for rate in (40.0, 250.0, 900.0):  # two workers: 1 ms, and 10 ms for those that go on
        found = simulated(flow, records, rate, 20)
        shares.append(found.figures.more["visits"]["second:large"] / found.requests)
        accuracies.append(found.figures.accuracy)
        assert found.kept > 0.98, rate
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.75
    assert shares[2] < 0.25
    assert accuracies[0] > accuracies[1] > accuracies[2]
    assert accuracies[2] > records.correct["first", "small"].mean()


def test_what_comes_too_late_is_not_waited_for(folder: Path) -> None:
    """All rows go on, ten times as many as the second stage carries: the first answer counts, and none is late."""
    flow, records = flow_of(folder, ONWARD.format(answer='{ensemble = "last"}'))
    found = simulated(flow, records, 700, 20)
    assert found.kept > 0.98
    assert found.figures.more["fell_back"] > 0.4 * found.requests
    assert sum(found.figures.more["dropped"].values()) == 0


def test_exits_that_follow_the_load_need_rows(folder: Path) -> None:
    flow, _ = flow_of(
        folder, ONWARD.format(answer='{ensemble = "last"}') + 'when = {score = "margin", below = "price"}'
    )
    with pytest.raises(ConfigError, match="recorded rows"):
        simulated(flow, None, 60)
