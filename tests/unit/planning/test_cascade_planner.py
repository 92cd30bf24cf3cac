"""Workers among the stages of a cascade: what differs from models that know nothing of each other."""

from __future__ import annotations

import math

import pytest

from arlo.planning.cascade import Stages, upper
from arlo.planning.models import Models
from arlo.planning.planner import Plan, Planner
from tests.fakes.planned_models import SETTINGS, served

STAGES = [served("small", (16, 64), workers=3), served("large", (16, 64), workers=3)]
WORKERS = [f"w{n}" for n in range(6)]


def planner(*reach: float) -> Planner:
    return Planner(SETTINGS, stages(*reach))


def stages(*reach: float, lengths: tuple[float, ...] = ()) -> Stages:
    return Stages(SETTINGS, STAGES, reach or (1.0, 0.5), lengths=lengths)


class Traffic:
    """So many rows of 60 tokens a second at either stage."""

    def __init__(self, plans: Planner) -> None:
        self._plans, self._at_s, self._counts = plans, 0, [[0] * 65, [0] * 65]

    def come(self, seconds: int, small: int, large: int) -> None:
        for _ in range(seconds):
            self._plans.add(float(self._at_s), 0.0, self._plans.subject.joined(self._counts))
            self._at_s += 1
            self._counts[0][60] += small
            self._counts[1][60] += large


def come(plans: Planner, seconds: int, small: int, large: int) -> Traffic:
    traffic = Traffic(plans)
    traffic.come(seconds, small, large)
    return traffic


def made(plans: Planner, now_s: float, wanted: tuple[int, int], reason: str = "period") -> Plan | None:
    begun = plans.begin(reason, now_s, WORKERS, wanted)  # type: ignore[arg-type]
    return None if begun.question is None else plans.conclude(begun.question, begun.question.solve())


@pytest.mark.parametrize(("rows", "exact"), [(0, 2.9957), (3, 7.7537), (10, 16.9622), (100, 118.0789), (1000, 1054.0)])
def test_the_upper_end_of_an_interval(rows: float, exact: float) -> None:
    """Half a quantile of chi-squared with 2 (rows + 1) degrees of freedom."""
    assert upper(rows) == pytest.approx(exact, rel=0.01)


def test_little_seen_of_the_last_stage_counts_for_more() -> None:
    subject = stages()
    plans = Planner(SETTINGS, subject)
    come(plans, 60, 100, 2)
    demand = plans.demand()
    first, last = subject.rates(demand)
    as_counted = Models.rates(subject, demand)
    assert first.sum() == pytest.approx(as_counted[0].sum())
    rows = 2 * 59
    assert last.sum() / as_counted[1].sum() == pytest.approx(upper(rows) / rows)
    assert last.sum() > as_counted[1].sum() * 1.1


def test_a_later_stage_has_what_is_left_of_the_slo() -> None:
    plans, subject = planner(), stages()
    come(plans, 60, 100, 50)
    assert subject.left_ms(plans.demand()) == pytest.approx([100, 100 - 64 / 50])
    slow = Stages(SETTINGS, [served("s", (64,), slo_ms=1.2), served("l", (64,), slo_ms=1.2)], (1, 1))
    assert slow.left_ms(Planner(SETTINGS, slow).demand()) == pytest.approx([1.2, 0.12])  # never nothing


def test_before_traffic_stages_are_asked_for_by_reach() -> None:
    any_length = stages(1.0, 0.25)
    small, large = (sum(one.mean) for one in any_length.by_model(any_length.stand_in().demand))
    assert large == pytest.approx(small / 4)
    lengths = stages(1.0, 0.25, lengths=(3.0, 8.0, 12.0, 30.0))
    first, last = lengths.by_model(lengths.stand_in().demand)
    assert first.mean[0] == pytest.approx(3 * first.mean[1])
    assert last.mean[0] == pytest.approx(3 * last.mean[1])
    assert Planner(SETTINGS, lengths).first(6) == (4, 2)  # a row alone takes as long at both


def test_another_point_is_planned_for_at_once() -> None:
    plans = planner(1.0, 0.2)
    traffic = come(plans, 60, 2000, 400)
    before = made(plans, 60.0, (3, 3))
    assert before is not None
    assert before.best[0] > before.best[1]
    plans.subject.turn((1.0, 1.0))
    plan = made(plans, 61.0, (before.best[0], before.best[1]), "point")
    assert plan is not None
    assert plan.reason == "point"
    assert plan.best == (3, 3)
    assert plan.moves
    known = plans.last_demand
    assert known is not None
    assert sum(known.mean[2:]) == pytest.approx(sum(known.mean[:2]))
    assert made(plans, 62.0, (3, 3)) is None, "what was counted under the other point is forgotten"
    traffic.come(60, 2000, 2000)
    later = made(plans, 121.0, (3, 3))
    assert later is not None
    assert not later.moves


def test_a_stage_that_had_no_rows_gets_its_share_of_the_first() -> None:
    plans = planner(1.0, 0.0)
    come(plans, 60, 100, 0)
    made(plans, 60.0, (3, 3))
    plans.subject.turn((1.0, 0.3))
    made(plans, 61.0, (5, 1), "point")
    known = plans.last_demand
    assert known is not None
    assert sum(known.mean[2:]) == pytest.approx(0.3 * sum(known.mean[:2]))
    assert math.isfinite(known.total)


def test_two_turns_are_one() -> None:
    plans = planner(1.0, 0.2)
    come(plans, 60, 400, 80)
    plans.subject.turn((1.0, 0.5))
    plans.subject.turn((1.0, 0.4))
    made(plans, 61.0, (3, 3), "point")
    known = plans.last_demand
    assert known is not None
    assert sum(known.mean[2:]) == pytest.approx(0.4 * sum(known.mean[:2]))
