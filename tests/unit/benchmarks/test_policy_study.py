"""The policy study: equal deployments and requests, and what is made of the figures."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from arlo.simulator.run import run
from benchmarks.figures import policy_settings, policy_study
from benchmarks.figures.policy_plots import plots
from benchmarks.figures.policy_settings import Setting, deployment, full_rate, relaxed, scenario, settings


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_settings, "REQUESTS", 5_000)
    monkeypatch.setattr(policy_settings, "LEAST_S", 0.5)


def test_settings_have_names_of_their_own_and_differ() -> None:
    found = settings()
    assert len({s.name for s in found}) == len(found) >= 50
    assert len({dataclasses.replace(s, name="", group="") for s in found}) == len(found)


def test_ratio_is_paired() -> None:
    centre, low, high = policy_study.ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert (centre, low, high) == pytest.approx((2.0, 2.0, 2.0))
    centre, low, high = policy_study.ratio([1.0, 4.0], [1.0, 1.0])
    assert centre == pytest.approx(2.0)
    assert low < 1.0
    assert high > 4.0  # two values say little
    assert math.isnan(policy_study.ratio([1.0], [2.0])[1])


def test_policies_get_the_same_deployment_and_requests(short: None) -> None:
    for s in (
        x for x in settings() if x.name in {"plain, bursty", "a tenth fails, stable", "batches of 8, limit 8, stable"}
    ):
        runs = [scenario(s, 10, 0.7, policy, 1) for policy in ("rs", "late")]
        assert len({r.allocate.start for r in runs}) == 1
        assert sum(deployment(s, 10, 0.7 * full_rate(s, 10))) == 10
        chunks = [np.concatenate([a for a, _ in r.workload.chunks()]) for r in runs]
        assert (chunks[0] == chunks[1]).all()
        results = [run(r) for r in runs]
        assert results[0].requests == results[1].requests > 2000


def test_the_relaxed_problem_is_no_slower(short: None) -> None:
    s = next(x for x in settings() if x.name == "plain, stable")
    whole = scenario(s, 10, 0.9, "late", 1)
    done = {"rs": run(dataclasses.replace(whole, dispatch=scenario(s, 10, 0.9, "rs", 1).dispatch))}
    for level in range(8):
        part = relaxed(whole, level)
        if part is not None:
            done[f"relaxed {level}"] = run(part)
    bound = policy_study._relaxed_mean(s, 10, 0.9 * full_rate(s, 10), done)
    assert 1.5 < bound < run(whole).mean_ms
    assert done["relaxed 7"].requests < done["relaxed 0"].requests / 100


def test_wrong_profiles_change_the_truth_not_the_plan(short: None) -> None:
    plain = Setting(name="p", group="p")
    wrong = dataclasses.replace(plain, truth=(2.0,) * 8)
    assert full_rate(wrong, 10) == pytest.approx(full_rate(plain, 10) / 2)
    assert deployment(wrong, 10, 3000.0) == deployment(plain, 10, 3000.0)
    slow, quick = (run(scenario(x, 10, 0.3, "late", 1)).mean_execution_ms for x in (wrong, plain))
    assert slow == pytest.approx(2 * quick, rel=0.1)


def test_rows_losses_and_plots(short: None) -> None:
    chosen = [Setting(name="plain, stable", group="plain", workers=(10,), loads=(0.5, 0.8))]
    rows = policy_study.measure_study(policy_study.Runner(1, quiet=True), chosen, seeds=2)
    assert [row["load"] for row in rows] == [0.5, 0.8]
    assert all(0 < row["late"]["mean"] < 1.1 for row in rows)
    summary = policy_study.summary(rows)
    assert [entry["setting"] for entry in summary] == ["plain, stable", "all"]
    assert summary[0]["late_mean"] == pytest.approx(
        math.sqrt(rows[0]["late"]["mean"] * rows[1]["late"]["mean"]), abs=1e-3
    )
    assert summary[0]["late_mean_worst"] == max(row["late"]["mean"] for row in rows)
    rows[0]["late"]["p98"] = 1.03
    assert [row["load"] for row in policy_study.losses(rows)] == [0.5]
    found = {"study": rows, "summary": summary, "losses": policy_study.losses(rows), "bar": []}
    assert set(plots(found)) == {"ratios over load", "settings and policies"}
    assert "plain, stable" in policy_study.report(found)
