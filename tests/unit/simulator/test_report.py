"""A simulation as a result file: its charts, its figures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cli import main
from arlo.report.result import load
from arlo.simulator.report.page import document
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario import config
from arlo.simulator.scenario.build import build


def result(name: str, *, scheme: str = "arlo", more: str = "") -> Result:
    text = f"""
    [workload]
    arrivals = "poisson"
    rate = 400
    duration_s = 8
    [cluster]
    scheme = "{scheme}"
    workers = 6
    {more}
    """
    return run(build(config.parse(text, base=Path()), name=name).scenario)


@pytest.fixture(scope="module")
def one() -> Result:
    return result("<one>")


def charts(one: Result) -> dict[str, dict[str, Any]]:
    return {each["title"]: each for each in document(one)["charts"]}


def test_one_run(one: Result) -> None:
    found = charts(one)
    (line,) = found["Latency of all answers"]["lines"]
    assert (line["x"][0], line["x"][-1]) == pytest.approx((one.cdf_ms[0], one.max_ms), rel=1e-3)
    assert line["y"] == sorted(line["y"])
    assert sum(found["Load"]["lines"][0]["y"]) == pytest.approx(one.requests, rel=1e-3)
    assert found["Outcomes"]["lines"] == []
    stack = found["Instances of each runtime"]["lines"]
    assert [each["name"] for each in stack] == [f"static-{length}" for length in range(64, 513, 64)]
    assert {sum(column) for column in zip(*(each["y"] for each in stack), strict=True)} == {6.0}
    assert set(found["GPUs over time"]["lines"][0]["y"]) == {6.0}
    assert all(value == 100 for value in found["SLO attainment over time"]["lines"][0]["y"])
    whole = document(one, facts=[("cluster", "6 <GPUs>")], warnings=["mind"])
    assert [each["title"] for each in whole["tables"]] == ["Runtimes", "What was simulated"]
    assert [f"{one.requests:,}", "requests"] in whole["cards"]


def test_outcomes_are_shares_of_the_requests() -> None:
    slow = result("slow", scheme="st", more="slo_ms = 20\ntimeout_ms = 40\nnoise = 1.5")
    (bars,) = charts(slow)["Outcomes"]["lines"]
    for name, share in zip(bars["x"], bars["y"], strict=True):
        assert share == pytest.approx(100 * slow.outcomes.get(name, 0) / slow.requests, rel=1e-3)
    assert sum(bars["y"]) == pytest.approx(100 * (1 - slow.slo_attainment), rel=1e-3)


def test_long_timelines_are_thinned_and_keep_their_worst(one: Result) -> None:
    rows = 5000
    timeline = {name: np.ones(rows) for name in one.timeline} | {"time_s": np.arange(1.0, rows + 1)}
    timeline["p98_ms"] = np.where(np.arange(rows) == 1234, 99.0, 1.0)
    timeline["attainment"] = np.where(np.arange(rows) == 777, 0.5, 1.0)
    timeline["arrived"] = np.arange(rows, dtype=np.float64)
    found = charts(dataclasses.replace(one, timeline=timeline))
    p98 = found["p98 latency over time"]["lines"][0]["y"]
    assert len(p98) <= 400
    assert max(p98) == 99.0
    assert min(found["SLO attainment over time"]["lines"][0]["y"]) == 50.0
    assert np.mean(found["Load"]["lines"][0]["y"]) == pytest.approx(rows / 2, rel=0.01)


def test_a_run_that_answers_nothing_has_a_report_too() -> None:
    """Every request is refused: no latencies, no padding."""
    text = """
    [workload]
    arrivals = "poisson"
    rate = 50
    duration_s = 3
    length = "bimodal:100:200:0.5"
    [cluster]
    workers = 1
    [[runtime]]
    max_length = 64
    latency_ms = 1
    """
    scenario = build(config.parse(text, base=Path()), name="empty").scenario
    empty = run(dataclasses.replace(scenario, dispatch=dataclasses.replace(scenario.dispatch, max_queued=0)))
    assert empty.outcomes["rejected"] == empty.requests > 0
    whole = document(empty)
    assert whole["charts"][0]["lines"] == []
    assert ["- ms", "mean latency"] in whole["cards"]
    assert "nan" not in json.dumps(whole, allow_nan=False)
    assert empty.summary()["mean_ms"] is None
    json.dumps(empty.summary(), allow_nan=False)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "report.html"
    arguments = ["--duration-s", "2", "--rate", "100", "--policy", "rs,eft", "--plot", str(path)]
    assert main(["simulate", *arguments]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    assert "<td>rs</td>" in path.read_text()
    path = tmp_path / "report.json"
    assert main(["simulate", *arguments[:-1], str(path)]) == 0
    found = load(path)
    assert [each["label"] for each in found] == ["rs", "eft"]
    assert [each["title"] for each in found[1]["tables"]] == ["Runtimes", "What was simulated"]
