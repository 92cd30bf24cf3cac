"""Plans of flows whose exits follow the load: the price of the plan is the price at which rows go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.flow_exits import cost_s, gain
from arlo.catalog.flow_file import parse_flow
from arlo.catalog.flow_outcomes import Outcomes
from arlo.planning.flows.planners import make_plan
from tests.fakes.flow_outcomes import FLOW, ONWARD, outcomes
from tests.fakes.flows import metered

EDGES = ONWARD.format(answer='{ensemble = "last"}') + 'when = {score = "calibrated_max", below = "planned"}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    outcomes().save(tmp_path / "records")
    return tmp_path


def test_price_and_threshold_agree(folder: Path) -> None:
    """The more rows come the fewer go on, what is served is all that can be, and who goes on is who gains most."""
    flow = parse_flow(FLOW.format(edges=EDGES), base=folder)
    records = Outcomes.load(folder / "records").of(flow)
    curve = np.asarray(gain(flow.stages, flow.edges, 0, 0, records))
    gains = np.interp(records.score["first", "small"], curve[:, 0], curve[:, 1])
    shares, accuracies = [], []
    for demand in (50.0, 150.0, 250.0, 400.0):  # 4 workers at .8: all of 50 go on, a part of the others
        plan = make_plan(flow, demand=demand, workers=4, outcomes=records)
        assert plan.served == pytest.approx(1.0)
        share = plan.flow.edges[0].when.share[0]
        shares.append(share)
        accuracies.append(plan.accuracy)
        if plan.price > 0:
            worth = float((gains > plan.price * cost_s(flow.stages, flow.edges, 0)).mean())
            assert worth <= share + 0.1
    assert shares == sorted(shares, reverse=True)
    assert accuracies == sorted(accuracies, reverse=True)
    assert shares[0] > 0.7
    assert shares[-1] < 0.6
    assert accuracies[-1] > records.correct["first", "small"].mean()


def test_what_a_row_gains_is_weighed_against_what_it_draws(folder: Path) -> None:
    """Where there is room for all, and time costs nothing: by the joules of the head alone."""
    flow = parse_flow(FLOW.format(edges=EDGES), base=folder)
    records = Outcomes.load(folder / "records").of(flow)
    curve = np.asarray(gain(flow.stages, flow.edges, 0, 0, records))
    gains = np.interp(records.score["first", "small"], curve[:, 0], curve[:, 1])
    joules = cost_s(metered(flow, 0, 100).stages, flow.edges, 0, joules=True)
    assert joules == pytest.approx(100 * cost_s(flow.stages, flow.edges, 0))
    shares = []
    for joule in (0.0, float(np.median(gains)) / joules):
        plan = make_plan(metered(flow, joule, 100), demand=20.0, workers=4, outcomes=records)
        assert plan.price == pytest.approx(0, abs=1e-9)
        shares.append(plan.flow.edges[0].when.share[0])
        assert shares[-1] == pytest.approx(float((gains > joule * joules).mean()))
    assert shares[1] < shares[0] - 0.1


def test_counted_shares_are_planned_for(folder: Path) -> None:
    """As in serving: what goes on is what was counted, whatever the price."""
    flow = parse_flow(FLOW.format(edges=EDGES), base=folder)
    records = Outcomes.load(folder / "records").of(flow)
    plan = make_plan(flow, demand=100.0, workers=4, outcomes=records, factors={(0, 0): 0.25}, exits={(0, 0): 0.75})
    rows = sum(pool.load for pool in plan.pools if pool.stage == 1)
    assert rows == pytest.approx(25.0)
