"""Confidence, rules and decisions of cascades, by numbers that were computed from the formulas."""

from __future__ import annotations

import numpy as np
import pytest

from arlo.cascade import decide as d
from arlo.cascade.spec import NEVER, Calibrator, Ensemble, Rule, Rules, StageSpec, hard
from arlo.errors import ConfigError


def stage(t: float = 1.0, **settings: object) -> StageSpec:
    return StageSpec(calibrator=Calibrator(t=t), **settings)  # type: ignore[arg-type]


def conf(z: list[float], of: StageSpec) -> float:
    return float(d.confidence(of, [z])[0])


@pytest.mark.parametrize(
    ("z", "expected"),
    [
        ([2, 0.5, -1], [0.950330211697, 0.785597034589, 0.665240955775, 0.540538831852]),
        ([3.2, -1.1], [0.999815928095, 0.986613082172, 0.946173837231, 0.848128836343]),
    ],
)
def test_temperature(z: list[float], expected: list[float]) -> None:
    assert [conf(z, stage(t)) for t in (0.5, 1, 1.5, 2.5)] == pytest.approx(expected, abs=1e-11)


def test_squared_and_four_labels() -> None:
    assert conf([2, 0.5, -1], stage(1.5, scale="prob2")) == pytest.approx(0.442545529240, abs=1e-11)
    assert conf([10, 9, 0, -5], stage(1.5)) == pytest.approx(0.660181417309, abs=1e-11)


def test_eq_4() -> None:
    con = [0.85, 0.9, 0.925, 0.95, 0.975, 1]
    p = d.escalation_probability(Rule(kind="soft", c=0.9, k=10), con)
    assert p == pytest.approx([1, 1, 0.924141819979, 0.5, 0.075858180021, 0.006692850924], abs=1e-11)
    assert d.escalation_probability(Rule(kind="soft", c=0.9, k=5), 1.0) == pytest.approx(0.075858180021, abs=1e-11)
    assert d.escalation_probability(Rule(kind="soft", c=1, k=5), 1.0) == 1


def test_ensemble_turns_the_answer_back() -> None:
    logits = [[[1.2, 0.4]], [[-0.3, 0.1]]]
    said = [d.answers(stage(), z) for z in logits]
    w = 91.4 / (76.2 + 91.4)
    assert w == pytest.approx(0.545346062053, abs=1e-11)
    s = w * said[1].calibrated[0] + (1 - w) * said[0].calibrated[0]
    assert s == pytest.approx([0.532553719139, 0.467446280861], abs=1e-11)
    both = np.ones((1, 2), np.bool_)
    alone = Rules(prices=((hard(NEVER),),))
    assert d.mixed(alone, said, both).tolist() == [1]
    mixed = Rules(prices=alone.prices, ensemble=Ensemble(kind="calibrated", weights=(76.2, 91.4)))
    assert d.mixed(mixed, said, both).tolist() == [0]


def test_what_is_not_finite_has_no_confidence() -> None:
    z = [[np.nan, 0], [np.inf, 0], [9, 0]]
    assert d.confidence(stage(), z).tolist()[:2] == [0, 0]
    assert d.answers(stage(), z).finite.tolist() == [False, False, True]


def test_scores() -> None:
    q = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    assert d.score_of("margin", q) == pytest.approx([0.5, 1.0])
    assert d.score_of("entropy", q) == pytest.approx(
        [1 + (0.7 * np.log(0.7) + 0.2 * np.log(0.2) + 0.1 * np.log(0.1)) / np.log(3), 1]
    )
    own = d.confidence(StageSpec(score="output"), np.zeros((3, 2)), own=[0.4, 1.7, np.nan])
    assert own.tolist() == [0.4, 1.0, 0.0]


def test_calibrators() -> None:
    z = np.array([[1.0, -1.0], [0.2, 0.4]])
    same = StageSpec(calibrator=Calibrator(kind="vector", scale=(0.5, 0.5), bias=(0.0, 0.0)))
    assert d.calibrate(same, z)[0] == pytest.approx(d.calibrate(stage(2.0), z)[0])
    dirichlet = StageSpec(calibrator=Calibrator(kind="dirichlet", scale=(0.5, 0.0, 0.0, 0.5), bias=(0.0, 0.0)))
    assert d.calibrate(dirichlet, z)[0] == pytest.approx(d.calibrate(stage(2.0), z)[0])
    curve = StageSpec(calibrator=Calibrator(kind="isotonic", curve=((0.5, 0.4), (0.7, 0.6), (0.9, 0.6))))
    assert d.finish(curve, [0.1, 0.6, 0.8, 1.0]) == pytest.approx([0.4, 0.5, 0.6, 0.6])
    by_length = StageSpec(calibrator=Calibrator(t=3.0, by_length=((8, 1.0), (16, 2.0))))
    assert d.temperatures(by_length.calibrator, [8, 9, 16, 17]).tolist() == [1, 2, 2, 3]


def test_labels_in_another_order() -> None:
    turned = StageSpec(label_order=(1, 0))
    assert d.answers(turned, [[5.0, 0.0]]).answer.tolist() == [1]
    assert d.calibrate(turned, [[5.0, 0.0]])[0][0, 1] > 0.99


def test_walk() -> None:
    rules = Rules(prices=((hard(0.9), hard(0.8)),))
    z = [[[3.0, 0.0], [0.1, 0.0], [0.1, 0.0]], [[0.0, 9.0], [0.0, 9.0], [0.1, 0.0]], [[0.0, 9.0]] * 3]
    ended = d.walk(rules, [d.answers(stage(), each) for each in z], 10)
    assert ended.stage.tolist() == [0, 1, 2]
    assert ended.answer.tolist() == [0, 1, 1]
    assert ended.ran.tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_walk_keeps_the_last_answer_that_means_something() -> None:
    rules = Rules(prices=((hard(0.9),),))
    said = [d.answers(stage(), [[0.1, 0.0]]), d.answers(stage(), [[np.nan, 1.0]])]
    ended = d.walk(rules, said, 1)
    assert (ended.stage[0], ended.answer[0]) == (1, 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Calibrator(t=0), "above 0"),
        (lambda: Rule(t=((8, 1.1),)), "rule.t"),
        (lambda: Rules(prices=((hard(0.5),), (hard(0.6),))), "higher price"),
        (lambda: Rules(prices=((hard(0.5),),), skip=((0.2,),)), r"skip\[0\]"),
        (lambda: Ensemble(kind="raw"), "weights"),
        (lambda: Calibrator(kind="isotonic"), "curve"),
        (lambda: StageSpec(label_order=(0, 0)), "label_order"),
    ],
)
def test_what_is_wrong_is_named(make: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()  # type: ignore[operator]
