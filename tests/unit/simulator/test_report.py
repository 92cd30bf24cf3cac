"""The HTML report of simulations: its traces, its figures, nothing fetched from anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cli import main
from arlo.simulator.report.page import render, write_report
from arlo.simulator.report.plots import figures, labels_of
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario import config
from arlo.simulator.scenario.build import build

pytest.importorskip("plotly")


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


@pytest.fixture(scope="module")
def st() -> Result:
    return result("st", scheme="st")


def named(plots: list[Any]) -> dict[str, Any]:
    return {figure.layout.title.text: figure for figure in plots}


def test_one_run(one: Result) -> None:
    plots = named(figures([one], ["one"]))
    cdf = plots["Latency of all answers"]
    assert cdf.layout.xaxis.type == "log"
    (line,) = cdf.data
    assert (line.x[0], line.x[-1]) == (pytest.approx(one.cdf_ms[0], rel=1e-4), pytest.approx(one.max_ms, rel=1e-3))
    assert list(line.y) == sorted(line.y)
    load = plots["Load"].data[0]
    assert sum(load.y) == pytest.approx(one.requests, rel=1e-3)
    assert plots["Outcomes"].layout.annotations[0].text == "every request was on time"
    stack = plots["Instances of each runtime"].data
    assert [trace.name for trace in stack] == [f"static-{length}" for length in range(64, 513, 64)]
    assert {sum(column) for column in zip(*(trace.y for trace in stack), strict=True)} == {6.0}
    assert {trace.stackgroup for trace in stack} == {"one"}
    assert set(plots["GPUs over time"].data[0].y) == {6.0}
    assert all(value == 100 for value in plots["SLO attainment over time"].data[0].y)


def test_runs_over_each_other(one: Result, st: Result) -> None:
    plots = named(figures([one, st], ["one", "st"]))
    for title in ("Latency of all answers", "p98 latency over time", "Waiting at the request scheduler"):
        assert [trace.name for trace in plots[title].data] == ["one", "st"]
    # Both have the same load and GPUs: one line, not two of which one is hidden.
    for title in ("Load", "GPUs over time"):
        assert [trace.name for trace in plots[title].data] == ["all runs"]
    assert "Instances of each runtime: one" in plots
    assert "Instances of each runtime: st" not in plots  # it has one runtime


def test_outcomes_are_shares_of_the_requests() -> None:
    slow = result("slow", scheme="st", more="slo_ms = 20\ntimeout_ms = 40\nnoise = 1.5")
    bars = named(figures([slow], ["slow"]))["Outcomes"].data
    shares = {bar.name: bar.x[0] for bar in bars}
    assert shares
    for name, share in shares.items():
        assert share == pytest.approx(100 * slow.outcomes[name] / slow.requests, rel=1e-3)
    assert sum(shares.values()) == pytest.approx(100 * (1 - slow.slo_attainment), rel=1e-3)


def test_long_timelines_are_thinned_and_keep_their_worst(one: Result) -> None:
    rows = 5000
    timeline = {name: np.ones(rows) for name in one.timeline} | {"time_s": np.arange(1.0, rows + 1)}
    timeline["p98_ms"] = np.where(np.arange(rows) == 1234, 99.0, 1.0)
    timeline["attainment"] = np.where(np.arange(rows) == 777, 0.5, 1.0)
    timeline["arrived"] = np.arange(rows, dtype=np.float64)
    import dataclasses

    plots = named(figures([dataclasses.replace(one, timeline=timeline)], ["long"]))
    p98 = plots["p98 latency over time"].data[0]
    assert len(p98.y) <= 400
    assert max(p98.y) == 99.0
    assert min(plots["SLO attainment over time"].data[0].y) == 50.0
    assert np.mean(plots["Load"].data[0].y) == pytest.approx(rows / 2, rel=0.01)


def test_labels() -> None:
    class Named:
        def __init__(self, scenario: str) -> None:
            self.scenario = scenario

    assert labels_of([Named("a"), Named("b"), Named("a")]) == ["a (1)", "b", "a (2)"]  # type: ignore[list-item]


def test_the_page(one: Result, st: Result, tmp_path: Path) -> None:
    page = render([one, st], title="A & B", facts=[("cluster", "6 <GPUs>")], warnings=["mind the <gap>"])
    body = page.split("</head>")[1]
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:)[^"]+"', body) == []
    for text in ("A &amp; B", "6 &lt;GPUs&gt;", "mind the &lt;gap&gt;", "&lt;one&gt;", "static-512", "goodput /s"):
        assert text in body
    assert f"<td>{st.mean_ms:.2f}</td>" in body
    assert body.count("Plotly.newPlot") == 8
    write_report(tmp_path / "new" / "report.html", [one])
    assert f"{one.requests:,}" in (tmp_path / "new" / "report.html").read_text()


def test_a_run_that_answers_nothing_has_a_report_too(st: Result) -> None:
    """Every request is refused: no latencies, no padding."""
    text = """
    [workload]
    arrivals = "poisson"
    rate = 50
    duration_s = 3
    length = "bimodal:100:200:0.5"
    [cluster]
    workers = 1
    [dispatch]
    max_queued = 0
    [[runtime]]
    max_length = 64
    latency_ms = 1
    """
    empty = run(build(config.parse(text, base=Path()), name="empty").scenario)
    assert empty.outcomes["rejected"] == empty.requests > 0
    assert "nothing was answered" in json.dumps([str(figure) for figure in figures([empty], ["empty"])])
    assert "empty" in render([empty, st])
    assert "nan" not in render([empty]).split("</head>")[1].split('<div class="plots">')[0]
    assert "<b>- ms</b><span>mean latency" in render([empty])
    assert empty.summary()["mean_ms"] is None
    json.dumps(empty.summary(), allow_nan=False)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    arguments = ["--duration-s", "2", "--rate", "100", "--policy", "rs,eft", "--plot", str(path)]
    assert main(["simulate", *arguments]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    page = path.read_text()
    assert "<td>rs</td>" in page
    assert "dispatch eft" in page
