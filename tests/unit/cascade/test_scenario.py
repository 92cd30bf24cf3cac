"""Scenarios with a cascade: rows of records, operating points and stages alone, stages that die."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from arlo.cascade.manifest import CascadeManifest
from arlo.cli import main
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import read_study
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.build import build
from arlo.simulator.scenario.config import parse, to_toml

from .conftest import EXAMPLES, LOAD, Made, fit, of_records


def simulated(text: str) -> Result:
    return run(build(parse(text, base=Path())).scenario)


@pytest.fixture
def searched(made: Made) -> Path:
    """With operating points."""
    path = made()
    fit(path, "--tolerance", "0.01")
    return path


def test_records_end_where_the_search_found_them_to(searched: Path) -> None:
    text = of_records(searched)
    found, config = simulated(text), parse(text, base=Path())
    assert parse(to_toml(config), base=Path()) == config
    point = CascadeManifest.load(searched).point()
    assert point.accuracy is not None
    assert found.figures.more["exits"][1] == pytest.approx(point.reach[1], abs=0.01)
    assert found.figures.accuracy == pytest.approx(point.accuracy[0], abs=0.01)
    assert found.figures.more["agreement"] == pytest.approx(point.agreement, abs=0.01)
    assert found.slo_attainment == 1.0
    assert sum(found.figures.more["reasons"].values()) == found.requests
    assert found.figures.more["exit_ms"][0]["mean"] < found.figures.more["exit_ms"][1]["mean"]


def test_energy_is_that_of_the_stages_that_rows_ran_on(searched: Path) -> None:
    manifest = CascadeManifest.load(searched)
    stages = [
        dataclasses.replace(stage, energy_mj=((1, 1, mj), (64, 1, mj)), energy_source="modelled")
        for stage, mj in zip(manifest.stages, (100.0, 900.0), strict=True)
    ]
    assert simulated(of_records(searched)).joules is None
    dataclasses.replace(manifest, stages=tuple(stages)).save(searched)
    found = simulated(of_records(searched))
    assert found.joules == pytest.approx(0.1 + 0.9 * found.figures.more["exits"][1], rel=1e-6)


def test_one_stage_alone(searched: Path) -> None:
    found = simulated(of_records(searched, 'point = "last"'))
    study = read_study(searched, searched.parent / "texts.jsonl")
    last = float((study.of(2).said[-1].answer == study.of(2).truth).mean())
    assert found.figures.more["exits"] == [1.0]
    assert found.figures.accuracy == pytest.approx(last, abs=0.01)
    assert found.figures.more["agreement"] == 1.0


def test_a_stage_that_dies(searched: Path) -> None:
    faults = "".join(f"[[fault]]\nat_s = 30\nworker = {worker}\n" for worker in (2, 3))
    found = simulated(of_records(searched, "[allocation]\ninstances = [2, 2]\n" + faults))
    reach = CascadeManifest.load(searched).point().reach[1]
    assert found.figures.degraded == pytest.approx(reach / 2, abs=0.03)
    assert not found.figures.more["unanswered"]
    assert found.figures.more["reasons"]["stage_absent"] == pytest.approx(found.figures.degraded * 6000, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts = ": "# texts = "}, "cluster.texts is needed"),
        ({'batching = "deadline"': 'point = "best"'}, "no operating point 'best'"),
        ({'batching = "deadline"': 'router = "price"'}, "dispatch.router does not go with a cascade"),
        ({'batching = "deadline"': "[allocation]\ninstances = [4]"}, "one number for each of the 2 stages"),
        ({'batching = "deadline"': "[allocation]\ninstances = [1, 1]"}, "are 2 in all"),
        ({'batching = "deadline"': '[scaling]\nkind = "target"'}, "does not go with a cascade"),
        ({"duration_s = 60": 'length = "fixed:8"'}, "the records say what rows are like"),
        ({"overhead_ms = 0": 'profile = "bert-base"'}, "profile does not go with cluster.serves"),
    ],
)
def test_mistakes_name_the_key(searched: Path, change: dict[str, str], message: str) -> None:
    text = of_records(searched)
    for old, new in change.items():
        assert old in LOAD
        text = text.replace(old, new)
    with pytest.raises(ConfigError, match=message):
        simulated(text)


def test_a_cascade_has_a_page_and_rows(searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there of one model is there of a cascade."""
    page, rows = tmp_path / "page.json", tmp_path / "rows.csv"
    asked = ["simulate", str(searched), "--texts", str(searched.parent / "texts.jsonl"), "--duration-s", "5"]
    assert main([*asked, "--price", "2", "--plot", str(page), "--record", str(rows)]) == 0
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert "answered by: s0" in out
    assert len(rows.read_text().splitlines()) > 400
    assert json.loads(page.read_text())


def test_a_cascade_without_records_is_a_flow(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--workers", "2", "--bundle", "all", "--rate", "60", "--duration-s", "40"]
    assert main(["simulate", str(EXAMPLES / "cascade_sst2.toml"), *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slo_attainment"] > 0.99
    assert found["accuracy"] == pytest.approx(0.698 * 0.977 + 0.302 * 0.914, abs=0.005)
    assert found["visits"]["large:large"] == pytest.approx(0.302 * found["requests"], rel=0.1)


def test_the_fewest_workers(searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row takes 1 or 2 ms at the first stage, and some as much at the second."""
    path = tmp_path / "scenario.toml"
    path.write_text(
        of_records(searched).replace("rate = 100", "rate = 1500").replace("duration_s = 60", "duration_s = 10")
    )
    assert main(["simulate", str(path), "--find-workers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = {each["workers"]: each["slo_attainment"] >= 0.99 and each["degraded"] <= 0.01 for each in found["tried"]}
    assert kept[found["workers"]]
    assert found["workers"] > 1
    assert not kept[found["workers"] - 1]
    path.write_text(path.read_text() + "[allocation]\ninstances = [2, 2]\n")
    assert main(["simulate", str(path), "--find-workers", "--json"]) == 0
    assert min(each["workers"] for each in json.loads(capsys.readouterr().out)["tried"]) >= 2
    path.write_text(path.read_text().replace("slo_ms = 100", "slo_ms = 0.5"))
    assert main(["simulate", str(path), "--find-workers"]) == 0
    assert "no number of GPUs keeps 99%" in capsys.readouterr().out
