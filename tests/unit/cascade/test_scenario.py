"""Scenarios with a cascade: rows of records and of a population, every scheme, rows that change, stages that die."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli import main
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import draw_by_length, read_study
from arlo.simulator.cascade.served import ServedCascade
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.config import load, parse, to_toml

from .conftest import EXAMPLES, LOAD, Made, fit, of_records

POPULATION = """\
[[stage]]
name = "small"
latency_ms = 2
confidence = [[0.75, 0.6]]
right = [[0, 0.6], [0.75, 0.96]]
[[stage]]
name = "large"
latency_ms = 10
right = [[0, 0.9], [0.75, 0.97]]
"""


def simulated(text: str) -> Result:
    return run(build(parse(LOAD + text, base=Path())).scenario)


@pytest.fixture
def searched(made: Made) -> Path:
    """With operating points."""
    path = made()
    fit(path, "--tolerance", "0.01")
    return path


def test_records_end_where_the_search_found_them_to(searched: Path) -> None:
    found = simulated(of_records(searched))
    point = CascadeManifest.load(searched).point()
    assert point.accuracy is not None
    assert found.figures.more["exits"][1] == pytest.approx(
        point.reach[1], abs=0.03
    )  # rows are drawn: 6,000 of 720 records
    assert found.figures.accuracy == pytest.approx(point.accuracy[0], abs=0.02)
    assert found.figures.more["agreement"] == pytest.approx(point.agreement, abs=0.02)
    assert found.slo_attainment == 1.0
    assert sum(found.figures.more["reasons"].values()) == found.requests
    assert found.figures.more["exit_ms"][0]["mean"] < found.figures.more["exit_ms"][1]["mean"]


def test_energy_is_that_of_the_stages_that_rows_ran_on(searched: Path) -> None:
    manifest = CascadeManifest.load(searched)
    stages = [
        dataclasses.replace(stage, energy_mj=((1, 1, mj), (64, 1, mj)), energy_source="modelled")
        for stage, mj in zip(manifest.stages, (100.0, 900.0), strict=True)
    ]
    text = f'[cascade]\nmanifest = "{searched}"\ndata = "{searched.parent / "texts.jsonl"}"\n'
    assert simulated(text).joules is None
    dataclasses.replace(manifest, stages=tuple(stages)).save(searched)
    found = simulated(text)
    assert found.joules == pytest.approx(0.1 + 0.9 * found.figures.more["exits"][1], rel=1e-6)
    assert simulated(text + "watts = [10, 20]\n").joules != found.joules


def test_lengths_of_the_workload_take_records_of_such_lengths(searched: Path) -> None:
    study = read_study(searched, searched.parent / "texts.jsonl", None).of(2)
    lengths = np.full(2000, 10)
    drawn = study.length[draw_by_length(study.length, lengths, np.random.default_rng(0))]
    assert drawn.max() <= np.quantile(study.length, 1 / 4)
    built = build(parse(LOAD + of_records(searched, 'lengths = "workload"'), base=Path()))
    assert isinstance(built.scenario.served, ServedCascade)
    assert built.scenario.served.lengths is not None
    assert built.scenario.served.lengths.min() >= 8
    assert "by the lengths of the workload" in built.notes[0]


def test_one_stage_alone(searched: Path) -> None:
    found = simulated(of_records(searched, 'scheme = "single:s1"'))
    study = read_study(searched, searched.parent / "texts.jsonl", None)
    last = float((study.of(2).said[-1].answer == study.of(2).truth).mean())
    assert found.figures.more["exits"] == [1.0]
    assert found.figures.accuracy == pytest.approx(last, abs=0.02)
    assert found.figures.more["agreement"] == 1.0


def test_a_population_gives_its_own_shares() -> None:
    found = simulated("[cascade]\ntolerance = 0.006\nwatts = [50, 250]\n" + POPULATION)
    assert found.figures.more["exits"][0] == pytest.approx(0.6, abs=0.02)
    assert found.figures.accuracy == pytest.approx(0.6 * 0.96 + 0.4 * 0.9, abs=0.02)
    assert found.mean_ms == pytest.approx(2 + 0.4 * 10, abs=0.5)
    assert np.isnan(found.figures.more["agreement"])
    assert found.joules is not None
    # Busy for 6 ms of a row, and four workers that wait for the rest of 10 ms between rows.
    assert found.joules == pytest.approx((4 * 10 * 50 + 6 * 200) / 1000, rel=0.05)


def test_rows_that_change_and_a_stage_that_dies() -> None:
    text = (
        "[cascade]\nworkers = [2, 2]\ntolerance = 0.02\n"
        + POPULATION.replace("[[0.75, 0.6]]", "[[0.6, 0.8], [0.75, 0.6], [0.9, 0.3]]")
        + "[[change]]\nat_s = 15\ntemperature = 3.0\n[[change]]\nat_s = 30\nreach = 1.4\n[[change]]\nat_s = 45\n"
        + "".join(f"[[fault]]\nat_s = 45\nworker = {worker}\n" for worker in (2, 3))
    )
    found = simulated(text)
    before, surer, more, gone = found.figures.more["parts"]
    assert surer["exits"][0] > before["exits"][0] + 0.03
    assert more["exits"][1] == pytest.approx(1.4 * before["exits"][1], rel=0.12)
    assert gone["degraded"] == pytest.approx(before["exits"][1], abs=0.05)
    assert gone["exits"][1] < 0.02
    assert not found.figures.more["unanswered"]
    assert found.figures.more["reasons"]["stage_absent"] == pytest.approx(
        gone["degraded"] * gone["rows"], abs=3
    )  # some waited there


@pytest.mark.parametrize("name", ["cascade_sst2", "cascade_drift"])
def test_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.toml"
    assert main(["simulate", str(path), "--duration-s", "58", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["stages"] == ["small", "large"]
    assert found["slo_attainment"] > 0.99
    assert sum(found["exits"]) == pytest.approx(1)
    assert len(found["parts"]) == (4 if name == "cascade_drift" else 0)
    config = load(path)
    assert parse(to_toml(config, base=path.parent), base=path.parent) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cascade]\ntolerance = 0.5\n", "manifest is needed"),
        ('[cascade]\nscheme = "best"\n' + POPULATION, "scheme must be one of"),
        ('[cascade]\nscheme = "single:medium"\n' + POPULATION, "there is no such stage, only small, large"),
        ("[cascade]\nworkers = [1, 1]\n" + POPULATION, "are 2 in all"),
        ("[cascade]\nworkers = [4]\n" + POPULATION, "one number for each stage, small, large"),
        (POPULATION.replace("confidence = [[0.75, 0.6]]\n", ""), "confidence of small is needed"),
        (POPULATION.replace("[[0.75, 0.6]]", "[[0.75, 0.6], [0.8, 0.7]]"), "must fall"),
        (POPULATION.replace("latency_ms = 10\n", ""), "latency_ms or profile of large is needed"),
        (POPULATION + "[[change]]\nat_s = 5\nreach = 9\n", "no more than all can"),
        ('[cascade]\nmanifest = "x.json"\n', "data is needed with manifest"),
        (POPULATION + "[[runtime]]\nmax_length = 64\nlatency_ms = 1\n", "does not go with"),
    ],
)
def test_mistakes_name_the_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulated(text)


def test_a_cascade_has_a_page_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there of one model is there of a cascade."""
    page, rows = tmp_path / "page.json", tmp_path / "rows.csv"
    asked = ["simulate", str(EXAMPLES / "cascade_sst2.toml"), "--duration-s", "5", "--price", "2"]
    assert main([*asked, "--plot", str(page), "--record", str(rows)]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert len(rows.read_text().splitlines()) > 400
    assert json.loads(page.read_text())


FIND = """\
[workload]
arrivals = "poisson"
rate = 400
duration_s = 30
length = "uniform:8:60"
[cluster]
workers = {workers}
slo_ms = 60
overhead_ms = 0
[dispatch]
batching = "deadline"
[cascade]
tolerance = 0.006
{more}
"""


def test_the_fewest_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row takes 2 ms, and two in five 10 more: 2.4 workers' time."""
    path = tmp_path / "scenario.toml"
    path.write_text(FIND.format(workers=9, more="") + POPULATION)
    assert main(["simulate", str(path), "--find-workers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tried = {each["workers"]: each for each in found["tried"]}
    assert found["workers"] == 3
    assert tried[3]["slo_attainment"] >= 0.99
    assert tried[3]["degraded"] <= 0.01
    assert min(tried[2]["slo_attainment"], 1 - tried[2]["degraded"]) < 0.99
    assert main(["simulate", str(path), "--find-workers", "--attainment", "0.6"]) == 0
    assert "2 GPUs keep 60% on time and not degraded" in capsys.readouterr().out, "with one, a third is degraded"


def test_the_fewest_workers_of_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(FIND.format(workers=3, more="workers = [1, 2]") + POPULATION)
    assert main(["simulate", str(path), "--find-workers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] in (3, 4)  # the last stage has 1.6 workers' time to do
    assert min(each["workers"] for each in found["tried"]) >= 2


def test_no_number_of_workers_makes_a_stage_quicker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(FIND.format(workers=3, more="").replace("slo_ms = 60", "slo_ms = 9") + POPULATION)
    assert main(["simulate", str(path), "--find-workers"]) == 0
    assert "no number of GPUs keeps 99%" in capsys.readouterr().out
