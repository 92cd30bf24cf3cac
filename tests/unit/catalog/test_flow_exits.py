"""Exits by what was recorded of rows: shares, accuracies of who ends where, gains, and prices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.flow import Flow
from arlo.catalog.flow_accuracy import path_accuracy
from arlo.catalog.flow_exits import at_price, gain, takes
from arlo.catalog.flow_file import parse_flow
from arlo.catalog.flow_outcomes import Outcomes, RowOutcomes
from arlo.errors import ConfigError
from tests.fakes.flow_outcomes import EXIT, FLOW, ONWARD, outcomes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    outcomes().save(tmp_path / "records")
    return tmp_path


def flow_of(folder: Path, when: str, answer: str = '{ensemble = "last"}') -> tuple[Flow, RowOutcomes]:
    text = FLOW.format(edges=EXIT.format(when=when) + ONWARD.format(answer=answer))
    flow = parse_flow(text, base=folder)
    return flow, Outcomes.load(folder / "records").of(flow)


def test_shares_and_accuracies_are_of_the_rows_that_come(folder: Path) -> None:
    flow, records = flow_of(folder, '{score = "calibrated_max", at_least = 0.7}')
    assert flow.exit_share(0, 0) == pytest.approx(0.5, abs=0.03)
    ends, goes = path_accuracy(flow, 0, (0,), records), path_accuracy(flow, 1, (0, 0), records)
    assert ends == pytest.approx(0.85, abs=0.03), "who is sure is right more often than the mean of 0.7"
    assert goes == pytest.approx(0.9, abs=0.03)
    # The numbers of the plan are those of the rows, counted one by one.
    small, large = records.correct["first", "small"], records.correct["second", "large"]
    sure = records.score["first", "small"] >= 0.7
    by_hand = np.where(sure, small, large).mean()
    share = flow.exit_share(0, 0)
    assert share * ends + (1 - share) * goes == pytest.approx(by_hand, abs=1e-9)


def test_a_gain_is_what_the_next_one_adds_to_the_calibrated(folder: Path) -> None:
    flow, records = flow_of(folder, '{score = "calibrated_max", at_least = "price"}')
    curve = np.asarray(gain(flow.stages, flow.edges, 0, 0, records))
    assert np.interp(0.5, curve[:, 0], curve[:, 1]) == pytest.approx(0.4, abs=0.1)
    assert np.interp(0.97, curve[:, 0], curve[:, 1]) < 0.05
    ahead = flow.stages[1].accuracy(0)
    assert gain(flow.stages, flow.edges, 0, 0, None) == ((0.0, ahead), (1.0, ahead - 1))


def test_the_dearer_time_is_the_fewer_go_on(folder: Path) -> None:
    flow, records = flow_of(folder, '{score = "calibrated_max", at_least = "planned"}')
    shares = []
    for price in (0.0, 5.0, 20.0, 39.0, 100.0):  # 10 ms cost a hundredth of it
        priced, found = at_price(flow, records, price)
        shares.append(priced.exit_share(0, 0))
        (mask,) = [m for e, m in takes(flow.stages, flow.edges, flow.stages[0], 0, found).items() if e == 0]
        assert mask.mean() == pytest.approx(shares[-1])
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / 6, abs=0.05), "all that are less sure than 0.9 gain"
    assert shares[-1] == 1.0


def test_mixed_answers_are_counted_on_their_probabilities(folder: Path) -> None:
    flow, records = flow_of(
        folder, '{score = "calibrated_max", at_least = 1.0}', '{ensemble = "weighted", weights = [3, 1]}'
    )
    q = 0.75 * records.said["first", "small"] + 0.25 * records.said["second", "large"]
    right = q.argmax(axis=1) == records.truth["first", "small"]
    goes = records.score["first", "small"] < 1.0
    assert path_accuracy(flow, 1, (0, 0), records) == pytest.approx(right[goes].mean())
    bare = dataclasses.replace(records, said={})
    assert path_accuracy(flow, 1, (0, 0), bare) == pytest.approx(records.correct["second", "large"][goes].mean())


def test_another_temperature_than_the_recorded_one(folder: Path) -> None:
    flow, records = flow_of(folder, '{score = "calibrated_max", at_least = 0.7}')
    variant = dataclasses.replace(flow.stages[0].variants[0], temperature=2.0)
    stages = (dataclasses.replace(flow.stages[0], variants=(variant,)), flow.stages[1])
    tempered = Outcomes.load(folder / "records").of_stages(stages)
    said = records.said["first", "small"].astype(float)
    wanted = np.sqrt(said) / np.sqrt(said).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(tempered.score["first", "small"], wanted.max(axis=1), rtol=1e-3)
    assert flow.stages[0].variants[0].temperature == 1.0


def test_signals(folder: Path) -> None:
    _, records = flow_of(folder, '{score = "calibrated_max", at_least = 0.7}')
    q = np.sort(records.said["first", "small"], axis=1)
    np.testing.assert_allclose(records.signal(("first", "small"), "margin"), q[:, 2] - q[:, 1])
    entropy = records.signal(("first", "small"), "entropy")
    assert entropy is not None
    assert ((entropy >= 0) & (entropy <= 1)).all()
    assert records.signal(("first", "none"), "calibrated_max") is None


def exit_when(when: str, answer: str = '{ensemble = "last"}') -> str:
    return EXIT.format(when=when) + ONWARD.format(answer=answer)


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        (exit_when('{score = "calibrated_max", below = "price"}'), "when.at_least"),
        (
            exit_when('{score = "calibrated_max", at_least = "price", share = 0.5}', '{ensemble = "product"}'),
            "needs answer",
        ),
        (exit_when('{score = "calibrated_max", at_least = "cheap"}'), "must be 0 to 1, planned or price"),
        (exit_when('{score = "sureness", at_least = 0.5}'), "when.score"),
        (ONWARD.format(answer='{ensemble = "weighted", weights = [0.5]}'), "two numbers"),
        (ONWARD.format(answer='{ensemble = "last"}') + 'expand = {kind = "chunks", window = 9}', "become one row"),
        (ONWARD.format(answer='{ensemble = "last"}') + 'expand = {kind = "prune"}', "alpha"),
    ],
)
def test_what_makes_no_sense(folder: Path, edges: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_flow(FLOW.format(edges=edges), base=folder)
